// One client of the driver through Milvus' Go library: a process of its own, as drive/client.py is for Python.
//
// It reads commands from standard input (`known ADDRESSES`, `job CLIENT FOLDER`, then `go T0`), answers `ready` and
// `done FACTS`, and ends with its input. A request is the number of an expression (uint32) and the query (float32); an
// answer is the number of ids (uint32), the ids (int64) and the scores (float64); all little-endian.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/milvus-io/milvus-sdk-go/v2/client"
	"github.com/milvus-io/milvus-sdk-go/v2/entity"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	protocolVersion        = 2
	answered, failed, late = 0, 1, 2
	module                 = "github.com/milvus-io/milvus-sdk-go/v2"
	spin                   = 200 * time.Microsecond
	errorKinds, errorSize  = 20, 300
)

type job struct {
	Version        int      `json:"version"`
	Requests       string   `json:"requests"`
	Loop           string   `json:"loop"`
	Clients        int      `json:"clients"`
	TimeoutS       float64  `json:"timeout_s"`
	DurationS      *float64 `json:"duration_s"`
	AnswerBytesMax int      `json:"answer_bytes_max"`
	Transport      struct {
		Kind        string   `json:"kind"`
		Environment string   `json:"environment"`
		Target      string   `json:"target"`
		Targets     []string `json:"targets"`
		Options     struct {
			K           int            `json:"k"`
			Params      map[string]any `json:"params"`
			MetricType  string         `json:"metric_type"`
			Expressions []string       `json:"expressions"`
			Collection  string         `json:"collection"`
		} `json:"options"`
	} `json:"transport"`
}

type sample struct {
	Request                uint32
	Client, Status         uint16
	DueNs, StartNs, TookNs int64
	Offset, Length         uint64
}

// params are a search's, whatever the type of the index.
type params map[string]any

func (p params) Params() map[string]any { return p }
func (p params) AddRadius(float64)      {}
func (p params) AddRangeFilter(float64) {}
func now() int64                        { return clock(unix.CLOCK_MONOTONIC) }
func sleepUntil(at int64) int64 {
	if wait := time.Duration(at-now()) - spin; wait > 0 {
		time.Sleep(wait)
	}
	for {
		if reached := now(); reached >= at {
			return reached
		}
	}
}

func clock(id int32) int64 {
	var at unix.Timespec
	_ = unix.ClockGettime(id, &at)
	return at.Nano()
}

// seat is one client, which runs jobs one after the other, each on a connection of its own.
type seat struct {
	job      job
	folder   string
	number   int
	asking   client.Client
	requests map[uint32][]byte
	schedule []uint32
	dueNs    []int64
	unprimed int
}

func (s *seat) prepare(folder string, number int) error {
	text, err := os.ReadFile(filepath.Join(folder, "job.json"))
	if err != nil {
		return err
	}
	s.job, s.folder, s.number, s.dueNs = job{}, folder, number, nil
	if err := json.Unmarshal(text, &s.job); err != nil {
		return err
	}
	if s.job.Version != protocolVersion {
		return fmt.Errorf("job.json: version %d, this client reads %d", s.job.Version, protocolVersion)
	}
	open := s.job.Loop == "open"
	rows, row := s.job.Clients, number
	if open {
		rows, row = 1, 0
		if s.dueNs, err = numbers[int64](folder, "due.bin"); err != nil {
			return err
		}
	}
	schedule, err := numbers[uint32](folder, "schedule.bin")
	if err != nil {
		return err
	}
	prime, err := numbers[uint32](folder, "prime.bin")
	if err != nil {
		return err
	}
	offsets, err := numbers[uint64](s.job.Requests, "requests.idx")
	if err != nil {
		return err
	}
	data, err := os.ReadFile(filepath.Join(s.job.Requests, "requests.bin"))
	if err != nil {
		return err
	}
	s.schedule = part(schedule, rows, row)
	first := part(prime, s.job.Clients, number)
	s.requests = map[uint32][]byte{}
	for _, index := range slices.Concat(s.schedule, first) {
		s.requests[index] = data[offsets[index]:offsets[index+1]]
	}
	if err := s.connect(); err != nil {
		return err
	}
	s.unprimed = 0
	for _, index := range first {
		if _, err := s.ask(s.requests[index], time.Duration(s.job.TimeoutS*1e9)); err != nil {
			s.unprimed++
		}
	}
	runtime.GC() // before the barrier: no client shall start late because it tidies up
	return nil
}

func (s *seat) rest() {
	if s.asking != nil {
		_ = s.asking.Close()
		s.asking = nil
	}
}

func (s *seat) connect() error {
	s.rest()
	transport := s.job.Transport
	target := transport.Target
	if len(transport.Targets) > 0 {
		target = transport.Targets[s.number%len(transport.Targets)]
	}
	if address, found := known[target]; found {
		target = address
	}
	options := append(slices.Clone(client.DefaultGrpcOpts),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(s.job.AnswerBytesMax)), grpc.WithNoProxy())
	within, cancel := context.WithTimeout(context.Background(), time.Duration(s.job.TimeoutS*1e9))
	defer cancel()
	asking, err := client.NewClient(within, client.Config{Address: target, DialOptions: options})
	s.asking = asking
	return err
}

func (s *seat) ask(request []byte, within time.Duration) (client.SearchResult, error) {
	options := s.job.Transport.Options
	query := make(entity.FloatVector, len(request)/4-1)
	for place := range query {
		query[place] = math.Float32frombits(binary.LittleEndian.Uint32(request[4+4*place:]))
	}
	limit, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	found, err := s.asking.Search(limit, options.Collection, nil,
		options.Expressions[binary.LittleEndian.Uint32(request)], nil, []entity.Vector{query}, "vector",
		entity.MetricType(options.MetricType), options.K, params(options.Params),
		client.WithSearchQueryConsistencyLevel(entity.ClEventually))
	if err != nil {
		return client.SearchResult{}, err
	}
	if len(found) != 1 {
		return client.SearchResult{}, fmt.Errorf("%d answers to one query", len(found))
	}
	return found[0], found[0].Err
}

// due gives the requests to be sent, each with when it is due: in a closed loop now, in an open one when it arrives.
func (s *seat) due(zero int64) func(func(uint32, int64) bool) {
	if s.job.Loop == "open" {
		return func(yield func(uint32, int64) bool) { s.arrivals(zero, yield) }
	}
	return func(yield func(uint32, int64) bool) {
		for {
			for _, index := range s.schedule {
				at := now()
				if s.job.DurationS != nil && at >= zero+int64(*s.job.DurationS*1e9) || !yield(index, at) {
					return
				}
			}
			if s.job.DurationS == nil {
				return
			}
		}
	}
}

// arrivals are those that this client takes; a file that all clients share holds the number of the next one.
func (s *seat) arrivals(zero int64, yield func(uint32, int64) bool) {
	ticket, err := os.OpenFile(filepath.Join(s.folder, "next.bin"), os.O_RDWR, 0)
	if err != nil {
		panic(err)
	}
	defer ticket.Close()
	var held [8]byte
	for {
		_ = unix.Flock(int(ticket.Fd()), unix.LOCK_EX)
		_, _ = ticket.ReadAt(held[:], 0)
		number := binary.LittleEndian.Uint64(held[:])
		binary.LittleEndian.PutUint64(held[:], number+1)
		_, _ = ticket.WriteAt(held[:], 0)
		_ = unix.Flock(int(ticket.Fd()), unix.LOCK_UN)
		if number >= uint64(len(s.dueNs)) {
			return
		}
		at := zero + s.dueNs[number]
		sleepUntil(at)
		if !yield(s.schedule[number%uint64(len(s.schedule))], at) {
			return
		}
	}
}

func (s *seat) run(zero int64) (map[string]any, error) {
	var samples []sample
	var answers []client.SearchResult
	var lags []int64
	failures := map[string]int{}
	timeout, unsent := int64(s.job.TimeoutS*1e9), 0
	var before, after debug.GCStats
	debug.ReadGCStats(&before)
	sleepUntil(zero)
	free := zero // who is let run late has lost that time
	cpu := clock(unix.CLOCK_PROCESS_CPUTIME_ID)
	for index, due := range s.due(zero) {
		start := now()
		lag := start - free
		if s.job.Loop == "open" {
			lag = start - max(due, free)
		}
		lags = append(lags, lag)
		one := sample{Request: index, Client: uint16(s.number), DueNs: due - zero, StartNs: start - zero}
		var answer client.SearchResult
		end, text := start, ""
		if left := due + timeout - start; left <= 0 {
			one.Status, text = late, "never sent: no client was free until its time was over"
			unsent++
		} else {
			var err error
			answer, err = s.ask(s.requests[index], time.Duration(left))
			end = now()
			if err != nil {
				one.Status, text = failed, err.Error()
				exceeded := errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded
				if exceeded && end >= due+timeout-timeout/100 { // before, the server failed fast
					one.Status = late
				}
			}
		}
		text = text[:min(len(text), errorSize)]
		if text != "" && failures[text] == 0 && len(failures) >= errorKinds {
			text = "other errors"
		}
		if text != "" {
			failures[text]++
		}
		one.TookNs = end - due
		samples, answers, free = append(samples, one), append(answers, answer), end
	}
	cpu, ended := clock(unix.CLOCK_PROCESS_CPUTIME_ID)-cpu, now()
	debug.ReadGCStats(&after)
	if err := s.write(samples, answers); err != nil {
		return nil, err
	}
	slices.Sort(lags)
	worst, p99 := int64(0), int64(0)
	if len(lags) > 0 {
		worst, p99 = lags[len(lags)-1], lags[(99*len(lags)+99)/100-1]
	}
	return map[string]any{
		"samples": len(samples), "end_ns": ended, "cpu_s": float64(cpu) / 1e9, "rss_peak_mib": rssPeakMib(),
		"prime_errors": s.unprimed, "errors": failures, "unsent": unsent, "reconnects": 0, "tls": nil,
		"lag_p99_ms": float64(p99) / 1e6, "lag_max_ms": float64(worst) / 1e6,
		"gc_runs": after.NumGC - before.NumGC, "gc_pause_us": float64(after.PauseTotal-before.PauseTotal) / 1e3,
		"driver":  map[string]string{"kind": "go", "go": runtime.Version()[2:]},
		"library": map[string]string{"package": module, "version": version(), "environment": s.job.Transport.Environment},
	}, nil
}

func (s *seat) write(samples []sample, answers []client.SearchResult) error {
	var table, bodies bytes.Buffer
	for place, one := range samples {
		one.Offset = uint64(bodies.Len())
		if one.Status == answered {
			if err := pack(&bodies, answers[place]); err != nil {
				return err
			}
		}
		one.Length = uint64(bodies.Len()) - one.Offset
		_ = binary.Write(&table, binary.LittleEndian, one)
	}
	for name, content := range map[string]*bytes.Buffer{"samples": &table, "responses": &bodies} {
		path := filepath.Join(s.folder, fmt.Sprintf("%s.%d.bin", name, s.number))
		if err := os.WriteFile(path, content.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func pack(to *bytes.Buffer, answer client.SearchResult) error {
	ids, fits := answer.IDs.(*entity.ColumnInt64)
	if answer.ResultCount == 0 {
		_ = binary.Write(to, binary.LittleEndian, uint32(0))
		return nil
	}
	if !fits || len(ids.Data()) != len(answer.Scores) {
		return errors.New("an answer without one whole number and one score for each row")
	}
	scores := make([]float64, len(answer.Scores))
	for place, score := range answer.Scores {
		scores[place] = float64(score)
	}
	_ = binary.Write(to, binary.LittleEndian, uint32(len(scores)))
	_ = binary.Write(to, binary.LittleEndian, ids.Data())
	_ = binary.Write(to, binary.LittleEndian, scores)
	return nil
}

func numbers[T uint32 | uint64 | int64](folder, name string) ([]T, error) {
	data, err := os.ReadFile(filepath.Join(folder, name))
	if err != nil {
		return nil, err
	}
	found := make([]T, len(data)/binary.Size(T(0)))
	_, err = binary.Decode(data, binary.LittleEndian, found)
	return found, err
}

func part(values []uint32, rows, row int) []uint32 {
	length := len(values) / rows
	return values[row*length : (row+1)*length]
}

func rssPeakMib() float64 {
	text, _ := os.ReadFile("/proc/self/status")
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	kib, _ := strconv.ParseFloat(strings.Fields(rest + " 0")[0], 64)
	return kib / 1024
}

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, each := range info.Deps {
		if each.Path == module {
			return each.Version
		}
	}
	return ""
}

var known = map[string]string{}

func main() {
	answers := os.Stdout
	os.Stdout = os.Stderr // a library may print: its words are no answers
	one := &seat{}
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if word == "known" {
			_ = json.Unmarshal([]byte(rest), &known)
			continue
		}
		answer, err := one.told(word, rest)
		if err != nil {
			text, _ := json.Marshal(err.Error())
			answer = "failed " + string(text)
		}
		fmt.Fprintln(answers, answer)
	}
}

func (s *seat) told(word, rest string) (string, error) {
	if word == "job" {
		number, folder, _ := strings.Cut(rest, " ")
		client, err := strconv.Atoi(number)
		if err != nil {
			return "", err
		}
		return "ready", s.prepare(folder, client)
	}
	if word == "rest" {
		s.rest()
		return "rested", nil
	}
	zero, err := strconv.ParseInt(rest, 10, 64)
	if err != nil {
		return "", err
	}
	facts, err := s.run(zero)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(facts)
	return "done " + string(text), err
}
