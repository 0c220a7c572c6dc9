// The native driver: anncestry's job folders (see protocol.py), sent by a few threads that each drive many connections.
//
// Commands on standard input: "job FOLDER" connects, primes and answers "ready"; "go T0" starts the clock at T0
// (CLOCK_MONOTONIC, nanoseconds) and answers "done FACTS"; "go +N" does so N nanoseconds from now, for whoever has
// another clock. "known JSON" says which addresses stand behind the names that jobs have for them ({name: host:port}),
// and answers nothing; "secrets JSON" sets variables ({name: value}) for a driver that could not inherit them, and
// answers nothing either. "who TARGET" answers "host FACTS" (see who.go), "ping" answers "pong". Any may answer "failed REASON".
// It ends with its input.
// The folder holds a job, or names several that are run together, on one clock.
package main

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// version is stamped by the build: the digest of these sources.
var version = "unknown"

// While the clock runs, garbage is collected only if a run takes more memory than this, beyond what it begins with: for
// what the spool holds and what failures leave, and for what each client keeps of requests and answers.
const (
	runBytes    = 512 << 20
	clientBytes = 64 << 10
)

func newWire(t *transport, target string, timeoutS float64) (wire, error) {
	switch t.Kind {
	case "grpc":
		return newGRPC(t, target, timeoutS), nil
	case "http":
		return newHTTP(t, target)
	case "mysql":
		return newMySQL(t)
	case "postgres":
		return newPostgres(t)
	case "redis":
		return newRedis(t)
	}
	return nil, fmt.Errorf("the native driver has no transport %q", t.Kind)
}

// clientFacts and facts are what done.json says; protocol.py describes it.
type clientFacts struct {
	Samples     int            `json:"samples"`
	PrimeErrors int            `json:"prime_errors"`
	Errors      map[string]int `json:"errors"`
}

type facts struct {
	ZeroNs    int64             `json:"zero_ns"`
	EndNs     int64             `json:"end_ns"`
	Driver    map[string]string `json:"driver"`
	Threads   int               `json:"threads"`
	CPUS      *float64          `json:"cpu_s"`
	RSSPeak   float64           `json:"rss_peak_mib"`
	LagP99    float64           `json:"lag_p99_ms"`
	LagMax    float64           `json:"lag_max_ms"`
	Unsent    int               `json:"unsent"`
	Reconnect int               `json:"reconnects"`
	GCRuns    int64             `json:"gc_runs"`     // collections that ended while the clock ran
	GCPause   float64           `json:"gc_pause_us"` // in sum
	GapMax    float64           `json:"gap_max_ms"`
	Spilled   float64           `json:"spilled_mib"`
	TLS       []secureFacts     `json:"tls"` // what the clients' connections came to, each kind once
	Clients   []clientFacts     `json:"clients"`
}

// run is one job, prepared; name is that of its folder among those that are run together, else empty.
type run struct {
	name  string
	job   *job
	spool *spool
	loops []*loop
	next  atomic.Int64
}

// prepare makes ready what the folder holds: its job, or all of those that it names.
func prepare(folder string, known map[string]string) (runs []*run, err error) {
	names, err := readTogether(folder)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		r, err := prepareJob(filepath.Join(folder, name), known)
		if err != nil {
			closeAll(runs)
			return nil, err
		}
		r.name = name
		runs = append(runs, r)
	}
	clients := 0
	for _, r := range runs {
		clients += r.job.Clients
	}
	debug.FreeOSMemory() // collects garbage, too: before the barrier, and then only at the limit
	var begins runtime.MemStats
	runtime.ReadMemStats(&begins)
	debug.SetMemoryLimit(int64(begins.Sys-begins.HeapReleased) + runBytes + int64(clients)*clientBytes)
	return runs, nil
}

func closeAll(runs []*run) {
	for _, r := range runs {
		r.close()
	}
}

func prepareJob(folder string, known map[string]string) (*run, error) {
	j, err := readJob(folder, known)
	if err != nil {
		return nil, err
	}
	to := make([]address, max(1, len(j.Transport.Targets)))
	var configs []*tls.Config
	for number := range to {
		if to[number], err = resolve(j.Transport.reach(number)); err != nil {
			return nil, err
		}
		if j.Transport.TLS != nil {
			config, err := j.Transport.TLS.config(j.Transport.Kind, j.Transport.reach(number))
			if err != nil {
				return nil, err
			}
			configs = append(configs, config)
		}
	}
	if j.Threads <= 0 {
		j.Threads = max(1, runtime.NumCPU()/2)
	}
	j.Threads = min(j.Threads, j.Clients)
	r := &run{job: j, spool: newSpool(j.Clients)}
	for range j.Threads {
		l, err := newLoop(j, to, configs, &r.next)
		if err != nil {
			return nil, err
		}
		r.loops = append(r.loops, l)
	}
	for number := range j.Clients {
		if err := r.loops[number%j.Threads].add(number, r.spool); err != nil {
			return nil, err
		}
	}
	for _, l := range r.loops {
		go l.work()
	}
	var failure error
	for _, l := range r.loops {
		if err := <-l.ready; err != nil && failure == nil {
			failure = err
		}
	}
	if failure != nil {
		r.close()
		return nil, failure
	}
	return r, nil
}

// measure runs all from the same instant, and tells of each; what is of the process is told of each alike, but for its
// processor time, which is only told where it is of one.
func measure(runs []*run, zero int64) ([]*facts, error) {
	var before, after debug.GCStats
	debug.ReadGCStats(&before)
	var loops []*loop
	for _, r := range runs {
		loops = append(loops, r.loops...)
	}
	// One P for each loop and one for the watch: with an idle one, every preemption would wake a thread in vain.
	usual := runtime.GOMAXPROCS(len(loops) + 1)
	defer runtime.GOMAXPROCS(usual)
	stop, gap := watch()
	for _, l := range loops {
		l.start <- zero
	}
	sleepUntil(zero)
	cpu := cpuSeconds()
	for _, l := range loops {
		<-l.done
	}
	cpu = cpuSeconds() - cpu
	close(stop)
	gapMax := float64(<-gap) / 1e6
	for _, l := range loops { // the watch may have been held up with them
		gapMax = max(gapMax, float64(l.late)/1e6)
	}
	debug.ReadGCStats(&after)
	var all []*facts
	for _, r := range runs {
		f := &facts{ZeroNs: zero, Driver: map[string]string{"kind": "native", "sources": version, "go": runtime.Version()[2:]},
			Threads: len(r.loops), GapMax: gapMax, RSSPeak: peakRSS(), GCRuns: after.NumGC - before.NumGC,
			GCPause: float64(after.PauseTotal-before.PauseTotal) / 1e3}
		if err := r.tell(f); err != nil {
			return nil, err
		}
		if len(runs) == 1 { // of jobs together, nobody knows whose it was
			f.CPUS = &cpu
		}
		all = append(all, f)
	}
	return all, nil
}

// tell completes the facts by what is the run's own, and its files.
func (r *run) tell(f *facts) error {
	clients := make([]clientFacts, r.job.Clients)
	f.TLS = []secureFacts{}
	var lag histogram
	for _, l := range r.loops {
		if l.err != nil {
			return l.err
		}
		f.EndNs = max(f.EndNs, l.ended)
		f.Unsent += l.unsent
		lag.merge(&l.lag)
		for _, c := range l.clients {
			f.Reconnect += c.reconnects
			if c.facts != nil && !slices.Contains(f.TLS, *c.facts) {
				f.TLS = append(f.TLS, *c.facts)
			}
			clients[c.number] = clientFacts{c.count, c.primeErrors, c.errors}
		}
	}
	f.Clients = clients
	f.LagP99, f.LagMax = float64(lag.quantile(0.99))/1e6, float64(lag.max)/1e6
	r.spool.stop()
	r.spool.drain(0)
	if r.spool.err != nil {
		return r.spool.err
	}
	f.Spilled = float64(r.spool.spilled) / (1 << 20)
	for _, l := range r.loops {
		for _, c := range l.clients {
			for _, s := range []*stream{c.samples, c.responses} {
				if err := s.close(); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (r *run) close() {
	for _, l := range r.loops {
		close(l.start)
		<-l.done
		l.close()
	}
	r.spool.stop()
}

// watch sleeps over and over, and tells by how much it was woken too late at worst: what the
// machine did not let this process do. It sleeps as the scheduler knows: with a P of its own kept, it would hold up
// collections and what writes for the spool.
func watch() (chan struct{}, chan int64) {
	const pause = 20 * time.Millisecond
	stop, told := make(chan struct{}), make(chan int64, 1)
	go func() {
		var worst int64
		for {
			select {
			case <-stop:
				told <- worst
				return
			default:
			}
			at := clock() + int64(pause)
			time.Sleep(pause)
			worst = max(worst, clock()-at)
		}
	}()
	return stop, told
}

// together is what is said of several jobs on one clock, by the names of their folders.
type together struct {
	ZeroNs int64             `json:"zero_ns"`
	EndNs  int64             `json:"end_ns"`
	Jobs   map[string]*facts `json:"together"`
}

func said(runs []*run, all []*facts) any {
	if runs[0].name == "" {
		return all[0]
	}
	t := together{ZeroNs: all[0].ZeroNs, Jobs: map[string]*facts{}}
	for i, f := range all {
		t.EndNs = max(t.EndNs, f.EndNs)
		t.Jobs[runs[i].name] = f
	}
	return t
}

func main() {
	debug.SetGCPercent(-1) // garbage is collected between runs, and within one only at the limit that prepare sets
	runtime.GOMAXPROCS(runtime.NumCPU() + 4)
	lines := make(chan string)
	go func() {
		input := bufio.NewScanner(commands())
		for input.Scan() {
			lines <- input.Text()
		}
		os.Exit(0)
	}()
	var m master
	for line := range lines {
		answer, err := m.obey(line)
		if err != nil {
			text, _ := json.Marshal(err.Error())
			answer = "failed " + string(text)
		}
		if answer != "" {
			fmt.Println(answer)
		}
	}
}

// commands is standard input, waited for by Go's poller and in no system call. Go 1.26.6 stops all goroutines before it
// changes GOMAXPROCS or collects garbage, and may overlook one that goes into a system call in that moment. Where that
// call lasts, as a read of the next command does, all of them stand for a minute: 4 of 16,000 times in a trial.
func commands() *os.File {
	_ = unix.SetNonblock(0, true) // a file, which can't be polled, is never waited for
	return os.NewFile(0, "standard input")
}

// master is what commands have come to so far.
type master struct {
	runs  []*run
	known map[string]string
}

func (m *master) obey(line string) (answer string, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = broken(fault)
		}
	}()
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "known":
		m.known = nil
		return "", json.Unmarshal([]byte(rest), &m.known)
	case "secrets":
		return "", keep(rest)
	case "job":
		closeAll(m.runs)
		m.runs = nil
		if m.runs, err = prepare(rest, m.known); err == nil {
			answer = "ready"
		}
	case "go":
		return m.measure(rest)
	case "rest":
		closeAll(m.runs)
		m.runs, answer = nil, "rested"
	case "who":
		var text []byte
		if text, err = who(rest); err == nil {
			answer = "host " + string(text)
		}
	case "ping":
		answer = "pong"
	default:
		err = fmt.Errorf("unknown command %q", word)
	}
	return answer, err
}

// keep sets variables of this process, whose values nobody may read who lists processes; no error repeats them.
func keep(text string) error {
	var secrets map[string]string
	if json.Unmarshal([]byte(text), &secrets) != nil {
		return fmt.Errorf("secrets that are no object of texts")
	}
	for name, value := range secrets {
		if os.Setenv(name, value) != nil {
			return fmt.Errorf("no variable can be called %q, or hold what it shall", name)
		}
	}
	return nil
}

func (m *master) measure(when string) (string, error) {
	number, ahead := strings.CutPrefix(when, "+")
	zero, err := strconv.ParseInt(number, 10, 64)
	if err != nil || m.runs == nil {
		return "", fmt.Errorf("no job to begin, or no time %q", when)
	}
	if ahead {
		zero += clock()
	}
	all, err := measure(m.runs, zero)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(said(m.runs, all))
	return "done " + string(text), err
}
