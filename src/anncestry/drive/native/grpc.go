package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/http2/hpack"
)

const (
	frameData         = 0
	frameHeaders      = 1
	frameReset        = 3
	frameSettings     = 4
	framePush         = 5
	framePing         = 6
	frameGoAway       = 7
	frameWindowUpdate = 8
	frameContinuation = 9

	flagEndStream  = 1
	flagAck        = 1
	flagEndHeaders = 4
	flagPadded     = 8
	flagPriority   = 32

	frameHead  = 9
	frameLimit = 16384
	windowMax  = 1<<31 - 1
	none       = ^uint32(0) // the stream before the first
)

const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

var grpcCodes = []string{"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
	"ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE",
	"UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"}

// grpcWire speaks gRPC's unary calls over HTTP/2: one stream at a time, message bytes in and out.
type grpcWire struct {
	fields  []hpack.HeaderField
	encoder *hpack.Encoder
	encoded bytes.Buffer
	again   []byte // the header block of every request but the first: the server's table knows all of it
	decoder *hpack.Decoder
	known   map[string]header // blocks that only point into the table; valid until it changes
	found   header

	settled    bool // the server's settings have come
	stream     uint32
	last       uint32 // the server takes no later stream, after GOAWAY
	leaving    bool
	window     int64 // what the server takes on the connection
	initial    int64
	onStream   int64 // and on the stream
	frameMax   int
	whole      []byte // a request that is more than one frame, or for which there was no window
	rest       []byte // of it, what is still to be sent
	consumed   int64  // of the connection's window that we gave, and did not give back
	prefix     [5]byte
	prefixed   int
	missing    int64
	good       bool // the answer's headers are those of an answer
	headers    []byte
	continuing bool
	endStream  bool
	forStream  uint32
	settings   [6]byte
}

type header struct {
	status  string // of HTTP
	code    string // of gRPC
	message string
}

func newGRPC(t *transport, target string, timeoutS float64) *grpcWire {
	w, scheme := &grpcWire{}, "http"
	if t.TLS != nil {
		scheme = "https"
	}
	w.fields = []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: scheme},
		{Name: ":path", Value: t.Method},
		{Name: ":authority", Value: target},
		{Name: "te", Value: "trailers"},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "user-agent", Value: "anncestry/" + strconv.Itoa(protocolVersion)},
		{Name: "grpc-timeout", Value: strconv.FormatInt(max(1, min(int64(timeoutS*1e3), 99_999_999)), 10) + "m"},
	}
	for name, value := range t.Headers {
		w.fields = append(w.fields, hpack.HeaderField{Name: strings.ToLower(name), Value: value})
	}
	if t.Credentials != nil {
		w.fields = append(w.fields, hpack.HeaderField{Name: "authorization", Value: t.Credentials.header()})
	}
	return w
}

func (w *grpcWire) open(c *client) bool {
	fields := w.fields
	*w = grpcWire{fields: fields, stream: none, last: windowMax, window: 65535, initial: 65535, frameMax: frameLimit,
		known: map[string]header{}}
	w.encoder = hpack.NewEncoder(&w.encoded)
	w.decoder = hpack.NewDecoder(4096, func(field hpack.HeaderField) {
		switch field.Name {
		case ":status":
			w.found.status = field.Value
		case "grpc-status":
			w.found.code = field.Value
		case "grpc-message":
			w.found.message = field.Value
		}
	})
	c.output = append(c.output, preface...)
	c.output = frame(c.output, 12, frameSettings, 0, 0)
	c.output = append(c.output, 0, 2, 0, 0, 0, 0) // no pushes
	c.output = append(c.output, 0, 4)             // the window of a stream: no reply ever waits for us
	c.output = binary.BigEndian.AppendUint32(c.output, windowMax)
	c.output = frame(c.output, 4, frameWindowUpdate, 0, 0)
	c.output = binary.BigEndian.AppendUint32(c.output, windowMax-65535)
	return false
}

func frame(to []byte, length int, kind, flags byte, stream uint32) []byte {
	return append(to, byte(length>>16), byte(length>>8), byte(length), kind, flags,
		byte(stream>>24), byte(stream>>16), byte(stream>>8), byte(stream))
}

func (w *grpcWire) reusable() bool {
	return !w.leaving && (w.stream == none || w.stream < windowMax-2)
}

func (w *grpcWire) send(c *client, request []byte) {
	block := w.again
	if block == nil { // the first fills the server's table, all others point into it
		block = w.encode()
		w.again = pointers(w.encode())
	}
	w.stream += 2
	w.onStream, w.prefixed, w.missing, w.good = w.initial, 0, 0, false
	c.output = frame(c.output, len(block), frameHeaders, flagEndHeaders, w.stream)
	c.output = append(c.output, block...)
	whole := len(request) + 5
	if int64(whole) <= min(w.window, w.onStream) && whole <= w.frameMax {
		c.output = frame(c.output, whole, frameData, flagEndStream, w.stream)
		c.output = append(c.output, 0)
		c.output = binary.BigEndian.AppendUint32(c.output, uint32(len(request)))
		c.output = append(c.output, request...)
		w.window -= int64(whole)
		w.onStream -= int64(whole)
		return
	}
	// In memory that is used again: what each request left behind would have to be collected while the clock runs.
	w.whole = binary.BigEndian.AppendUint32(append(w.whole[:0], 0), uint32(len(request)))
	w.whole = append(w.whole, request...)
	w.rest = w.whole
	w.more(c)
}

func (w *grpcWire) encode() []byte {
	w.encoded.Reset()
	for _, field := range w.fields {
		_ = w.encoder.WriteField(field)
	}
	return bytes.Clone(w.encoded.Bytes())
}

// pointers is a block that only points into the table, and so stays true; nil for one with a field that the table has
// no room for: to encode that changes the table each time.
func pointers(block []byte) []byte {
	for _, each := range block {
		if each < 128 {
			return nil
		}
	}
	return block
}

// more sends as much of the request as there is window for.
func (w *grpcWire) more(c *client) {
	for len(w.rest) > 0 {
		size := int(min(int64(len(w.rest)), int64(w.frameMax), w.window, w.onStream))
		if size <= 0 {
			return
		}
		var flags byte
		if size == len(w.rest) {
			flags = flagEndStream
		}
		c.output = frame(c.output, size, frameData, flags, w.stream)
		c.output = append(c.output, w.rest[:size]...)
		w.rest = w.rest[size:]
		w.window -= int64(size)
		w.onStream -= int64(size)
	}
}

func (w *grpcWire) cancel(c *client) bool {
	c.output = frame(c.output, 4, frameReset, 0, w.stream)
	c.output = binary.BigEndian.AppendUint32(c.output, 8)
	w.rest = nil
	return w.reusable()
}

func (w *grpcWire) ended(c *client) (event, error) {
	return nothing, errClosed
}

func (w *grpcWire) receive(c *client) (event, error) {
	for {
		input := c.input[c.from:c.to]
		if len(input) < frameHead {
			return nothing, nil
		}
		length := int(input[0])<<16 | int(input[1])<<8 | int(input[2])
		if length > frameLimit {
			return nothing, fmt.Errorf("a frame of %d bytes: not HTTP/2", length)
		}
		if len(input) < frameHead+length {
			return nothing, nil
		}
		kind, flags := input[3], input[4]
		stream := binary.BigEndian.Uint32(input[5:]) & windowMax
		payload := input[frameHead : frameHead+length]
		c.from += frameHead + length
		found, err := w.frame(c, kind, flags, stream, payload)
		if found != nothing || err != nil {
			return found, err
		}
	}
}

func (w *grpcWire) frame(c *client, kind, flags byte, stream uint32, payload []byte) (event, error) {
	if w.continuing && kind != frameContinuation {
		return nothing, fmt.Errorf("headers that are not continued")
	}
	switch kind {
	case frameData:
		w.credit(c, len(payload))
		part, err := unpadded(flags, payload)
		if err != nil || stream != w.stream || !c.busy {
			return nothing, err
		}
		if err := w.data(c, part); err != nil {
			return nothing, err
		}
		if flags&flagEndStream != 0 {
			return w.fail(c, "INTERNAL: an answer without a status"), nil
		}
	case frameHeaders:
		part, err := unpadded(flags, payload)
		if err != nil {
			return nothing, err
		}
		if flags&flagPriority != 0 {
			if len(part) < 5 {
				return nothing, fmt.Errorf("a frame that is too short")
			}
			part = part[5:]
		}
		w.endStream, w.forStream = flags&flagEndStream != 0, stream
		if flags&flagEndHeaders != 0 {
			return w.headerBlock(c, part)
		}
		w.headers, w.continuing = append(w.headers[:0], part...), true
	case frameContinuation:
		if !w.continuing || len(w.headers)+len(payload) > headLimit {
			return nothing, fmt.Errorf("a continuation of nothing, or without end")
		}
		w.headers = append(w.headers, payload...)
		if flags&flagEndHeaders != 0 {
			w.continuing = false
			return w.headerBlock(c, w.headers)
		}
	case frameReset:
		if len(payload) == 4 && stream == w.stream && c.busy {
			w.rest = nil
			return w.fail(c, fmt.Sprintf("UNAVAILABLE: the server reset the stream (HTTP/2 error %d)",
				binary.BigEndian.Uint32(payload))), nil
		}
	case frameSettings:
		return w.set(c, flags, payload)
	case framePing:
		if flags&flagAck == 0 && len(payload) == 8 {
			c.output = frame(c.output, 8, framePing, flagAck, 0)
			c.output = append(c.output, payload...)
		}
	case frameGoAway:
		if len(payload) < 8 {
			return nothing, fmt.Errorf("a frame that is too short")
		}
		w.leaving, w.last = true, binary.BigEndian.Uint32(payload)&windowMax
		if c.busy && (w.stream == none || w.stream > w.last) {
			return nothing, fmt.Errorf("the server goes away (HTTP/2 error %d)", binary.BigEndian.Uint32(payload[4:]))
		}
	case frameWindowUpdate:
		if len(payload) != 4 {
			return nothing, fmt.Errorf("a frame that is too short")
		}
		more := int64(binary.BigEndian.Uint32(payload) & windowMax)
		if stream == 0 {
			w.window += more
		} else if stream == w.stream {
			w.onStream += more
		}
		if max(w.window, w.onStream) > windowMax {
			return nothing, fmt.Errorf("a window larger than HTTP/2 has")
		}
		w.more(c)
	case framePush:
		return nothing, fmt.Errorf("a push, which was refused")
	}
	return nothing, nil
}

func unpadded(flags byte, payload []byte) ([]byte, error) {
	if flags&flagPadded == 0 {
		return payload, nil
	}
	if len(payload) == 0 || int(payload[0]) >= len(payload) {
		return nil, fmt.Errorf("a frame of nothing but padding")
	}
	return payload[1 : len(payload)-int(payload[0])], nil
}

// credit gives the connection's window back long before it is used up. (A stream's is as large as one can be.)
func (w *grpcWire) credit(c *client, size int) {
	if w.consumed += int64(size); w.consumed > windowMax/2 {
		c.output = frame(c.output, 4, frameWindowUpdate, 0, 0)
		c.output = binary.BigEndian.AppendUint32(c.output, uint32(w.consumed))
		w.consumed = 0
	}
}

func (w *grpcWire) data(c *client, part []byte) error {
	for w.prefixed < 5 && len(part) > 0 {
		w.prefix[w.prefixed] = part[0]
		w.prefixed++
		part = part[1:]
		if w.prefixed == 5 {
			if w.prefix[0] != 0 {
				return fmt.Errorf("a compressed message, which was not asked for")
			}
			w.missing = int64(binary.BigEndian.Uint32(w.prefix[1:]))
		}
	}
	if int64(len(part)) > w.missing {
		return fmt.Errorf("more than one message for a unary call")
	}
	w.missing -= int64(len(part))
	c.body(part)
	return nil
}

func (w *grpcWire) fail(c *client, text string) event {
	c.failure = text
	if len(w.rest) > 0 { // nobody waits for the rest of the request
		w.cancel(c)
	}
	return answered
}

// headerBlock reads a header block, and ends the call if it is its last.
func (w *grpcWire) headerBlock(c *client, part []byte) (event, error) {
	if err := w.decode(part); err != nil {
		return nothing, err
	}
	if w.forStream != w.stream || !c.busy {
		return nothing, nil
	}
	found := w.found
	if !w.good {
		if found.status != "200" {
			return w.fail(c, "UNAVAILABLE: HTTP status "+found.status), nil
		}
		w.good = true
	}
	if !w.endStream {
		return nothing, nil
	}
	w.rest = nil
	code, err := strconv.Atoi(found.code)
	if err != nil {
		return w.fail(c, "INTERNAL: an answer without a status"), nil
	}
	if code != 0 {
		name := strconv.Itoa(code)
		if code > 0 && code < len(grpcCodes) {
			name = grpcCodes[code]
		}
		message, err := url.PathUnescape(found.message)
		if err != nil {
			message = found.message
		}
		c.late = code == 4
		return w.fail(c, name+": "+message), nil
	}
	if w.prefixed < 5 || w.missing != 0 {
		return w.fail(c, "INTERNAL: an answer without its message"), nil
	}
	return answered, nil
}

// decode reads a header block into w.found. Blocks that only point into the table, as all but the first of a
// connection do, are read once.
func (w *grpcWire) decode(part []byte) error {
	points := true
	for _, b := range part {
		points = points && b >= 128
	}
	if points {
		if found, known := w.known[string(part)]; known {
			w.found = found
			return nil
		}
	} else {
		clear(w.known)
	}
	w.found = header{}
	if _, err := w.decoder.Write(part); err != nil {
		return err
	}
	if err := w.decoder.Close(); err != nil {
		return err
	}
	if points && len(w.known) < 64 {
		w.known[string(part)] = w.found
	}
	return nil
}

func (w *grpcWire) set(c *client, flags byte, payload []byte) (event, error) {
	if flags&flagAck != 0 {
		return nothing, nil
	}
	for ; len(payload) >= 6; payload = payload[6:] {
		value := binary.BigEndian.Uint32(payload[2:])
		switch binary.BigEndian.Uint16(payload) {
		case 1:
			w.encoder.SetMaxDynamicTableSizeLimit(value)
			w.again = nil
		case 4:
			if value > windowMax {
				return nothing, fmt.Errorf("a window larger than HTTP/2 has")
			}
			w.onStream += int64(value) - w.initial
			w.initial = int64(value)
		case 5:
			if value < frameLimit {
				return nothing, fmt.Errorf("frames of at most %d bytes: not HTTP/2", value)
			}
			w.frameMax = int(min(value, 1<<20))
		}
	}
	c.output = frame(c.output, 0, frameSettings, flagAck, 0)
	w.more(c)
	if !w.settled {
		w.settled = true
		return opened, nil
	}
	return nothing, nil
}
