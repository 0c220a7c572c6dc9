package main

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"os"
	"strings"
	"time"
)

// secrecy is what a job says of TLS: which CAs are trusted, those of the system if none are named.
type secrecy struct {
	CAFile string `json:"ca_file"`
}

// secureFacts are what a connection came to; done.json says them.
type secureFacts struct {
	Protocol    string `json:"protocol"`
	Cipher      string `json:"cipher"`
	Certificate string `json:"certificate_sha256"`
}

// upgrader is a wire that begins in the clear and asks for TLS by the event upgrade; secured goes on under it.
type upgrader interface {
	secured(c *client)
}

// config verifies the server's certificate for the host of target. There is no way not to.
func (s *secrecy) config(kind, target string) (*tls.Config, error) {
	host, _, err := net.SplitHostPort(target)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12, DynamicRecordSizingDisabled: true}
	switch kind {
	case "grpc":
		config.NextProtos = []string{"h2"}
	case "http":
		config.NextProtos = []string{"http/1.1"}
	}
	if s.CAFile == "" {
		return config, nil
	}
	text, err := os.ReadFile(s.CAFile)
	if err != nil {
		return nil, err
	}
	config.RootCAs = x509.NewCertPool()
	if !config.RootCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate (PEM)", s.CAFile)
	}
	return config, nil
}

// secure is TLS on a connection: crypto/tls works on memory, and the loop moves bytes between that and the socket.
type secure struct {
	conn  *tls.Conn
	pipe  *memory
	shake func() (struct{}, bool) // goes on with the handshake until it waits for bytes; false when it has ended
	stop  func()
	open  bool
	err   error
}

func newSecure(config *tls.Config) *secure {
	s := &secure{pipe: &memory{}}
	s.conn = tls.Client(s.pipe, config)
	// A coroutine of the loop's own thread: a handshake can't be broken off and taken up again as reading can.
	s.shake, s.stop = iter.Pull(func(yield func(struct{}) bool) {
		s.pipe.wait = func() bool { return yield(struct{}{}) }
		s.err = s.conn.Handshake()
		s.pipe.wait = nil
	})
	return s
}

// handshake goes on with what has come, and says whether it is done.
func (s *secure) handshake(kind string) (bool, error) {
	if _, waiting := s.shake(); waiting {
		return false, nil
	}
	if s.err != nil {
		return false, errors.New(refusal(s.err))
	}
	if kind == "grpc" && s.conn.ConnectionState().NegotiatedProtocol != "h2" {
		return false, errors.New("TLS: the server does not offer HTTP/2 (ALPN h2), which gRPC needs")
	}
	s.open = true
	return true, nil
}

// read decrypts what has come, as far as there is room: 0 without an error if there is nothing (more) yet.
func (s *secure) read(into []byte) (int, error) {
	read := 0
	for read < len(into) {
		n, err := s.conn.Read(into[read:])
		read += n
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			return read, nil
		case read > 0:
			return read, nil // the error comes again
		default:
			return 0, err
		}
	}
	return read, nil
}

func (s *secure) facts() secureFacts {
	state := s.conn.ConnectionState()
	sum := sha256.Sum256(state.PeerCertificates[0].Raw)
	return secureFacts{strings.Replace(tls.VersionName(state.Version), " ", "v", 1), // as OpenSSL writes it
		tls.CipherSuiteName(state.CipherSuite), hex.EncodeToString(sum[:])}
}

// refusal says in a sentence why a handshake failed. (Names in a certificate may tell what the endpoint is.)
func refusal(err error) string {
	var host x509.HostnameError
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &host):
		return "TLS: the server's certificate is for another host"
	case errors.As(err, &unknown):
		return "TLS: no trusted CA signed the server's certificate"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "TLS: the server's certificate has expired, or is not valid yet"
	case errors.As(err, &record):
		return "TLS: the server does not speak TLS"
	}
	return "TLS: " + err.Error()
}

// memory is the connection that crypto/tls believes in.
type memory struct {
	in, out []byte
	from    int
	wait    func() bool // during the handshake: until there is more, or false if there never will be
}

func (m *memory) Read(into []byte) (int, error) {
	for m.from == len(m.in) {
		if m.wait == nil {
			return 0, os.ErrDeadlineExceeded // which crypto/tls takes for what can be tried again
		}
		if !m.wait() {
			return 0, io.ErrUnexpectedEOF
		}
	}
	n := copy(into, m.in[m.from:])
	if m.from += n; m.from == len(m.in) {
		m.in, m.from = m.in[:0], 0
	}
	return n, nil
}

func (m *memory) Write(from []byte) (int, error) {
	m.out = append(m.out, from...)
	return len(from), nil
}

func (m *memory) Close() error                     { return nil }
func (m *memory) LocalAddr() net.Addr              { return nil }
func (m *memory) RemoteAddr() net.Addr             { return nil }
func (m *memory) SetDeadline(time.Time) error      { return nil }
func (m *memory) SetReadDeadline(time.Time) error  { return nil }
func (m *memory) SetWriteDeadline(time.Time) error { return nil }
