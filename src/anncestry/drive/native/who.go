package main

import (
	"encoding/json"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// host is what a driver says of the machine that it runs on, where that is not the one of whoever asks.
type host struct {
	CPUModel  string  `json:"cpu_model"`
	Cores     int     `json:"cores"`
	MemoryGiB float64 `json:"memory_gib"`
	Kernel    string  `json:"kernel"`
	BootID    string  `json:"boot_id"`
	Sources   string  `json:"sources"`
	RTTUs     float64 `json:"rtt_us"`
}

const handshakes = 15

// who tells of this machine, and the median time of a TCP handshake with the target.
func who(target string) ([]byte, error) {
	h := host{Cores: runtime.NumCPU(), Sources: version}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				h.CPUModel = strings.TrimSpace(value)
				break
			}
		}
	}
	if text, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		h.BootID = strings.TrimSpace(string(text))
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		h.MemoryGiB = float64(info.Totalram) * float64(info.Unit) / (1 << 30)
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err == nil {
		h.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	var took []int64
	for range handshakes {
		before := clock()
		connection, err := net.DialTimeout("tcp", target, 10*time.Second)
		if err != nil {
			return nil, err
		}
		took = append(took, clock()-before)
		connection.Close()
	}
	slices.Sort(took)
	h.RTTUs = float64(took[len(took)/2]) / 1e3
	return json.Marshal(h)
}
