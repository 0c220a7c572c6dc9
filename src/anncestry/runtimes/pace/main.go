// A file system of one file, the image below a loop device, whose reads one clock paces for all requests.
//
//	pace IMAGE FOLDER
//
// IMAGE appears in FOLDER under its own name, and FOLDER's mount ends with the last who has it open. A line of standard
// input, "BYTES_PER_S READS_PER_S LATENCY_NS" with 0 for no limit, sets what is read in a second from then on, and how much
// later each read ends; "ok" answers each, and says once before that all is ready.
package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

const (
	folderNode, imageNode = fuse.FUSE_ROOT_ID, 2
	requestBytes          = 1 << 20 // the largest that the kernel asks for: no read of the device becomes two
	backgroundRequests    = 1024    // more than a loop device has at once: reads wait for the clock, not for a place
	attributesS           = 3600    // nobody else changes the image
)

// pacing is the clock: each read has its time on it, after those of all reads before it.
type pacing struct {
	sync.Mutex
	nextNs                        float64
	perByteNs, readsNs, latencyNs float64
}

func (p *pacing) limit(bytesPerS, readsPerS, latencyNs float64) {
	p.Lock()
	defer p.Unlock()
	p.perByteNs, p.readsNs, p.latencyNs = 0, 0, latencyNs
	if bytesPerS > 0 {
		p.perByteNs = 1e9 / bytesPerS
	}
	if readsPerS > 0 {
		p.readsNs = 1e9 / readsPerS
	}
}

// due is when a read of so many bytes may end, in nanoseconds of CLOCK_MONOTONIC. Latency keeps no other read waiting.
func (p *pacing) due(bytes int) int64 {
	p.Lock()
	defer p.Unlock()
	p.nextNs = max(float64(nowNs()), p.nextNs) + max(float64(bytes)*p.perByteNs, p.readsNs)
	return int64(p.nextNs + p.latencyNs)
}

func nowNs() int64 {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &at); err != nil {
		panic(err)
	}
	return at.Nano()
}

// sleepUntil is exact to some microseconds; Go's own timers may be a millisecond late.
func sleepUntil(due int64) {
	if due <= nowNs() {
		return
	}
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // of this thread: the kernel may else be 50 µs late
	at := unix.NsecToTimespec(due)
	for unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &at, nil) == unix.EINTR {
	}
}

type paced struct {
	fuse.RawFileSystem
	name  string
	image int
	pacing
}

func (p *paced) attributes(node uint64, out *fuse.Attr) fuse.Status {
	out.Ino, out.Mode, out.Nlink = node, unix.S_IFDIR|0o700, 2
	if node == imageNode {
		var of unix.Stat_t
		if err := unix.Fstat(p.image, &of); err != nil {
			return fuse.ToStatus(err)
		}
		out.Mode, out.Nlink, out.Size, out.Blocks = unix.S_IFREG|0o600, 1, uint64(of.Size), uint64(of.Blocks)
	}
	return fuse.OK
}

func (p *paced) Lookup(_ <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if in.NodeId != folderNode || name != p.name {
		return fuse.ENOENT
	}
	out.NodeId, out.EntryValid, out.AttrValid = imageNode, attributesS, attributesS
	return p.attributes(imageNode, &out.Attr)
}

func (p *paced) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	out.AttrValid = attributesS
	return p.attributes(in.NodeId, &out.Attr)
}

func (p *paced) Read(_ <-chan struct{}, in *fuse.ReadIn, buffer []byte) (fuse.ReadResult, fuse.Status) {
	due := p.due(len(buffer))
	n, err := unix.Pread(p.image, buffer, int64(in.Offset))
	if err != nil {
		return nil, fuse.ToStatus(err)
	}
	sleepUntil(due)
	return fuse.ReadResultData(buffer[:n]), fuse.OK
}

func (p *paced) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	n, err := unix.Pwrite(p.image, data, int64(in.Offset))
	return uint32(max(n, 0)), fuse.ToStatus(err)
}

func (p *paced) Fsync(_ <-chan struct{}, _ *fuse.FsyncIn) fuse.Status {
	return fuse.ToStatus(unix.Fdatasync(p.image))
}

// Fallocate frees what the file system on the device discards.
func (p *paced) Fallocate(_ <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	return fuse.ToStatus(unix.Fallocate(p.image, in.Mode, int64(in.Offset), int64(in.Length)))
}

func serve(image, folder string) error {
	// What is written below this file system must not wait for memory that only its own writes would free, whichever
	// thread writes it (later threads inherit it).
	_, _, _ = syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_IO_FLUSHER, 1, 0, 0, 0, 0)
	file, err := unix.Open(image, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", image, err)
	}
	of := &paced{RawFileSystem: fuse.NewDefaultRawFileSystem(), name: filepath.Base(image), image: file}
	server, err := fuse.NewServer(of, folder, &fuse.MountOptions{
		DirectMountStrict: true,
		FsName:            "anncestry",
		Name:              "pace",
		MaxWrite:          requestBytes,
		MaxBackground:     backgroundRequests,
		DisableXAttrs:     true,
		// Else the device has one read at a time here, however many it was asked for.
		ExtraCapabilities: fuse.CAP_ASYNC_DIO,
	})
	if err != nil {
		return fmt.Errorf("can't mount on %s: %w", folder, err)
	}
	go of.obey()
	server.Serve()
	return nil
}

func (p *paced) obey() {
	fmt.Println("ok")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var bytesPerS, readsPerS, latencyNs float64
		if _, err := fmt.Sscan(lines.Text(), &bytesPerS, &readsPerS, &latencyNs); err != nil {
			fmt.Printf("%q: %v\n", lines.Text(), err)
			continue
		}
		p.limit(bytesPerS, readsPerS, latencyNs)
		fmt.Println("ok")
	}
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: pace IMAGE FOLDER")
		os.Exit(2)
	}
	if err := serve(os.Args[1], os.Args[2]); err != nil {
		fmt.Println(err) // where "ok" is awaited
		os.Exit(1)
	}
}
