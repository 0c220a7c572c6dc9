package main

import (
	"os"
	"sync"
)

const (
	memoryBytes = 256 << 20
	// Each client has two blocks; those of all clients together take at most blocksBytes, and no fewer than the smallest.
	blocksBytes   = 64 << 20
	blockSmallest = 4 << 10
	blockLargest  = 256 << 10
)

// spool keeps what is to be written, in memory as far as there is room, so that no file is touched while the clock
// runs. What exceeds it is written meanwhile, oldest first, by a goroutine of its own.
type spool struct {
	mutex   sync.Mutex
	full    []block
	free    [][]byte
	block   int // bytes of each
	held    int
	spilled int64
	wake    chan struct{}
	stopped chan struct{}
	once    sync.Once
	err     error
}

// block is a part of a file, which is open only while it is written: clients may be more than half of the files that
// a process may have open.
type block struct {
	path   string
	offset uint64
	data   []byte
}

func (b block) write() error {
	if len(b.data) == 0 {
		return nil
	}
	file, err := os.OpenFile(b.path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteAt(b.data, int64(b.offset))
	if closing := file.Close(); err == nil {
		err = closing
	}
	return err
}

func newSpool(clients int) *spool {
	s := &spool{wake: make(chan struct{}, 1), stopped: make(chan struct{}),
		block: min(blockLargest, max(blockSmallest, blocksBytes/(2*clients)))}
	go func() {
		defer close(s.stopped)
		for range s.wake {
			s.drain(memoryBytes / 2)
		}
	}()
	return s
}

// stop returns when nothing is written meanwhile any more: nothing is put from then on.
func (s *spool) stop() {
	s.once.Do(func() { close(s.wake) })
	<-s.stopped
}

// put takes a full block, and gives an empty one for it.
func (s *spool) put(full block) []byte {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.full = append(s.full, full)
	s.held += len(full.data)
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
	return make([]byte, 0, s.block)
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
		err := oldest.write()
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
	path   string
	data   []byte // the last of what was appended
	offset uint64 // the bytes that were
	wiped  []span
}

type span struct{ from, bytes uint64 }

func newStream(s *spool, path string) (*stream, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return &stream{spool: s, path: path, data: make([]byte, 0, s.block)}, file.Close()
}

func (s *stream) append(part []byte) {
	for {
		size := min(len(part), cap(s.data)-len(s.data))
		s.data = append(s.data, part[:size]...)
		s.offset += uint64(size)
		if part = part[size:]; len(part) == 0 {
			return
		}
		s.data = s.spool.put(s.last())
	}
}

func (s *stream) last() block {
	return block{s.path, s.offset - uint64(len(s.data)), s.data}
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
	err := s.last().write()
	zeros := make([]byte, min(blockLargest, len(s.wiped)*blockLargest))
	for _, part := range s.wiped {
		for done := uint64(0); done < part.bytes && err == nil; done += blockLargest {
			err = block{s.path, part.from + done, zeros[:min(blockLargest, part.bytes-done)]}.write()
		}
	}
	return err
}
