package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
)

const (
	postgresVersion3  = 3 << 16
	postgresSSL       = 1234<<16 | 5679
	postgresHead      = 5
	postgresLargest   = 1 << 30
	postgresNoticed   = 2048 // of a message, as far as it is looked at; those of a login are shorter
	authOK            = 0
	authSASL          = 10
	authSASLContinue  = 11
	authSASLFinal     = 12
	parseWithoutTypes = "\x00\x00"
)

// postgresWire speaks PostgreSQL's protocol 3: messages in, the messages that answer them out, up to ReadyForQuery. A
// request is the text of a simple query, or with `raw` messages of the extended one that end with Sync. What is to be
// prepared gets the names s0, s1, …
type postgresWire struct {
	transport *transport
	password  string

	setup []setup
	phase postgresPhase
	login *scram
	known bool // the server let us in, and showed that it knows the password if we have one

	inside bool // a message is under way,
	left   int  // so much of it is missing,
	kind   byte
	head   []byte // and this is how it begins
	keep   bool
}

type postgresPhase int

const (
	pgUpgrade postgresPhase = iota
	pgLogin
	pgSetup
	pgReplies
)

func newPostgres(t *transport) (*postgresWire, error) {
	w := &postgresWire{transport: t}
	if t.PasswordEnv != "" {
		var given bool
		if w.password, given = os.LookupEnv(t.PasswordEnv); !given {
			return nil, fmt.Errorf("the environment has no %s, where the password shall be", t.PasswordEnv)
		}
	}
	return w, nil
}

// message appends one message: its kind, its length, its parts.
func message(to []byte, kind byte, parts ...[]byte) []byte {
	size := 4
	for _, part := range parts {
		size += len(part)
	}
	to = binary.BigEndian.AppendUint32(append(to, kind), uint32(size))
	for _, part := range parts {
		to = append(to, part...)
	}
	return to
}

func cString(text string) []byte { return append([]byte(text), 0) }

func (w *postgresWire) open(c *client) bool {
	w.inside, w.login, w.known = false, nil, false
	w.setup = w.setup[:0]
	for _, text := range w.transport.Init {
		w.setup = append(w.setup, setup{'Q', text})
	}
	for number, text := range w.transport.Prepare {
		if text == "" { // another job's
			continue
		}
		w.setup = append(w.setup, setup{'P', fmt.Sprintf("s%d\x00%s", number, text)})
	}
	if w.transport.TLS != nil {
		w.phase = pgUpgrade
		c.output = binary.BigEndian.AppendUint32(c.output, 8)
		c.output = binary.BigEndian.AppendUint32(c.output, postgresSSL)
		return false
	}
	w.introduce(c)
	return false
}

func (w *postgresWire) secured(c *client) { w.introduce(c) }

// introduce says who we are.
func (w *postgresWire) introduce(c *client) {
	w.phase = pgLogin
	var hello []byte
	for _, pair := range [][2]string{
		{"user", w.transport.User}, {"database", w.transport.Database}, {"application_name", "anncestry"},
	} {
		if pair[1] != "" {
			hello = append(append(hello, cString(pair[0])...), cString(pair[1])...)
		}
	}
	c.output = binary.BigEndian.AppendUint32(c.output, uint32(len(hello)+9))
	c.output = binary.BigEndian.AppendUint32(c.output, postgresVersion3)
	c.output = append(append(c.output, hello...), 0)
}

func (w *postgresWire) send(c *client, request []byte) {
	if w.transport.Raw {
		c.output = append(c.output, request...)
		return
	}
	c.output = message(c.output, 'Q', request, []byte{0})
}

func (w *postgresWire) cancel(c *client) bool { return false }

func (w *postgresWire) reusable() bool { return true }

func (w *postgresWire) ended(c *client) (event, error) {
	if c.busy && c.sent && c.failure != "" { // it said why
		return nothing, errors.New(c.failure)
	}
	return nothing, errClosed
}

func (w *postgresWire) receive(c *client) (event, error) {
	if w.phase == pgUpgrade {
		if c.input[c.from] != 'S' {
			return nothing, fmt.Errorf("TLS: the server does not offer it")
		}
		c.from++
		return upgrade, nil
	}
	for {
		if !w.inside {
			input := c.input[c.from:c.to]
			if len(input) < postgresHead {
				return nothing, nil
			}
			size := binary.BigEndian.Uint32(input[1:])
			if size < 4 || size > postgresLargest {
				return nothing, fmt.Errorf("not a message of PostgreSQL")
			}
			w.inside, w.kind, w.left, w.head = true, input[0], int(size)-4, w.head[:0]
			c.from += postgresHead
			w.keep = w.phase == pgReplies && c.busy && c.sent
			if w.keep {
				c.body(input[:postgresHead])
			}
		}
		part := c.input[c.from:c.to]
		part = part[:min(len(part), w.left)]
		if w.kind != 'D' {
			w.head = append(w.head, part[:min(len(part), max(0, postgresNoticed-len(w.head)))]...)
		}
		if w.keep {
			c.body(part)
		}
		c.from += len(part)
		if w.left -= len(part); w.left > 0 {
			return nothing, nil
		}
		w.inside = false
		found, err := w.message(c)
		if found != nothing || err != nil {
			return found, err
		}
	}
}

func (w *postgresWire) message(c *client) (event, error) {
	if w.kind == 'E' {
		failure := postgresError(w.head)
		switch {
		case w.phase == pgSetup:
			return nothing, fmt.Errorf("%q failed: %s", w.setup[0].text, failure)
		case w.phase == pgLogin || !c.busy || !c.sent:
			return nothing, fmt.Errorf("%s", failure)
		}
		c.failure = failure
		return nothing, nil // ReadyForQuery follows, or the connection ends
	}
	switch w.phase {
	case pgLogin:
		if w.kind == 'R' {
			return nothing, w.authenticate(c)
		}
		if w.kind == 'Z' && !w.known {
			return nothing, fmt.Errorf("the server is ready before a login")
		}
		if w.kind == 'Z' {
			return w.next(c), nil
		}
	case pgSetup:
		if w.kind == 'Z' {
			w.setup = w.setup[1:]
			return w.next(c), nil
		}
	case pgReplies:
		if w.kind == 'Z' && c.busy && c.sent {
			return answered, nil
		}
	}
	return nothing, nil
}

// next goes on setting the connection up; with nothing left to be done, it is open.
func (w *postgresWire) next(c *client) event {
	if len(w.setup) == 0 {
		w.phase = pgReplies
		return opened
	}
	w.phase = pgSetup
	if w.setup[0].command == 'P' {
		c.output = message(c.output, 'P', cString(w.setup[0].text), []byte(parseWithoutTypes))
		c.output = message(c.output, 'S')
	} else {
		c.output = message(c.output, 'Q', cString(w.setup[0].text))
	}
	return nothing
}

// postgresError is the severity, code and text of an ErrorResponse.
func postgresError(body []byte) string {
	fields := map[byte]string{}
	for _, field := range bytes.Split(body, []byte{0}) {
		if len(field) > 1 {
			fields[field[0]] = string(field[1:])
		}
	}
	return strings.ToValidUTF8(fmt.Sprintf("PostgreSQL %s %s: %s", fields['S'], fields['C'], fields['M']), "?")
}

func (w *postgresWire) authenticate(c *client) error {
	if len(w.head) < 4 {
		return fmt.Errorf("not a message of PostgreSQL")
	}
	body := w.head[4:]
	switch kind := binary.BigEndian.Uint32(w.head); {
	case kind == authOK:
		if w.password != "" && (w.login == nil || !w.login.done) {
			return fmt.Errorf("the server did not show that it knows the password (%s)", scramName)
		}
		w.known = true
		return nil
	case w.known:
		return fmt.Errorf("the server asks for another login after one")
	case kind == authSASL && w.login == nil:
		if w.password == "" {
			return fmt.Errorf("the server asks for a password, and the job names none")
		}
		if !bytes.Contains(append([]byte{0}, body...), []byte("\x00"+scramName+"\x00")) {
			return fmt.Errorf("the server asks for a login that the driver does not know (%q)", body)
		}
		w.login = newScram(w.password)
		first := w.login.first()
		size := binary.BigEndian.AppendUint32(nil, uint32(len(first)))
		c.output = message(c.output, 'p', cString(scramName), size, first)
		return nil
	case kind == authSASLContinue && w.login != nil:
		proof, err := w.login.proof(string(body))
		if err == nil {
			c.output = message(c.output, 'p', proof)
		}
		return err
	case kind == authSASLFinal && w.login != nil:
		return w.login.check(string(body))
	default:
		return fmt.Errorf("the server asks for login %d, which the driver does not know", kind)
	}
}
