// delay LISTEN TARGET PERCENT PROGRAM ARGUMENT…
//
// runs a program and stands before one of its ports: each answer is passed on after a wait of so many percent of the time
// that the program took for it.
package main

import (
	"log"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	listen, target, command := os.Args[1], os.Args[2], os.Args[4:]
	percent, err := strconv.ParseInt(os.Args[3], 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		log.Fatal(err)
	}
	// The signal goes to the whole group: the program ends by it, and this with the program.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM)
	runtime.LockOSThread() // the program is to end with this thread
	program := exec.Command(command[0], command[1:]...)
	program.Stdout, program.Stderr = os.Stdout, os.Stderr
	program.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := program.Start(); err != nil {
		log.Fatal(err)
	}
	go accept(listener, target, percent)
	_ = program.Wait()
	os.Exit(max(program.ProcessState.ExitCode(), 0))
}

func accept(listener net.Listener, target string, percent int64) {
	for {
		near, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		far, err := net.Dial("tcp", target)
		if err != nil { // the program does not listen yet
			near.Close()
			continue
		}
		var asked atomic.Int64
		go pass(near, far, func() { asked.Store(time.Now().UnixNano()) })
		var of, waited int64
		go pass(far, near, func() {
			if last := asked.Load(); of != last {
				of, waited = last, 0
			}
			// A window's update may come before the answer: all waits of a request together are the share.
			if due := (time.Now().UnixNano()-of-waited)*percent/100 - waited; of > 0 && due > 0 {
				wait(due)
				waited += due
			}
		})
	}
}

// wait is by the kernel's timer, as Go's own would round up to a millisecond.
func wait(nanoseconds int64) {
	duration := syscall.NsecToTimespec(nanoseconds)
	_ = syscall.Nanosleep(&duration, nil)
}

// pass calls before each write.
func pass(from, to net.Conn, before func()) {
	buffer := make([]byte, 256<<10)
	for {
		count, err := from.Read(buffer)
		if count > 0 {
			before()
			if _, err := to.Write(buffer[:count]); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	from.Close()
	to.Close()
}
