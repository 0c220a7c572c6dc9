package main

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"os"
)

const (
	clientLongPassword   = 1 << 0
	clientLongFlag       = 1 << 2
	clientConnectWithDB  = 1 << 3
	clientProtocol41     = 1 << 9
	clientTransactions   = 1 << 13
	clientSSL            = 1 << 11
	clientSecure         = 1 << 15
	clientMultiResults   = 1 << 17
	clientPluginAuth     = 1 << 19
	moreResults          = 8
	comQuery             = 3
	comPrepare           = 22
	comExecute           = 23
	utf8mb4              = 45
	mysqlPacketMax       = 1<<24 - 1
	mysqlHead            = 4
	nativePassword       = "mysql_native_password"
	cachingSha2Password  = "caching_sha2_password"
	mysqlShortPacketSize = 9
	mysqlSaltBytes       = 20
	mysqlKeyBytes        = 1024 // of a server's RSA key, at most
)

// mysqlWire speaks MySQL's text and binary protocols: statements in, the packets that answer them out.
type mysqlWire struct {
	transport *transport
	password  string

	sealed     bool // it goes on under TLS
	setup      []setup
	statements []uint32 // ids that the server gave to what was prepared
	phase      mysqlPhase
	plugin     string
	salt       []byte
	wantsKey   bool
	sequence   byte

	state             replyState
	columns           uint64
	inside            bool // a packet is under way, or
	left              int  // so much of it is missing
	longer, continued bool
	head              []byte // its first bytes, as far as they decide something
	size              int
	keep              bool
}

type setup struct {
	command byte
	text    string
}

type mysqlPhase int

const (
	inGreeting mysqlPhase = iota
	inLogin
	inSetup
	inReplies
)

type replyState int

const (
	first replyState = iota
	columnPackets
	columnsEnd
	rowPackets
	prepared
)

func newMySQL(t *transport) (*mysqlWire, error) {
	w := &mysqlWire{transport: t}
	if t.PasswordEnv != "" {
		var given bool
		if w.password, given = os.LookupEnv(t.PasswordEnv); !given {
			return nil, fmt.Errorf("the environment has no %s, where the password shall be", t.PasswordEnv)
		}
	}
	return w, nil
}

func (w *mysqlWire) open(c *client) bool {
	w.phase, w.statements, w.inside, w.continued, w.sealed, w.wantsKey = inGreeting, nil, false, false, false, false
	w.setup = w.setup[:0]
	for _, text := range w.transport.Init {
		w.setup = append(w.setup, setup{comQuery, text})
	}
	for _, text := range w.transport.Prepare {
		w.setup = append(w.setup, setup{comPrepare, text})
	}
	return false
}

func packet(to []byte, sequence byte, parts ...[]byte) []byte {
	size := 0
	for _, part := range parts {
		size += len(part)
	}
	to = append(to, byte(size), byte(size>>8), byte(size>>16), sequence)
	for _, part := range parts {
		to = append(to, part...)
	}
	return to
}

func (w *mysqlWire) send(c *client, request []byte) {
	w.state, w.columns = first, 0
	if !w.transport.Raw {
		w.command(c, comQuery, request)
		return
	}
	at := len(c.output)
	c.output = append(c.output, request...)
	if sent := c.output[at:]; len(sent) >= 9 && sent[4] == comExecute {
		if index := binary.LittleEndian.Uint32(sent[5:]); int(index) < len(w.statements) {
			binary.LittleEndian.PutUint32(sent[5:], w.statements[index])
		}
	}
}

// command appends a command, in several packets if it is too long for one.
func (w *mysqlWire) command(c *client, command byte, text []byte) {
	if len(text)+1 < mysqlPacketMax {
		size := len(text) + 1
		c.output = append(c.output, byte(size), byte(size>>8), byte(size>>16), 0, command)
		c.output = append(c.output, text...)
		return
	}
	whole := append([]byte{command}, text...)
	for sequence := byte(0); ; sequence++ {
		part := whole[:min(len(whole), mysqlPacketMax)]
		c.output = packet(c.output, sequence, part)
		whole = whole[len(part):]
		if len(part) < mysqlPacketMax {
			return
		}
	}
}

func (w *mysqlWire) cancel(c *client) bool { return false }

func (w *mysqlWire) reusable() bool { return true }

func (w *mysqlWire) ended(c *client) (event, error) { return nothing, errClosed }

// headWanted is how much of a packet is looked at: all of it before the first request, later what tells its kind.
const headWanted = 512

func (w *mysqlWire) receive(c *client) (event, error) {
	for {
		if !w.inside {
			input := c.input[c.from:c.to]
			if len(input) < mysqlHead {
				return nothing, nil
			}
			w.left = int(input[0]) | int(input[1])<<8 | int(input[2])<<16
			w.sequence = input[3]
			w.longer = w.left == mysqlPacketMax // it goes on in the next one
			if !w.continued {
				w.head, w.size = w.head[:0], w.left
			}
			w.inside = true
			c.from += mysqlHead
			w.keep = w.phase == inReplies && c.busy && c.sent
			if w.keep {
				c.body(input[:mysqlHead])
			}
			if w.size == 0 {
				return nothing, fmt.Errorf("an empty packet")
			}
		}
		part := c.input[c.from:c.to]
		part = part[:min(len(part), w.left)]
		wanted := headWanted
		if w.phase != inReplies {
			wanted = 1 << 16
		}
		if !w.continued {
			w.head = append(w.head, part[:min(len(part), max(0, wanted-len(w.head)))]...)
		}
		if w.keep {
			c.body(part)
		}
		c.from += len(part)
		if w.left -= len(part); w.left > 0 {
			return nothing, nil
		}
		w.inside = false
		if w.continued = w.longer; w.continued {
			continue
		}
		found, err := w.packet(c)
		if found != nothing || err != nil {
			return found, err
		}
	}
}

func (w *mysqlWire) packet(c *client) (event, error) {
	switch w.phase {
	case inGreeting:
		return w.greet(c)
	case inLogin:
		return w.login(c)
	}
	ended, failure, err := w.reply()
	if err != nil || !ended {
		return nothing, err
	}
	if w.phase == inSetup {
		if failure != "" {
			return nothing, fmt.Errorf("%q failed: %s", w.setup[0].text, failure)
		}
		w.setup = w.setup[1:]
		return w.next(c), nil
	}
	c.failure = failure
	return answered, nil
}

// next goes on setting the connection up; with nothing left to be done, it is open.
func (w *mysqlWire) next(c *client) event {
	if len(w.setup) == 0 {
		w.phase = inReplies
		return opened
	}
	w.phase, w.state = inSetup, first
	if w.setup[0].command == comPrepare {
		w.state = prepared
		w.columns = 0
	}
	w.command(c, w.setup[0].command, []byte(w.setup[0].text))
	return nothing
}

func mysqlError(packet []byte) string {
	if len(packet) < 3 {
		return "MySQL error"
	}
	text := packet[3:]
	if len(text) >= 6 && text[0] == '#' {
		text = text[6:]
	}
	return fmt.Sprintf("MySQL error %d: %s", binary.LittleEndian.Uint16(packet[1:]), bytes.ToValidUTF8(text, []byte("?")))
}

// reply follows the packets of an answer, and says when it has ended and how.
func (w *mysqlWire) reply() (bool, string, error) {
	kind := w.head[0]
	if kind == 0xff && w.state != columnPackets {
		return true, mysqlError(w.head), nil
	}
	end := kind == 0xfe && w.size < mysqlShortPacketSize
	switch w.state {
	case first:
		switch kind {
		case 0x00:
			return w.okay(w.head), "", nil
		case 0xfb:
			return true, "", fmt.Errorf("the server asks for a local file")
		}
		columns, _, ok := lengthEncoded(w.head)
		if !ok || columns == 0 {
			return true, "", fmt.Errorf("not an answer of MySQL")
		}
		w.columns, w.state = columns, columnPackets
	case columnPackets:
		if w.columns--; w.columns == 0 {
			w.state = columnsEnd
		}
	case columnsEnd:
		if !end {
			return true, "", fmt.Errorf("columns without an end")
		}
		w.state = rowPackets
	case rowPackets:
		if !end {
			return false, "", nil
		}
		if len(w.head) >= 5 && binary.LittleEndian.Uint16(w.head[3:])&moreResults != 0 {
			w.state = first
			return false, "", nil
		}
		return true, "", nil
	case prepared:
		if w.columns == 0 {
			if kind != 0 || len(w.head) < 12 {
				return true, "", fmt.Errorf("not an answer to a prepared statement")
			}
			w.statements = append(w.statements, binary.LittleEndian.Uint32(w.head[1:]))
			columns, parameters := uint64(binary.LittleEndian.Uint16(w.head[5:])), uint64(binary.LittleEndian.Uint16(w.head[7:]))
			for _, count := range []uint64{columns, parameters} {
				if count > 0 {
					w.columns += count + 1
				}
			}
			return w.columns == 0, "", nil
		}
		w.columns--
		return w.columns == 0, "", nil
	}
	return false, "", nil
}

// okay reads an OK packet's status: whether it is the last result.
func (w *mysqlWire) okay(packet []byte) bool {
	rest := packet[1:]
	for range 2 {
		_, size, ok := lengthEncoded(rest)
		if !ok {
			return true
		}
		rest = rest[size:]
	}
	return len(rest) < 2 || binary.LittleEndian.Uint16(rest)&moreResults == 0
}

func lengthEncoded(from []byte) (uint64, int, bool) {
	if len(from) == 0 {
		return 0, 0, false
	}
	size := map[byte]int{0xfc: 2, 0xfd: 3, 0xfe: 8}[from[0]]
	if size == 0 {
		return uint64(from[0]), 1, from[0] < 0xfb
	}
	if len(from) < 1+size {
		return 0, 0, false
	}
	var wide [8]byte
	copy(wide[:], from[1:1+size])
	return binary.LittleEndian.Uint64(wide[:]), 1 + size, true
}

// greet answers the server's greeting (protocol 10): with who we are, or first with the wish for TLS.
func (w *mysqlWire) greet(c *client) (event, error) {
	g := w.head
	if g[0] == 0xff {
		return nothing, fmt.Errorf("%s", mysqlError(g))
	}
	end := bytes.IndexByte(g, 0)
	if g[0] != 10 || end < 0 || len(g) < end+1+4+8+1+2 {
		return nothing, fmt.Errorf("not a greeting of MySQL")
	}
	rest := g[end+5:]
	w.salt = append([]byte{}, rest[:8]...)
	w.plugin = nativePassword
	if rest = rest[9:]; len(rest) > 18 {
		rest = rest[18:] // flags, character set, status, flags, length of the salt, and what is reserved
		w.salt = append(w.salt, rest[:min(12, len(rest))]...)
		if rest = rest[min(13, len(rest)):]; len(rest) > 0 {
			name, _, _ := bytes.Cut(rest, []byte{0})
			w.plugin = string(name)
		}
	}
	if w.plugin != nativePassword && w.plugin != cachingSha2Password {
		w.plugin = nativePassword
	}
	if err := w.salted(); err != nil {
		return nothing, err
	}
	if w.transport.TLS != nil {
		if binary.LittleEndian.Uint16(g[end+14:])&clientSSL == 0 {
			return nothing, fmt.Errorf("TLS: the server does not offer it")
		}
		c.output = packet(c.output, w.sequence+1, w.hello())
		w.sequence++
		return upgrade, nil
	}
	w.introduce(c)
	return nothing, nil
}

// salted refuses a salt that would not hide what is mixed with it.
func (w *mysqlWire) salted() error {
	if len(w.salt) != mysqlSaltBytes {
		return fmt.Errorf("the server's salt for the login has %d bytes, not %d", len(w.salt), mysqlSaltBytes)
	}
	return nil
}

// hello is what both the wish for TLS and the login begin with.
func (w *mysqlWire) hello() []byte {
	flags := uint32(clientLongPassword | clientLongFlag | clientProtocol41 | clientTransactions | clientSecure |
		clientMultiResults | clientPluginAuth)
	if w.transport.Database != "" {
		flags |= clientConnectWithDB
	}
	if w.transport.TLS != nil {
		flags |= clientSSL
	}
	hello := binary.LittleEndian.AppendUint32(nil, flags)
	hello = binary.LittleEndian.AppendUint32(hello, 1<<24)
	hello = append(hello, utf8mb4)
	return append(hello, make([]byte, 23)...)
}

// introduce says who we are.
func (w *mysqlWire) introduce(c *client) {
	hello := append(append(w.hello(), w.transport.User...), 0)
	proof := w.proof()
	hello = append(append(hello, byte(len(proof))), proof...)
	if w.transport.Database != "" {
		hello = append(append(hello, w.transport.Database...), 0)
	}
	hello = append(append(hello, w.plugin...), 0)
	c.output = packet(c.output, w.sequence+1, hello)
	w.phase = inLogin
}

func (w *mysqlWire) secured(c *client) {
	w.sealed = true
	w.introduce(c)
}

// proof shows that we know the password, in the manner of the plugin that the server chose.
func (w *mysqlWire) proof() []byte {
	if w.password == "" {
		return nil
	}
	if w.plugin == cachingSha2Password {
		one := sha256.Sum256([]byte(w.password))
		two := sha256.Sum256(one[:])
		three := sha256.Sum256(append(two[:], w.salt...))
		return exclusive(one[:], three[:])
	}
	one := sha1.Sum([]byte(w.password))
	two := sha1.Sum(one[:])
	three := sha1.Sum(append(append([]byte{}, w.salt...), two[:]...))
	return exclusive(one[:], three[:])
}

func exclusive(a, b []byte) []byte {
	out := make([]byte, len(a))
	for i := range a {
		out[i] = a[i] ^ b[i%len(b)]
	}
	return out
}

func (w *mysqlWire) login(c *client) (event, error) {
	p := w.head
	switch p[0] {
	case 0x00:
		return w.next(c), nil
	case 0xff:
		return nothing, fmt.Errorf("%s", mysqlError(p))
	case 0xfe: // another plugin
		name, salt, _ := bytes.Cut(p[1:], []byte{0})
		w.plugin, w.salt = string(name), bytes.TrimSuffix(append([]byte{}, salt...), []byte{0})
		if w.plugin != nativePassword && w.plugin != cachingSha2Password {
			return nothing, fmt.Errorf("the server asks for the login %s, which the driver does not know", w.plugin)
		}
		if err := w.salted(); err != nil {
			return nothing, err
		}
		w.wantsKey = false
		c.output = packet(c.output, w.sequence+1, w.proof())
		return nothing, nil
	case 0x01:
		if w.plugin != cachingSha2Password {
			break
		}
		if w.wantsKey {
			w.wantsKey = false
			return nothing, w.encrypt(c, p[1:])
		}
		if len(p) == 2 && p[1] == 3 { // the server remembers the password
			return nothing, nil
		}
		if len(p) == 2 && p[1] == 4 && w.sealed { // it does not: it wants to be told, which nobody else can read
			c.output = packet(c.output, w.sequence+1, append([]byte(w.password), 0))
			return nothing, nil
		}
		if len(p) == 2 && p[1] == 4 { // the same, under its key
			w.wantsKey = true
			c.output = packet(c.output, w.sequence+1, []byte{2})
			return nothing, nil
		}
	}
	return nothing, fmt.Errorf("a login that the driver does not know")
}

func (w *mysqlWire) encrypt(c *client, key []byte) error {
	found, _ := pem.Decode(key)
	if found == nil {
		return fmt.Errorf("the server sent no key for the password")
	}
	public, err := x509.ParsePKIXPublicKey(found.Bytes)
	if err != nil {
		return fmt.Errorf("the server's key: %w", err)
	}
	of, ok := public.(*rsa.PublicKey)
	if !ok || of.Size() > mysqlKeyBytes {
		return fmt.Errorf("the server's key is none of RSA, or too long")
	}
	hidden, err := rsa.EncryptOAEP(sha1.New(), rand.Reader, of, exclusive(append([]byte(w.password), 0), w.salt), nil)
	if err != nil {
		return err
	}
	c.output = packet(c.output, w.sequence+1, hidden)
	return nil
}
