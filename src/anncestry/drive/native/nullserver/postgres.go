package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
)

// PostgreSQL: everybody is let in; SET is done, any other simple query returns one row of one column, and so does each
// Execute of the extended protocol, whose answer is the last Bind.

type postgresConn struct {
	conn net.Conn
	in   *bufio.Reader
	out  []byte
}

func (p *postgresConn) read(kind bool) (byte, []byte, error) {
	head := make([]byte, 5)
	if !kind {
		head = head[1:]
	}
	if _, err := io.ReadFull(p.in, head); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[len(head)-4:])
	if size < 4 || size > 1<<30 {
		return 0, nil, fmt.Errorf("a message of %d bytes", size)
	}
	body := make([]byte, size-4)
	_, err := io.ReadFull(p.in, body)
	return head[0], body, err
}

func (p *postgresConn) add(kind byte, parts ...[]byte) {
	body := bytes.Join(parts, nil)
	p.out = binary.BigEndian.AppendUint32(append(p.out, kind), uint32(len(body)+4))
	p.out = append(p.out, body...)
}

func (p *postgresConn) flush() error {
	_, err := p.conn.Write(p.out)
	p.out = p.out[:0]
	return err
}

func (p *postgresConn) row(value []byte) {
	p.add('D', []byte{0, 1}, binary.BigEndian.AppendUint32(nil, uint32(len(value))), value)
	p.add('C', []byte("SELECT 1\x00"))
}

func (p *postgresConn) ready() { p.add('Z', []byte{'I'}) }

func postgres(s *server, conn net.Conn) error {
	p := &postgresConn{conn: conn, in: bufio.NewReaderSize(conn, inputBytes)}
	_, hello, err := p.read(false)
	if err == nil && len(hello) == 4 { // nothing but the wish for TLS
		answer := []byte{'N'}
		if s.tls != nil {
			answer[0] = 'S'
		}
		if _, err = conn.Write(answer); err == nil && s.tls != nil {
			p.conn = tls.Server(conn, s.tls)
			p.in.Reset(p.conn)
		}
		if err == nil {
			_, _, err = p.read(false)
		}
	}
	if err != nil {
		return err
	}
	p.add('R', []byte{0, 0, 0, 0})
	p.add('S', []byte("server_version\x0018.0\x00"))
	p.ready()
	if err := p.flush(); err != nil {
		return err
	}
	var bound []byte
	var end fate
	// serve answers one request, and says whether the connection goes on.
	serve := func(request []byte) bool {
		answer := s.answer(request)
		if end = s.judge(); end == drop || end == reset {
			return false
		}
		if end == fail {
			p.add('E', []byte("SERROR\x00C58030\x00Mthe disk is on fire\x00\x00"))
		} else {
			p.row(answer)
		}
		return true
	}
	for {
		kind, body, err := p.read(true)
		if err != nil {
			return err
		}
		switch kind {
		case 'X':
			return errDone
		case 'P':
			p.add('1')
		case 'B':
			bound = body
			p.add('2')
		case 'E':
			if !serve(bound) {
				return errDone
			}
		case 'Q':
			text := bytes.TrimSuffix(body, []byte{0})
			if strings.HasPrefix(strings.ToUpper(string(text[:min(4, len(text))])), "SET ") {
				p.add('C', []byte("SET\x00"))
			} else {
				p.add('T', []byte{0, 1}, []byte("value\x00"), make([]byte, 18))
				if !serve(text) {
					return errDone
				}
			}
			p.ready()
		case 'S':
			p.ready()
		default:
			p.add('E', []byte("SERROR\x00C08P01\x00Munknown message\x00\x00"))
		}
		if kind == 'Q' || kind == 'S' {
			if err := p.flush(); err != nil || end == leave {
				return errDone
			}
		}
	}
}
