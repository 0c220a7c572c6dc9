package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
)

// Redis: AUTH is checked if there is a password, and any other command returns one text: by echo its last part.

func redisLine(in *bufio.Reader, kind byte) (int, error) {
	line, err := in.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	size, err := strconv.Atoi(string(bytes.TrimSpace(line[1:])))
	if line[0] != kind || err != nil || size < 0 || size > 1<<30 {
		return 0, fmt.Errorf("not a command of Redis: %q", line[:min(len(line), 40)])
	}
	return size, nil
}

func redisCommand(in *bufio.Reader) ([][]byte, error) {
	count, err := redisLine(in, '*')
	parts := make([][]byte, 0, min(count, 64))
	for err == nil && len(parts) < count {
		var size int
		if size, err = redisLine(in, '$'); err == nil {
			part := make([]byte, size+2)
			_, err = io.ReadFull(in, part)
			parts = append(parts, part[:size])
		}
	}
	if err == nil && count == 0 {
		err = fmt.Errorf("a command without a name")
	}
	return parts, err
}

func redis(s *server, conn net.Conn) error {
	in := bufio.NewReaderSize(conn, inputBytes)
	var out []byte
	known := s.Password == ""
	for {
		parts, err := redisCommand(in)
		if err != nil {
			_, _ = conn.Write([]byte("-ERR Protocol error\r\n"))
			return err
		}
		last := parts[len(parts)-1]
		what := reply
		out = out[:0]
		if string(parts[0]) == "AUTH" {
			known = s.Password == "" || string(last) == os.Getenv(s.Password)
			if out = append(out, "+OK\r\n"...); !known {
				out = append(out[:0], "-WRONGPASS invalid username-password pair or user is disabled.\r\n"...)
			}
		} else if !known {
			out = append(out, "-NOAUTH Authentication required.\r\n"...)
		} else {
			answer := s.answer(last)
			switch what = s.judge(); what {
			case drop, reset:
				return errDone
			case fail:
				out = append(out, "-ERR the disk is on fire\r\n"...)
			default:
				out = append(strconv.AppendInt(append(out, '$'), int64(len(answer)), 10), "\r\n"...)
				out = append(append(out, answer...), "\r\n"...)
			}
		}
		if _, err := conn.Write(out); err != nil || what == leave {
			return errDone
		}
	}
}
