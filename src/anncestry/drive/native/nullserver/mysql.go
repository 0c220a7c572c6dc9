package main

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
)

// MySQL: a login by mysql_native_password, then queries (SET is done, anything else returns one row of one column) and
// prepared statements, whose ids start at 7.

type mysqlConn struct {
	conn     net.Conn
	in       *bufio.Reader
	out      []byte
	sequence byte
}

// read is a connection of which some is read already.
type read struct {
	net.Conn
	in io.Reader
}

func (r read) Read(into []byte) (int, error) { return r.in.Read(into) }

func (m *mysqlConn) read() ([]byte, error) {
	var whole []byte
	for {
		var head [4]byte
		if _, err := io.ReadFull(m.in, head[:]); err != nil {
			return nil, err
		}
		size := int(head[0]) | int(head[1])<<8 | int(head[2])<<16
		m.sequence = head[3] + 1
		part := make([]byte, size)
		if _, err := io.ReadFull(m.in, part); err != nil {
			return nil, err
		}
		if whole = append(whole, part...); size < 1<<24-1 {
			return whole, nil
		}
	}
}

func (m *mysqlConn) add(parts ...[]byte) {
	whole := bytes.Join(parts, nil)
	for {
		part := whole[:min(len(whole), 1<<24-1)]
		m.out = append(m.out, byte(len(part)), byte(len(part)>>8), byte(len(part)>>16), m.sequence)
		m.out = append(m.out, part...)
		m.sequence++
		if whole = whole[len(part):]; len(part) < 1<<24-1 {
			return
		}
	}
}

func (m *mysqlConn) flush() error {
	_, err := m.conn.Write(m.out)
	m.out = m.out[:0]
	return err
}

func (m *mysqlConn) okay() { m.add([]byte{0, 0, 0, 2, 0, 0, 0}) }
func (m *mysqlConn) end()  { m.add([]byte{0xfe, 0, 0, 2, 0}) }
func (m *mysqlConn) fail(code uint16, text string) {
	m.add([]byte{0xff, byte(code), byte(code >> 8)}, []byte("#HY000"+text))
}

func lengthEncoded(value []byte) []byte {
	if len(value) < 251 {
		return append([]byte{byte(len(value))}, value...)
	}
	head := binary.LittleEndian.AppendUint64([]byte{0xfe}, uint64(len(value)))
	return append(head, value...)
}

func column() []byte {
	var d []byte
	for _, text := range []string{"def", "", "", "", "value", ""} {
		d = append(d, lengthEncoded([]byte(text))...)
	}
	return append(d, 0x0c, 63, 0, 0, 0, 0, 1, 0xfc, 0, 0, 0, 0, 0)
}

func mysql(s *server, conn net.Conn) error {
	m := &mysqlConn{conn: conn, in: bufio.NewReaderSize(conn, inputBytes)}
	salt := []byte("12345678abcdefghijkl")
	flags := uint32(1<<0 | 1<<2 | 1<<3 | 1<<9 | 1<<13 | 1<<15 | 1<<17 | 1<<19)
	if s.tls != nil {
		flags |= 1 << 11
	}
	greeting := append([]byte{10}, "8.0-null\x00\x01\x00\x00\x00"...)
	greeting = append(append(greeting, salt[:8]...), 0)
	greeting = binary.LittleEndian.AppendUint16(greeting, uint16(flags))
	greeting = append(greeting, 45, 2, 0)
	greeting = binary.LittleEndian.AppendUint16(greeting, uint16(flags>>16))
	greeting = append(append(greeting, 21), make([]byte, 10)...)
	greeting = append(append(append(greeting, salt[8:]...), 0), "mysql_native_password\x00"...)
	m.add(greeting)
	if err := m.flush(); err != nil {
		return err
	}
	hello, err := m.read()
	if err != nil {
		return err
	}
	if s.tls != nil && len(hello) == 32 { // nothing but the wish for TLS
		m.conn = tls.Server(read{conn, m.in}, s.tls)
		m.in = bufio.NewReaderSize(m.conn, inputBytes)
		if hello, err = m.read(); err != nil {
			return err
		}
	}
	if s.Password != "" && !bytes.Contains(hello, proof(os.Getenv(s.Password), salt)) {
		m.fail(1045, "Access denied")
		return m.flush()
	}
	m.okay()
	if err := m.flush(); err != nil {
		return err
	}
	statements := uint32(6)
	for {
		command, err := m.read()
		if err != nil {
			return err
		}
		text := command[1:]
		switch {
		case command[0] == 1: // COM_QUIT
			return errDone
		case command[0] == 22: // COM_STMT_PREPARE: no parameters, one column
			statements++
			m.add(binary.LittleEndian.AppendUint32([]byte{0}, statements), []byte{1, 0, 0, 0, 0, 0, 0})
			m.add(column())
			m.end()
		case command[0] == 3 && strings.HasPrefix(strings.ToUpper(string(text[:min(4, len(text))])), "SET "):
			m.okay()
		case command[0] == 3 || command[0] == 23:
			binaryRow := command[0] == 23
			if binaryRow && binary.LittleEndian.Uint32(text) != statements {
				m.fail(1243, fmt.Sprintf("Unknown statement %d", binary.LittleEndian.Uint32(text)))
				break
			}
			answer := s.answer(text)
			what := s.judge()
			if what == drop || what == reset {
				return errDone
			}
			if what == fail {
				m.fail(1105, "the disk is on fire")
				break
			}
			m.add([]byte{1})
			m.add(column())
			m.end()
			if binaryRow {
				m.add([]byte{0, 0}, lengthEncoded(answer))
			} else {
				m.add(lengthEncoded(answer))
			}
			m.end()
			if err := m.flush(); err != nil || what == leave {
				return errDone
			}
		default:
			m.fail(1047, "Unknown command")
		}
		if err := m.flush(); err != nil {
			return err
		}
	}
}

func proof(password string, salt []byte) []byte {
	one := sha1.Sum([]byte(password))
	two := sha1.Sum(one[:])
	three := sha1.Sum(append(append([]byte{}, salt...), two[:]...))
	for i := range three {
		three[i] ^= one[i]
	}
	return three[:]
}
