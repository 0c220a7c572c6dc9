// The null server: answers every request with a canned reply, at once, or as badly as it is told to.
//
// It is what the driver's ceiling is measured against, and what shows in tests that no fault of a server is hidden.
// One JSON object (see plan) is its only argument. It prints its port, and ends with its input.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// plan says how to answer. Requests are counted from 1, over all connections.
type plan struct {
	Kind       string `json:"kind"`        // grpc, http, mysql, postgres or redis
	ReplyBytes int    `json:"reply_bytes"` // of the message or body; mysql, postgres, redis: of the one value
	Echo       bool   `json:"echo"`        // "re: " and the request instead
	DelayMs    int    `json:"delay_ms"`
	SlowEvery  int    `json:"slow_every"` // every so many requests one takes
	SlowMs     int    `json:"slow_ms"`    // this much longer
	StallAt    int64  `json:"stall_at"`   // from this request on nothing is answered
	StallMs    int    `json:"stall_ms"`   // for so long
	ErrorEvery int    `json:"error_every"`
	ErrorCode  int    `json:"error_code"`   // of gRPC; without it INTERNAL
	DropEvery  int    `json:"drop_every"`   // connections are cut instead of answering
	LeaveEvery int    `json:"leave_every"`  // after the answer: GOAWAY, or Connection: close
	ResetEvery int    `json:"reset_every"`  // grpc: RST_STREAM instead of answering
	DieAt      int64  `json:"die_at"`       // the process ends
	Chunked    bool   `json:"chunked"`      // http: without Content-Length
	Password   string `json:"password_env"` // mysql, redis: the login is checked against that variable
	// files (PEM) of a server that speaks TLS: at once, or of mysql and postgres when it is asked to
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
}

type server struct {
	plan
	canned  []byte
	count   atomic.Int64
	stalled sync.Once
	until   atomic.Int64
	tls     *tls.Config
}

type fate int

const (
	reply fate = iota
	fail
	drop
	leave
	reset
)

// judge counts a request, waits as long as it shall wait, and says what becomes of it.
func (s *server) judge() fate {
	n := s.count.Add(1)
	if s.DieAt > 0 && n >= s.DieAt {
		os.Exit(3)
	}
	if s.StallAt > 0 && n >= s.StallAt {
		s.stalled.Do(func() { s.until.Store(time.Now().Add(time.Duration(s.StallMs) * time.Millisecond).UnixNano()) })
		time.Sleep(time.Until(time.Unix(0, s.until.Load())))
	}
	wait := s.DelayMs
	if every(n, s.SlowEvery) {
		wait += s.SlowMs
	}
	if wait > 0 {
		time.Sleep(time.Duration(wait) * time.Millisecond)
	}
	switch {
	case every(n, s.ErrorEvery):
		return fail
	case every(n, s.DropEvery):
		return drop
	case every(n, s.LeaveEvery):
		return leave
	case every(n, s.ResetEvery):
		return reset
	}
	return reply
}

func every(n int64, count int) bool {
	return count > 0 && n%int64(count) == 0
}

func (s *server) answer(request []byte) []byte {
	if s.Echo {
		return append([]byte("re: "), request...)
	}
	return s.canned
}

const inputBytes = 16 << 10 // of a connection, of which there may be thousands

var errDone = errors.New("done")

func main() {
	s := &server{}
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: nullserver JSON")
		os.Exit(2)
	}
	reader := json.NewDecoder(bytes.NewReader([]byte(os.Args[1])))
	reader.DisallowUnknownFields()
	if err := reader.Decode(&s.plan); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	s.canned = bytes.Repeat([]byte{'x'}, s.ReplyBytes)
	serve := map[string]func(*server, net.Conn) error{"grpc": grpc, "http": http, "mysql": mysql, "postgres": postgres, "redis": redis}[s.Kind]
	if serve == nil {
		fmt.Fprintf(os.Stderr, "unknown kind %q\n", s.Kind)
		os.Exit(2)
	}
	if s.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(s.Certificate, s.Key)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		s.tls = &tls.Config{Certificates: []tls.Certificate{pair}}
		if protocol := map[string]string{"grpc": "h2", "http": "http/1.1"}[s.Kind]; protocol != "" {
			s.tls.NextProtos = []string{protocol}
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	for {
		conn, err := listener.Accept()
		if err != nil {
			os.Exit(1)
		}
		go func() {
			defer conn.Close()
			if s.tls != nil && s.Kind != "mysql" && s.Kind != "postgres" {
				conn = tls.Server(conn, s.tls)
			}
			if err := serve(s, conn); err != nil && !errors.Is(err, errDone) && !errors.Is(err, io.EOF) {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
	}
}

// HTTP/1.1

func http(s *server, conn net.Conn) error {
	in := bufio.NewReaderSize(conn, inputBytes)
	var body, out []byte
	for {
		length := 0
		for first := true; ; first = false {
			line, err := in.ReadSlice('\n')
			if err != nil {
				return err
			}
			if len(line) <= 2 && !first {
				break
			}
			name, value, _ := bytes.Cut(line, []byte(":"))
			if bytes.EqualFold(name, []byte("Content-Length")) {
				if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
					return err
				}
			}
		}
		if cap(body) < length {
			body = make([]byte, length)
		}
		body = body[:length]
		if _, err := io.ReadFull(in, body); err != nil {
			return err
		}
		status, text := "200 OK", s.answer(body)
		what := s.judge()
		switch what {
		case drop, reset:
			return errDone
		case fail:
			status, text = "500 Internal Server Error", []byte("the disk is on fire")
		}
		out = append(out[:0], "HTTP/1.1 "...)
		out = append(out, status...)
		out = append(out, "\r\nContent-Type: application/json\r\n"...)
		if what == leave {
			out = append(out, "Connection: close\r\n"...)
		}
		if s.Chunked {
			out = append(out, "Transfer-Encoding: chunked\r\n\r\n"...)
			for half := (len(text) + 1) / 2; len(text) > 0; {
				part := text[:min(half, len(text))]
				out = append(strconv.AppendInt(out, int64(len(part)), 16), "\r\n"...)
				out = append(append(out, part...), "\r\n"...)
				text = text[len(part):]
			}
			out = append(out, "0\r\n\r\n"...)
		} else {
			out = append(out, "Content-Length: "...)
			out = append(strconv.AppendInt(out, int64(len(text)), 10), "\r\n\r\n"...)
			out = append(out, text...)
		}
		if _, err := conn.Write(out); err != nil || what == leave {
			return errDone
		}
	}
}

// gRPC: one call at a time on a connection, of which nothing is read but its message.

type http2 struct {
	conn    net.Conn
	in      *bufio.Reader
	out     []byte
	payload []byte
	window  int64
	stream  int64 // the window of the stream under way
	initial int64
	current uint32
	ended   bool // the client gave the current stream up
}

func frame(to []byte, length int, kind, flags byte, stream uint32) []byte {
	to = append(to, byte(length>>16), byte(length>>8), byte(length), kind, flags)
	return binary.BigEndian.AppendUint32(to, stream)
}

// literal is a header that enters no table.
func literal(to []byte, name, value string) []byte {
	to = append(to, 0, byte(len(name)))
	to = append(to, name...)
	to = append(to, byte(len(value)))
	return append(to, value...)
}

func (h *http2) next() (kind, flags byte, stream uint32, err error) {
	var head [9]byte
	if _, err = io.ReadFull(h.in, head[:]); err != nil {
		return
	}
	length := int(head[0])<<16 | int(head[1])<<8 | int(head[2])
	if cap(h.payload) < length {
		h.payload = make([]byte, length)
	}
	h.payload = h.payload[:length]
	if _, err = io.ReadFull(h.in, h.payload); err != nil {
		return
	}
	kind, flags, stream = head[3], head[4], binary.BigEndian.Uint32(head[5:])
	switch kind {
	case 3: // RST_STREAM
		h.ended = h.ended || stream == h.current
	case 4: // SETTINGS
		if flags&1 == 0 {
			for rest := h.payload; len(rest) >= 6; rest = rest[6:] {
				if binary.BigEndian.Uint16(rest) == 4 {
					value := int64(binary.BigEndian.Uint32(rest[2:]))
					h.stream += value - h.initial
					h.initial = value
				}
			}
			h.out = frame(h.out, 0, 4, 1, 0)
			err = h.flush()
		}
	case 6: // PING
		if flags&1 == 0 {
			h.out = append(frame(h.out, 8, 6, 1, 0), h.payload...)
			err = h.flush()
		}
	case 8: // WINDOW_UPDATE
		more := int64(binary.BigEndian.Uint32(h.payload))
		if stream == 0 {
			h.window += more
		} else if stream == h.current {
			h.stream += more
		}
	}
	return
}

func (h *http2) flush() error {
	_, err := h.conn.Write(h.out)
	h.out = h.out[:0]
	return err
}

func grpc(s *server, conn net.Conn) error {
	h := &http2{conn: conn, in: bufio.NewReaderSize(conn, inputBytes), window: 65535, initial: 65535}
	if _, err := h.in.Discard(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")); err != nil {
		return err
	}
	h.out = append(frame(h.out, 6, 4, 0, 0), 0, 4, 0x7f, 0xff, 0xff, 0xff)
	h.out = binary.BigEndian.AppendUint32(frame(h.out, 4, 8, 0, 0), 1<<31-1-65535)
	start := literal([]byte{0x88}, "content-type", "application/grpc") // :status 200
	good := literal(nil, "grpc-status", "0")
	bad := literal(literal(nil, "grpc-status", strconv.Itoa(cmp.Or(s.ErrorCode, 13))), "grpc-message", "the disk is on fire")
	only := append(append([]byte{}, start...), bad...)
	if err := h.flush(); err != nil {
		return err
	}
	var request []byte
	var taken int64
	for {
		kind, flags, stream, err := h.next()
		if err != nil {
			return err
		}
		switch kind {
		case 1: // HEADERS
			h.current, h.ended, h.stream, request = stream, false, h.initial, request[:0]
			continue
		case 0: // DATA
		default:
			continue
		}
		request = append(request, h.payload...)
		if taken += int64(len(h.payload)); taken > 1<<30 {
			h.out = binary.BigEndian.AppendUint32(frame(h.out, 4, 8, 0, 0), uint32(taken))
			taken = 0
		}
		if flags&1 == 0 || stream != h.current || h.ended {
			continue
		}
		text := s.answer(request[5:])
		what := s.judge()
		switch what {
		case drop:
			return errDone
		case reset:
			h.out = binary.BigEndian.AppendUint32(frame(h.out, 4, 3, 0, stream), 2)
		case fail:
			h.out = append(frame(h.out, len(only), 1, 5, stream), only...)
		default:
			h.out = append(frame(h.out, len(start), 1, 4, stream), start...)
			message := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(text))), text...)
			for len(message) > 0 && !h.ended {
				size := min(int64(len(message)), 16384, h.window, h.stream)
				if size <= 0 {
					if err := h.flush(); err != nil {
						return err
					}
					if _, _, _, err := h.next(); err != nil {
						return err
					}
					continue
				}
				h.out = append(frame(h.out, int(size), 0, 0, stream), message[:size]...)
				message = message[size:]
				h.window -= size
				h.stream -= size
			}
			if !h.ended {
				h.out = append(frame(h.out, len(good), 1, 5, stream), good...)
			}
			if what == leave {
				h.out = binary.BigEndian.AppendUint32(frame(h.out, 8, 7, 0, 0), stream)
				h.out = append(h.out, 0, 0, 0, 0)
			}
		}
		if err := h.flush(); err != nil {
			return err
		}
	}
}
