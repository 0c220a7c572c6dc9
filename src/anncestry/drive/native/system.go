package main

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// clock reads CLOCK_MONOTONIC through the vDSO: time.Since subtracts readings of that clock, and costs no system call.
var clock = func() func() int64 {
	base := time.Now()
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &at); err != nil {
		panic(err)
	}
	// The two readings are some 100 ns apart, the same for every time that is ever told.
	offset := at.Nano() - int64(time.Since(base))
	return func() int64 { return offset + int64(time.Since(base)) }
}()

// address is a socket address, resolved once.
type address struct {
	family   int
	sockaddr unix.Sockaddr
}

func resolve(target string) (address, error) {
	found, err := net.ResolveTCPAddr("tcp", target)
	if err != nil {
		return address{}, err
	}
	if four := found.IP.To4(); four != nil || found.IP == nil {
		inet := &unix.SockaddrInet4{Port: found.Port, Addr: [4]byte{127, 0, 0, 1}}
		if four != nil {
			copy(inet.Addr[:], four)
		}
		return address{unix.AF_INET, inet}, nil
	}
	inet := &unix.SockaddrInet6{Port: found.Port}
	copy(inet.Addr[:], found.IP.To16())
	return address{unix.AF_INET6, inet}, nil
}

// dial starts to connect; the socket becomes writable when that is decided.
func (a address) dial() (int, error) {
	fd, err := unix.Socket(a.family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		unix.Close(fd)
		return -1, err
	}
	if err := unix.Connect(fd, a.sockaddr); err != nil && err != unix.EINPROGRESS {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// read and write never block, so the scheduler need not hear of them.

func read(fd int, into []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&into[0])), uintptr(len(into)))
	return int(n), errno
}

func write(fd int, from []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&from[0])), uintptr(len(from)),
		unix.MSG_NOSIGNAL, 0, 0)
	return int(n), errno
}

// longestWait bounds how long the rest of the program waits for a thread that sleeps with its P.
const longestWait = 50_000_000

// poller waits for sockets, with a timeout in nanoseconds.
type poller struct {
	fd     int
	events [128]unix.EpollEvent
	coarse bool // the kernel (before 5.11) takes milliseconds only
}

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	return &poller{fd: fd}, nil
}

func (p *poller) add(fd int, tag int32, events uint32) error {
	return unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: tag})
}

func (p *poller) change(fd int, tag int32, events uint32) error {
	return unix.EpollCtl(p.fd, unix.EPOLL_CTL_MOD, fd, &unix.EpollEvent{Events: events, Fd: tag})
}

// wait returns the events that are there, at the latest after timeout. It may return early, with none.
func (p *poller) wait(timeout int64) ([]unix.EpollEvent, error) {
	timeout = min(timeout, longestWait)
	var n uintptr
	var errno unix.Errno
	if !p.coarse {
		limit := unix.NsecToTimespec(timeout)
		// Raw: the scheduler must not learn that this thread sleeps. It would take its P away, look after it every
		// 20 µs, and let it queue for a P when it wakes. What else has to run does so within some 10 ms.
		n, _, errno = unix.RawSyscall6(unix.SYS_EPOLL_PWAIT2, uintptr(p.fd), uintptr(unsafe.Pointer(&p.events[0])),
			uintptr(len(p.events)), uintptr(unsafe.Pointer(&limit)), 0, 0)
		p.coarse = errno == unix.ENOSYS
	}
	if p.coarse {
		m, err := unix.EpollWait(p.fd, p.events[:], int(timeout/1e6)) // the rest is spent asking again
		if err != nil && err != unix.EINTR {
			return nil, fmt.Errorf("epoll_wait: %w", err)
		}
		return p.events[:max(m, 0)], nil
	}
	if errno == unix.EINTR {
		return nil, nil
	}
	if errno != 0 {
		return nil, fmt.Errorf("epoll_pwait2: %w", errno)
	}
	return p.events[:n], nil
}

// exactTimers asks for timers of this thread without the usual slack of 50 µs.
func exactTimers() {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
}

// rawSleepUntil sleeps without the scheduler's knowledge, as poller.wait does.
func rawSleepUntil(at int64) {
	until := unix.NsecToTimespec(at)
	unix.RawSyscall6(unix.SYS_CLOCK_NANOSLEEP, unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, uintptr(unsafe.Pointer(&until)),
		0, 0, 0)
}

func sleepUntil(at int64) {
	until := unix.NsecToTimespec(at)
	for unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &until, nil) == unix.EINTR {
	}
}

func cpuSeconds() float64 {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

// peakRSS is in MiB. (That of getrusage begins with what whoever started this process had.)
func peakRSS() float64 {
	text, _ := os.ReadFile("/proc/self/status")
	_, after, _ := strings.Cut(string(text), "\nVmHWM:")
	peak, _, _ := strings.Cut(strings.TrimSpace(after), " ")
	kib, _ := strconv.ParseFloat(peak, 64)
	return kib / 1024
}
