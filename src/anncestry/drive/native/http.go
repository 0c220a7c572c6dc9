package main

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

const (
	headLimit   = 64 << 10
	whyNotBytes = 512
)

// httpWire speaks HTTP/1.1 with a connection kept alive: bodies in and out.
type httpWire struct {
	head []byte // of a request, up to the value of Content-Length

	phase    httpPhase
	status   int
	left     int64 // of the body, or of its chunk
	closing  bool  // the server ends the connection with this answer
	chunked  bool
	whyNot   []byte // the beginning of a failed answer's body
	complete bool
}

type httpPhase int

const (
	inHead httpPhase = iota
	inBody
	inChunkSize
	inChunk
	inChunkEnd
	inTrailer
	untilClosed
)

func newHTTP(t *transport, target string) (*httpWire, error) {
	var head strings.Builder
	fmt.Fprintf(&head, "%s %s HTTP/1.1\r\nHost: %s\r\n", t.Method, t.Path, target)
	for name, value := range t.Headers {
		if strings.ContainsAny(name+value, "\r\n") {
			return nil, fmt.Errorf("transport.headers: %q has a line break", name)
		}
		fmt.Fprintf(&head, "%s: %s\r\n", name, value)
	}
	if strings.ContainsAny(t.Method+t.Path, "\r\n ") {
		return nil, fmt.Errorf("transport: method or path has a blank or a line break")
	}
	if t.Credentials != nil {
		header := t.Credentials.header()
		if strings.ContainsAny(header, "\r\n") {
			return nil, fmt.Errorf("transport.authorization: the credentials have a line break")
		}
		fmt.Fprintf(&head, "Authorization: %s\r\n", header)
	}
	head.WriteString("Content-Length: ")
	return &httpWire{head: []byte(head.String())}, nil
}

func (w *httpWire) open(c *client) bool { return true }

func (w *httpWire) send(c *client, request []byte) {
	w.phase, w.closing, w.chunked, w.whyNot = inHead, false, false, w.whyNot[:0]
	c.output = append(c.output, w.head...)
	c.output = strconv.AppendInt(c.output, int64(len(request)), 10)
	c.output = append(c.output, "\r\n\r\n"...)
	c.output = append(c.output, request...)
}

func (w *httpWire) cancel(c *client) bool { return false }

func (w *httpWire) reusable() bool { return !w.closing }

func (w *httpWire) ended(c *client) (event, error) {
	if c.busy && c.sent && w.phase == untilClosed {
		return w.finish(c), nil
	}
	return nothing, errClosed
}

func (w *httpWire) finish(c *client) event {
	if w.status >= 400 {
		c.failure = strings.ToValidUTF8(fmt.Sprintf("HTTP %d: %s", w.status, w.whyNot), "\uFFFD")
	}
	return answered
}

// line takes one line out of the input, without its end.
func (w *httpWire) line(c *client) ([]byte, bool, error) {
	input := c.input[c.from:c.to]
	end := bytes.IndexByte(input, '\n')
	if end < 0 {
		if len(input) > headLimit {
			return nil, false, fmt.Errorf("a line of more than %d bytes: not HTTP", headLimit)
		}
		return nil, false, nil
	}
	c.from += end + 1
	return bytes.TrimSuffix(input[:end], []byte("\r")), true, nil
}

func (w *httpWire) receive(c *client) (event, error) {
	if !c.busy || !c.sent {
		return nothing, fmt.Errorf("an answer that nobody asked for")
	}
	for {
		switch w.phase {
		case inHead:
			input := c.input[c.from:c.to]
			end := bytes.Index(input, []byte("\r\n\r\n"))
			if end < 0 {
				if len(input) > headLimit {
					return nothing, fmt.Errorf("headers of more than %d bytes", headLimit)
				}
				return nothing, nil
			}
			c.from += end + 4
			if err := w.parse(input[:end]); err != nil {
				return nothing, err
			}
			if w.status < 200 { // to be followed by the answer
				w.phase = inHead
				continue
			}
			if w.phase == inBody && w.left == 0 {
				return w.finish(c), nil
			}
		case inBody, inChunk, untilClosed:
			part := c.input[c.from:c.to]
			if w.phase != untilClosed {
				part = part[:min(int64(len(part)), w.left)]
				w.left -= int64(len(part))
			}
			c.from += len(part)
			if w.status >= 400 {
				w.whyNot = append(w.whyNot, part[:min(len(part), whyNotBytes-len(w.whyNot))]...)
			} else {
				c.body(part)
			}
			if w.phase == untilClosed || w.left > 0 {
				return nothing, nil
			}
			if w.phase == inBody {
				return w.finish(c), nil
			}
			w.phase = inChunkEnd
		case inChunkEnd, inChunkSize, inTrailer:
			line, whole, err := w.line(c)
			if !whole {
				return nothing, err
			}
			switch w.phase {
			case inChunkEnd:
				w.phase = inChunkSize
			case inTrailer:
				if len(line) == 0 {
					return w.finish(c), nil
				}
			default:
				size, _, _ := bytes.Cut(line, []byte(";"))
				w.left, err = strconv.ParseInt(string(bytes.TrimSpace(size)), 16, 64)
				if err != nil || w.left < 0 {
					return nothing, fmt.Errorf("a chunk without a size")
				}
				w.phase = inChunk
				if w.left == 0 {
					w.phase = inTrailer
				}
			}
		}
	}
}

var (
	contentLength    = []byte("Content-Length")
	transferEncoding = []byte("Transfer-Encoding")
	connection       = []byte("Connection")
)

// parse reads the status line and the headers, and decides where the body ends.
func (w *httpWire) parse(head []byte) error {
	first, rest, _ := bytes.Cut(head, []byte("\r\n"))
	if len(first) < 12 || !bytes.HasPrefix(first, []byte("HTTP/1.")) {
		return fmt.Errorf("not an answer of HTTP/1")
	}
	var err error
	if w.status, err = strconv.Atoi(string(first[9:12])); err != nil || w.status < 100 {
		return fmt.Errorf("an answer of HTTP/1 without a status")
	}
	w.closing, w.chunked = first[7] == '0', false
	length := int64(-1)
	for len(rest) > 0 {
		var line []byte
		line, rest, _ = bytes.Cut(rest, []byte("\r\n"))
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case bytes.EqualFold(name, contentLength):
			length = 0
			for _, digit := range value {
				if digit < '0' || digit > '9' || length > 1<<50 {
					return fmt.Errorf("Content-Length is not a number")
				}
				length = 10*length + int64(digit-'0')
			}
		case bytes.EqualFold(name, transferEncoding):
			w.chunked = bytes.EqualFold(value, []byte("chunked"))
		case bytes.EqualFold(name, connection):
			w.closing = bytes.EqualFold(value, []byte("close")) || w.closing && !bytes.EqualFold(value, []byte("keep-alive"))
		}
	}
	switch {
	case w.status == 204 || w.status == 304:
		w.phase, w.left = inBody, 0
	case w.chunked:
		w.phase = inChunkSize
	case length >= 0:
		w.phase, w.left = inBody, length
	default:
		w.phase, w.closing = untilClosed, true
	}
	return nil
}
