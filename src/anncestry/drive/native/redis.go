package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

const (
	redisLineBytes = 64 << 10
	redisNoticed   = 512     // of an error, as far as it is told
	redisParts     = 1 << 31 // of an answer; a bulk is of less than 2^40 bytes
)

// redisWire speaks Redis' protocol RESP 2: a command in, the one value that answers it out. A request is what ECHO is to
// return, or with `raw` a whole command.
type redisWire struct {
	user, password string
	raw            bool

	login   bool  // AUTH is to be answered
	missing int64 // values of the answer under way
	left    int64 // bytes of the bulk under way, with its line break
	begun   bool
}

func newRedis(t *transport) (*redisWire, error) {
	w := &redisWire{user: t.User, raw: t.Raw}
	if t.PasswordEnv != "" {
		var given bool
		if w.password, given = os.LookupEnv(t.PasswordEnv); !given {
			return nil, fmt.Errorf("the environment has no %s, where the password shall be", t.PasswordEnv)
		}
	}
	return w, nil
}

// redisCommand appends a command of these parts.
func redisCommand(to []byte, parts ...[]byte) []byte {
	to = append(strconv.AppendInt(append(to, '*'), int64(len(parts)), 10), "\r\n"...)
	for _, part := range parts {
		to = append(strconv.AppendInt(append(to, '$'), int64(len(part)), 10), "\r\n"...)
		to = append(append(to, part...), "\r\n"...)
	}
	return to
}

func (w *redisWire) open(c *client) bool {
	w.missing, w.left, w.begun, w.login = 1, 0, false, w.password != ""
	if w.login {
		parts := [][]byte{[]byte("AUTH"), []byte(w.user), []byte(w.password)}
		if w.user == "" {
			parts = [][]byte{parts[0], parts[2]}
		}
		c.output = redisCommand(c.output, parts...)
	}
	return !w.login
}

func (w *redisWire) send(c *client, request []byte) {
	if w.raw {
		c.output = append(c.output, request...)
		return
	}
	c.output = redisCommand(c.output, []byte("ECHO"), request)
}

func (w *redisWire) cancel(c *client) bool { return false }

func (w *redisWire) reusable() bool { return true }

func (w *redisWire) ended(c *client) (event, error) { return nothing, errClosed }

func (w *redisWire) receive(c *client) (event, error) {
	if !w.login && (!c.busy || !c.sent) {
		return nothing, fmt.Errorf("an answer that nobody asked for")
	}
	start := c.from
	found, err := w.consume(c)
	if !w.login && c.failure == "" {
		c.body(c.input[start:c.from])
	}
	if found != nothing {
		w.missing, w.begun, w.login = 1, false, false
	}
	return found, err
}

// consume goes on with the answer as far as it has come.
func (w *redisWire) consume(c *client) (event, error) {
	for w.missing > 0 {
		input := c.input[c.from:c.to]
		if w.left > 0 {
			taken := min(w.left, int64(len(input)))
			c.from += int(taken)
			if w.left -= taken; w.left > 0 {
				return nothing, nil
			}
			if c.input[c.from-1] != '\n' {
				return nothing, fmt.Errorf("not an answer of Redis: a text is longer than it says")
			}
			w.missing--
			continue
		}
		end := bytes.IndexByte(input, '\n')
		if end < 0 && len(input) <= redisLineBytes {
			return nothing, nil
		}
		if end < 2 || input[end-1] != '\r' {
			return nothing, fmt.Errorf("not an answer of Redis")
		}
		c.from += end + 1
		if err := w.line(c, input[0], input[1:end-1]); err != nil {
			return nothing, err
		}
	}
	if w.login {
		return opened, nil
	}
	return answered, nil
}

// line takes a value's first line, which is the whole of it for all but texts and lists.
func (w *redisWire) line(c *client, kind byte, rest []byte) error {
	first := !w.begun
	w.begun = true
	w.missing--
	switch kind {
	case '+', ':':
		if w.login && kind == ':' {
			return fmt.Errorf("not an answer of Redis to a login")
		}
		return nil
	case '-':
		failure := strings.ToValidUTF8("Redis: "+string(rest[:min(len(rest), redisNoticed)]), "?")
		if w.login {
			return fmt.Errorf("%s", failure)
		}
		if first { // one inside of a list is its part
			c.failure = failure
		}
		return nil
	case '$', '*':
		size, err := strconv.ParseInt(string(rest), 10, 64)
		if err != nil || size < -1 || size >= 1<<40 || w.login {
			return fmt.Errorf("not an answer of Redis: a size of %q", rest[:min(len(rest), 40)])
		}
		switch {
		case size < 0: // none
		case kind == '$':
			w.left = size + 2
			w.missing++
		default:
			w.missing += size
		}
		if w.missing > redisParts {
			return fmt.Errorf("not an answer of Redis: it has more than %d parts", redisParts)
		}
		return nil
	}
	return fmt.Errorf("not an answer of Redis: it begins with %q", kind)
}
