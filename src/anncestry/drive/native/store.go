package main

import (
	"os"
	"sync"
)

const (
	blockBytes  = 256 << 10
	memoryBytes = 256 << 20
)

// spool keeps what is to be written, in memory as far as there is room, so that no file is touched while the clock
// runs. What exceeds it is written meanwhile, oldest first, by a goroutine of its own.
type spool struct {
	mutex   sync.Mutex
	full    []block
	free    [][]byte
	held    int
	spilled int64
	wake    chan struct{}
	err     error
}

type block struct {
	file *os.File
	data []byte
}

func newSpool() *spool {
	s := &spool{wake: make(chan struct{}, 1)}
	go func() {
		for range s.wake {
			s.drain(memoryBytes / 2)
		}
	}()
	return s
}

func (s *spool) put(file *os.File, data []byte) []byte {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.full = append(s.full, block{file, data})
	s.held += len(data)
	if s.held > memoryBytes {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	if n := len(s.free); n > 0 {
		fresh := s.free[n-1]
		s.free = s.free[:n-1]
		return fresh[:0]
	}
	return make([]byte, 0, blockBytes)
}

// drain writes the oldest blocks until at most limit bytes are held.
func (s *spool) drain(limit int) {
	for {
		s.mutex.Lock()
		if s.held <= limit || len(s.full) == 0 {
			s.mutex.Unlock()
			return
		}
		oldest := s.full[0]
		s.full = s.full[1:]
		s.mutex.Unlock()
		_, err := oldest.file.Write(oldest.data)
		s.mutex.Lock()
		s.held -= len(oldest.data)
		if limit > 0 {
			s.spilled += int64(len(oldest.data))
		}
		s.free = append(s.free, oldest.data)
		if err != nil && s.err == nil {
			s.err = err
		}
		s.mutex.Unlock()
	}
}

// stream is one file of one client, written by one thread.
type stream struct {
	spool  *spool
	file   *os.File
	data   []byte
	offset uint64
	wiped  []span
}

type span struct{ from, bytes uint64 }

func newStream(s *spool, path string) (*stream, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return &stream{spool: s, file: file, data: make([]byte, 0, blockBytes)}, nil
}

func (s *stream) append(part []byte) {
	s.offset += uint64(len(part))
	for {
		room := cap(s.data) - len(s.data)
		if len(part) <= room {
			s.data = append(s.data, part...)
			return
		}
		s.data = append(s.data, part[:room]...)
		part = part[room:]
		s.data = s.spool.put(s.file, s.data)
	}
}

// forget takes back what was appended from there on: a failed answer may hold what no file shall hold.
func (s *stream) forget(from uint64) {
	bytes := s.offset - from
	if bytes <= uint64(len(s.data)) {
		s.data, s.offset = s.data[:uint64(len(s.data))-bytes], from
	} else {
		s.wiped = append(s.wiped, span{from, bytes})
	}
}

// close writes the rest, and zeros over what was forgotten too late; the spool must have been drained.
func (s *stream) close() error {
	_, err := s.file.Write(s.data)
	zeros := make([]byte, min(blockBytes, len(s.wiped)*blockBytes))
	for _, part := range s.wiped {
		for done := uint64(0); done < part.bytes && err == nil; done += blockBytes {
			_, err = s.file.WriteAt(zeros[:min(blockBytes, part.bytes-done)], int64(part.from+done))
		}
	}
	if closing := s.file.Close(); err == nil {
		err = closing
	}
	return err
}
