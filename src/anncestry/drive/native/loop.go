package main

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	inputBytes  = 128 << 10 // of a loop, and the most that a client may keep of what is not complete
	sampleBytes = 48
	// After a connection that was refused, a client waits this long: refusals shall not be all that is measured.
	pauseNs = 10_000_000
	// Sleeping ends this early, and the rest is spent looking: waking a thread takes that long.
	spinNs    = 30_000
	connectNs = 10_000_000_000
	errorKind = 20
	textBytes = 2000 // of an error; who looks for secrets in it cuts it afterwards
)

// event is what a wire found in its input.
type event int

const (
	nothing event = iota
	opened
	answered
	upgrade // to TLS, now
)

// wire is a transport's protocol, on one connection. It reads c.input and appends to c.output.
type wire interface {
	// open starts to speak on a fresh connection, and says whether it can be used at once; else receive says so later.
	open(c *client) bool
	// send appends a request.
	send(c *client, request []byte)
	// receive consumes input up to the next event; an error ends the connection.
	receive(c *client) (event, error)
	// ended says what a connection means that the server closed: the end of an answer, or an error.
	ended(c *client) (event, error)
	// cancel gives up the request under way, and says whether the connection can be used on.
	cancel(c *client) bool
	// reusable says whether the connection takes another request after this answer.
	reusable() bool
}

type state int

const (
	down state = iota
	opening
	ready
)

// client is one connection and what it has to do. It belongs to one loop, and is touched by no other thread.
type client struct {
	number int32
	fd     int
	state  state
	wire   wire
	prime  []uint32
	row    []uint32
	at     int

	input     []byte // the loop's, while this client is read; the unread part is input[from:to]
	from, to  int
	rest      []byte // what was unread then
	received  int64  // on this connection, for the request under way or since the last
	answers   int    // on this connection
	output    []byte // in the clear
	written   int    // of what is pending
	secure    *secure
	facts     *secureFacts
	connected bool
	blocked   bool // waits to be able to write

	busy     bool
	sent     bool
	query    uint32
	ticket   int64
	due      int64
	started  int64
	deadline int64
	free     int64
	offset   uint64
	failure  string // of the answer under way
	late     bool   // the server calls that failure a deadline

	keep        bool
	samples     *stream
	responses   *stream
	count       int
	primeErrors int
	errors      map[string]int
	everOpen    bool
	reconnects  int
}

// body keeps a part of the response.
func (c *client) body(part []byte) {
	if c.keep {
		c.responses.append(part)
	}
}

// loop drives its clients from one thread of the operating system.
type loop struct {
	job *job
	// where the clients connect: client i to the (i mod n)-th
	addresses []address
	configs   []*tls.Config // by address; none without TLS
	clients   []*client
	poller    *poller
	input     []byte        // of the client that is read
	sealed    []byte        // the same under TLS, before it is decrypted
	next      *atomic.Int64 // the next arrival, shared by all loops

	measuring bool
	zero      int64
	end       int64
	timeout   int64
	active    int
	waiting   []*client // for their arrival, in its order
	first     int
	paused    []*client
	earliest  int64 // no deadline is before this

	lag    histogram
	unsent int
	late   int64 // how long after the clock's zero it was let run
	ended  int64
	err    error

	ready chan error
	start chan int64
	done  chan struct{}
}

const never = int64(1)<<62 - 1

func newLoop(j *job, to []address, configs []*tls.Config, next *atomic.Int64) (*loop, error) {
	p, err := newPoller()
	if err != nil {
		return nil, err
	}
	return &loop{job: j, addresses: to, configs: configs, poller: p, next: next, timeout: int64(j.TimeoutS * 1e9), earliest: never,
		input: make([]byte, inputBytes), sealed: make([]byte, inputBytes),
		ready: make(chan error, 1), start: make(chan int64, 1), done: make(chan struct{})}, nil
}

func (l *loop) add(number int, spool *spool) error {
	w, err := newWire(&l.job.Transport, l.job.Transport.reach(number), l.job.TimeoutS)
	if err != nil {
		return err
	}
	c := &client{number: int32(number), fd: -1, wire: w, prime: l.job.prime[number], errors: map[string]int{}}
	if l.job.Loop != "open" {
		c.row = l.job.schedule[number]
	}
	if c.samples, err = newStream(spool, filepath.Join(l.job.folder, fmt.Sprintf("samples.%d.bin", number))); err != nil {
		return err
	}
	c.responses, err = newStream(spool, filepath.Join(l.job.folder, fmt.Sprintf("responses.%d.bin", number)))
	l.clients = append(l.clients, c)
	return err
}

// work is the life of the loop: connect, prime, wait for the word, measure. It is not bound to its thread, which it
// keeps nevertheless: preempted, it goes on at once where it was, instead of being woken on a thread of its own.
func (l *loop) work() {
	defer close(l.done)
	defer func() {
		if fault := recover(); fault != nil {
			l.err = broken(fault)
			select {
			case l.ready <- l.err:
			default:
			}
		}
	}()
	exactTimers()
	if err := l.connect(); err != nil {
		l.ready <- err
		return
	}
	l.run()
	l.ready <- l.err
	zero, ok := <-l.start
	if !ok || l.err != nil {
		return
	}
	l.zero = zero
	if l.job.DurationS != nil {
		l.end = zero + int64(*l.job.DurationS*1e9)
	}
	l.measuring = true
	for _, c := range l.clients {
		c.keep, c.at, c.free, c.ticket = true, 0, zero, -1
	}
	exactTimers()
	rawSleepUntil(zero - 2*spinNs)
	for clock() < zero {
	}
	l.late = clock() - zero
	l.run()
	l.ended = clock()
}

func (l *loop) close() {
	for _, c := range l.clients {
		if c.fd >= 0 {
			unix.Close(c.fd)
		}
	}
	unix.Close(l.poller.fd)
}

// connect opens all connections, each before its time is over, or says which could not be had.
func (l *loop) connect() error {
	limit := clock() + min(l.timeout, connectNs)
	for _, c := range l.clients {
		if err := l.dial(c); err != nil {
			return l.refused(c, err.Error())
		}
	}
	for {
		open := 0
		for _, c := range l.clients {
			if c.state == down {
				return l.refused(c, c.failure)
			}
			if c.state == ready {
				open++
			}
		}
		now := clock()
		if open == len(l.clients) {
			return nil
		}
		if now > limit {
			for _, c := range l.clients {
				if c.state != ready {
					return l.refused(c, "not within its time")
				}
			}
		}
		if err := l.poll(limit - now + 1_000_000); err != nil {
			return err
		}
	}
}

func (l *loop) refused(c *client, why string) error {
	return fmt.Errorf("client %d of the driver failed: no connection to %s: %s", c.number, l.job.Transport.target(int(c.number)), why)
}

// run lets every client do what it has to, and returns when all are done.
func (l *loop) run() {
	l.active = len(l.clients)
	for _, c := range l.clients {
		l.advance(c, clock())
	}
	for l.active > 0 {
		now := clock()
		l.wakeWaiting(now)
		l.wakePaused(now)
		if l.active == 0 {
			return
		}
		if err := l.poll(l.patience(clock())); err != nil {
			l.err = err
			return
		}
		if now = clock(); now >= l.earliest {
			l.expire(now)
		}
	}
}

// patience is how long there is nothing to do but to listen.
func (l *loop) patience(now int64) int64 {
	wake := l.earliest
	if l.first < len(l.waiting) {
		wake = min(wake, l.waiting[l.first].due-spinNs)
	}
	for _, c := range l.paused {
		wake = min(wake, c.free)
	}
	return max(0, wake-now)
}

func (l *loop) wakeWaiting(now int64) {
	for l.first < len(l.waiting) && l.waiting[l.first].due <= now {
		c := l.waiting[l.first]
		l.first++
		if l.first == len(l.waiting) {
			l.waiting, l.first = l.waiting[:0], 0
		}
		l.advance(c, now)
		now = clock()
	}
	if l.first > 1024 {
		l.waiting = l.waiting[:copy(l.waiting, l.waiting[l.first:])]
		l.first = 0
	}
}

func (l *loop) wakePaused(now int64) {
	if len(l.paused) == 0 {
		return
	}
	var due []*client
	rest := l.paused[:0]
	for _, c := range l.paused {
		if c.free <= now {
			due = append(due, c)
		} else {
			rest = append(rest, c)
		}
	}
	l.paused = rest
	for _, c := range due {
		l.finish(c, statusError, "UNAVAILABLE: "+c.failure)
		l.advance(c, c.free)
	}
}

// poll waits for sockets and deals with them.
func (l *loop) poll(timeout int64) error {
	events, err := l.poller.wait(timeout)
	if err != nil {
		return err
	}
	for i := range events {
		c := l.clients[events[i].Fd]
		if c.state == down {
			continue
		}
		if events[i].Events&unix.EPOLLOUT != 0 {
			l.writable(c)
		}
		if c.state != down && events[i].Events&(unix.EPOLLIN|unix.EPOLLHUP|unix.EPOLLERR|unix.EPOLLRDHUP) != 0 {
			l.readable(c)
		}
	}
	return nil
}

// advance gives a free client its next request, or lets it wait for it, or ends it.
func (l *loop) advance(c *client, now int64) {
	for {
		due := now
		switch {
		case !l.measuring:
			if c.at == len(c.prime) {
				l.active--
				return
			}
			c.query = c.prime[c.at]
			c.at++
		case l.job.Loop == "open":
			if c.ticket < 0 {
				c.ticket = l.next.Add(1) - 1
				if c.ticket >= int64(len(l.job.due)) {
					l.active--
					return
				}
				row := l.job.schedule[0]
				c.query = row[c.ticket%int64(len(row))]
				c.due = l.zero + l.job.due[c.ticket]
			}
			if c.due > now {
				l.waiting = append(l.waiting, c)
				return
			}
			due = c.due
			c.ticket = -1
		default:
			if l.job.DurationS != nil && now >= l.end {
				l.active--
				return
			}
			if c.at == len(c.row) {
				if l.job.DurationS == nil || len(c.row) == 0 {
					l.active--
					return
				}
				c.at = 0
			}
			c.query = c.row[c.at]
			c.at++
		}
		c.due, c.started, c.deadline = due, now, due+l.timeout
		c.offset, c.failure, c.late = c.responses.offset, "", false
		if l.measuring {
			l.lag.add(now - max(c.free, due*l.isOpen()))
		}
		if now >= c.deadline {
			l.unsent++
			l.record(c, statusTimeout, now, "never sent: no client was free until its time was over")
			c.free = now
			continue
		}
		c.busy, c.sent = true, false
		l.earliest = min(l.earliest, c.deadline)
		if c.state == down {
			if err := l.dial(c); err != nil {
				l.lost(c, err.Error())
				return
			}
		}
		if c.state == ready {
			l.transmit(c)
		}
		return
	}
}

func (l *loop) isOpen() int64 {
	if l.job.Loop == "open" {
		return 1
	}
	return 0
}

func (l *loop) transmit(c *client) {
	c.sent, c.received = true, 0
	c.wire.send(c, l.job.request(c.query))
	l.flush(c)
}

// finish ends the request under way and goes on to the next.
func (l *loop) finish(c *client, status uint16, text string) {
	now := clock()
	c.busy = false
	c.free = now
	l.record(c, status, now, text)
}

func (l *loop) record(c *client, status uint16, now int64, text string) {
	if text != "" {
		if len(text) > textBytes {
			text = text[:textBytes]
		}
		if _, known := c.errors[text]; !known && len(c.errors) >= errorKind {
			text = "other errors"
		}
		if l.measuring {
			c.errors[text]++
		}
	}
	if !l.measuring {
		if status != statusOK {
			c.primeErrors++
		}
		return
	}
	size := c.responses.offset - c.offset
	if status != statusOK {
		size = 0
		c.responses.forget(c.offset)
	}
	var sample [sampleBytes]byte
	order := binary.LittleEndian
	order.PutUint32(sample[0:], c.query)
	order.PutUint16(sample[4:], uint16(c.number))
	order.PutUint16(sample[6:], status)
	order.PutUint64(sample[8:], uint64(c.due-l.zero))
	order.PutUint64(sample[16:], uint64(c.started-l.zero))
	order.PutUint64(sample[24:], uint64(now-c.due))
	order.PutUint64(sample[32:], c.offset)
	order.PutUint64(sample[40:], size)
	c.samples.append(sample[:])
	c.count++
}

// broken is what a panic is told as: no server shall be able to end the driver.
func broken(fault any) error {
	return fmt.Errorf("the driver met what it can't deal with (%v): please report this", fault)
}

// expire gives up requests whose time is over.
func (l *loop) expire(now int64) {
	l.earliest = never
	for _, c := range l.clients {
		if !c.busy {
			continue
		}
		if now < c.deadline {
			l.earliest = min(l.earliest, c.deadline)
			continue
		}
		usable := c.state == ready && !c.blocked && c.wire.cancel(c)
		if !usable {
			l.drop(c)
		}
		why := "no answer in time"
		if !c.sent {
			why = "no connection to the server in time"
		}
		l.finish(c, statusTimeout, "DEADLINE_EXCEEDED: "+why)
		if usable {
			l.flush(c)
		}
		if !c.busy {
			l.advance(c, c.free)
		}
	}
}

// dial starts to connect.
func (l *loop) dial(c *client) error {
	fd, err := l.addresses[int(c.number)%len(l.addresses)].dial()
	if err != nil {
		c.state = opening // so that lost knows that it was refused
		return err
	}
	c.fd, c.state, c.from, c.to, c.rest, c.output, c.written = fd, opening, 0, 0, c.rest[:0], c.output[:0], 0
	c.connected, c.blocked, c.received, c.answers = false, true, 0, 0
	return l.poller.add(fd, l.tag(c), unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLRDHUP)
}

func (l *loop) tag(c *client) int32 {
	return c.number / int32(l.job.Threads) // its place in l.clients
}

func (l *loop) drop(c *client) {
	if c.fd >= 0 {
		unix.Close(c.fd)
	}
	c.fd, c.state = -1, down
	if c.secure != nil {
		c.secure.stop()
		c.secure = nil
	}
}

// lost ends a connection; the request under way, if there is one, has failed with it. On one that never gave an answer
// it has failed only after a pause: a server that refuses, or accepts and closes, shall not be asked a million times a
// second, and a closed loop whose pause is in no sample would seem to have been idle.
func (l *loop) lost(c *client, why string) {
	refused := c.state == opening || c.answers == 0
	l.drop(c)
	c.failure = why
	if !c.busy {
		return
	}
	if refused {
		c.busy, c.free = false, clock()+pauseNs // not busy: its deadline is no other end of it
		l.paused = append(l.paused, c)
		return
	}
	l.finish(c, statusError, "UNAVAILABLE: "+why)
	l.advance(c, c.free)
}

func (l *loop) writable(c *client) {
	if !c.connected {
		code, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			err = unix.Errno(code)
		}
		if err != nil {
			l.lost(c, err.Error())
			return
		}
		c.connected, c.blocked = true, false
		if err := l.poller.change(c.fd, l.tag(c), unix.EPOLLIN|unix.EPOLLRDHUP); err != nil {
			l.lost(c, err.Error())
			return
		}
		if _, later := c.wire.(upgrader); len(l.configs) > 0 && !later {
			l.secure(c)
			return
		}
		if c.wire.open(c) {
			l.opened(c)
		}
	}
	l.flush(c)
}

// secure begins TLS on the connection, with nothing of it read or written in the clear any more.
func (l *loop) secure(c *client) {
	l.flush(c)
	if c.state == down {
		return
	}
	if c.from < c.to || c.written < len(c.output) {
		l.lost(c, "TLS: the server said more in the clear than it may")
		return
	}
	c.secure = newSecure(l.configs[int(c.number)%len(l.configs)])
	l.handshake(c)
}

// handshake goes on with it; when it is done, the protocol begins, or goes on.
func (l *loop) handshake(c *client) {
	done, err := c.secure.handshake(l.job.Transport.Kind)
	l.flush(c) // what there is to say, be it why not
	if c.state == down {
		return
	}
	if err != nil {
		l.lost(c, err.Error())
		return
	}
	if !done {
		return
	}
	if c.facts == nil {
		found := c.secure.facts()
		c.facts = &found
	}
	if w, later := c.wire.(upgrader); later {
		w.secured(c)
	} else if c.wire.open(c) {
		l.opened(c)
	}
	l.flush(c)
}

// flush writes what is to be written; what does not go now goes when the socket takes it.
func (l *loop) flush(c *client) {
	pending := &c.output
	if c.secure != nil {
		if c.secure.open && len(c.output) > 0 {
			if _, err := c.secure.conn.Write(c.output); err != nil {
				l.lost(c, "TLS: "+err.Error())
				return
			}
			c.output = c.output[:0]
		}
		pending = &c.secure.pipe.out
	}
	for c.state != down && c.written < len(*pending) {
		if !c.connected {
			return
		}
		n, errno := write(c.fd, (*pending)[c.written:])
		switch errno {
		case 0:
			c.written += n
		case unix.EINTR:
		case unix.EAGAIN:
			if !c.blocked {
				c.blocked = true
				if err := l.poller.change(c.fd, l.tag(c), unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLRDHUP); err != nil {
					l.lost(c, err.Error())
				}
			}
			return
		default:
			l.lost(c, errno.Error())
			return
		}
	}
	if c.state == down || !c.connected { // until it is connected, it waits to be able to write
		return
	}
	*pending, c.written = (*pending)[:0], 0
	if c.blocked {
		c.blocked = false
		if err := l.poller.change(c.fd, l.tag(c), unix.EPOLLIN|unix.EPOLLRDHUP); err != nil {
			l.lost(c, err.Error())
		}
	}
}

var errClosed = errors.New("the server closed the connection")

func (l *loop) readable(c *client) {
	c.input, c.from, c.to = l.input, 0, copy(l.input, c.rest)
	if c.secure != nil {
		l.readSecure(c)
	} else {
		l.readClear(c)
	}
	c.rest = append(c.rest[:0], c.input[c.from:c.to]...)
}

func (l *loop) readClear(c *client) {
	if !l.room(c) {
		return
	}
	n, errno := read(c.fd, c.input[c.to:])
	if l.failed(c, n, errno) {
		return
	}
	c.to += n
	l.take(c)
}

// room makes some for more input.
func (l *loop) room(c *client) bool {
	if c.to == len(c.input) {
		if c.from == 0 {
			l.lost(c, "the server sent more at once than its protocol allows")
			return false
		}
		c.to = copy(c.input, c.input[c.from:c.to])
		c.from = 0
	}
	return true
}

// failed deals with what reading from a socket came to, if that is not bytes.
func (l *loop) failed(c *client, n int, errno unix.Errno) bool {
	switch {
	case errno == unix.EAGAIN || errno == unix.EINTR:
		return true
	case errno != 0:
		l.lost(c, errno.Error())
		return true
	case n == 0 && c.secure != nil: // without the word of the other side that this is the end
		l.lost(c, errClosed.Error())
		return true
	case n == 0:
		l.closed(c)
		return true
	}
	if c.received += int64(n); c.received > l.job.AnswerMax {
		l.lost(c, fmt.Sprintf("the server sent more than %d bytes for one request, which is longer than any answer", l.job.AnswerMax))
		return true
	}
	return false
}

// readSecure decrypts what came, all of it.
func (l *loop) readSecure(c *client) {
	s := c.secure
	n, errno := read(c.fd, l.sealed)
	if l.failed(c, n, errno) {
		return
	}
	s.pipe.in = append(s.pipe.in, l.sealed[:n]...)
	if !s.open {
		if l.handshake(c); c.secure != s || !s.open {
			return
		}
	}
	for c.secure == s {
		if !l.room(c) {
			return
		}
		n, err := s.read(c.input[c.to:])
		switch {
		case err == io.EOF:
			l.closed(c)
			return
		case err != nil:
			l.lost(c, refusal(err))
			return
		case n == 0:
			l.settle(c)
			return
		}
		c.to += n
		l.take(c)
	}
}

// closed deals with a connection that the server ended.
func (l *loop) closed(c *client) {
	found, err := c.wire.ended(c)
	if found == answered && c.busy {
		l.answer(c)
		l.drop(c)
		l.advance(c, c.free)
		return
	}
	if err == nil {
		err = errClosed
	}
	l.lost(c, err.Error())
}

// take lets the protocol consume the input.
func (l *loop) take(c *client) {
	// All that came is looked at before the next request is sent: the server may have said that it goes away.
	free := false
	for c.from < c.to {
		found, err := c.wire.receive(c)
		if err != nil {
			l.lost(c, err.Error())
			break
		}
		if found == nothing {
			break
		}
		if found == upgrade {
			l.secure(c)
			return
		}
		if found == opened {
			l.opened(c)
		} else if c.busy {
			l.answer(c)
			free = true
		}
	}
	if c.state == ready && !c.busy && !c.wire.reusable() {
		l.drop(c)
	}
	if free {
		l.advance(c, c.free)
	}
	if c.state != down {
		l.settle(c)
	}
}

func (l *loop) opened(c *client) {
	c.state = ready
	if c.everOpen && l.measuring {
		c.reconnects++
	}
	c.everOpen = true
	if c.busy && !c.sent {
		l.transmit(c)
	}
}

// settle writes what receiving left to be said, and moves the input's rest to its beginning if that is for nothing.
func (l *loop) settle(c *client) {
	if c.from == c.to {
		c.from, c.to = 0, 0
	}
	waits := len(c.output) > 0 || c.secure != nil && len(c.secure.pipe.out) > 0
	if waits && !c.blocked {
		l.flush(c)
	}
}

// answer ends the request under way with what its answer says.
func (l *loop) answer(c *client) {
	c.answers++
	switch {
	case c.failure == "" && clock() > c.deadline: // the driver itself was not let run meanwhile
		l.finish(c, statusTimeout, "DEADLINE_EXCEEDED: answered after its time was over")
	case c.failure == "":
		l.finish(c, statusOK, "")
	case c.late && clock() >= c.deadline-l.timeout/100: // before, it is no deadline of this request's: it failed fast
		l.finish(c, statusTimeout, c.failure)
	default:
		l.finish(c, statusError, c.failure)
	}
}
