// delay LISTEN TARGET MICROSECONDS PROGRAM ARGUMENT…
//
// runs a program and stands before one of its ports: what the program answers is passed on after the delay.
package main

import (
	"log"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
)

func main() {
	listen, target, command := os.Args[1], os.Args[2], os.Args[4:]
	microseconds, err := strconv.ParseInt(os.Args[3], 10, 64)
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
	go accept(listener, target, microseconds*1000)
	_ = program.Wait()
	os.Exit(max(program.ProcessState.ExitCode(), 0))
}

func accept(listener net.Listener, target string, nanoseconds int64) {
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
		go pass(near, far, 0)
		go pass(far, near, nanoseconds)
	}
}

// pass waits by the kernel's timer, as Go's own would round the wait up to a millisecond.
func pass(from, to net.Conn, nanoseconds int64) {
	buffer := make([]byte, 256<<10)
	for {
		count, err := from.Read(buffer)
		if count > 0 {
			if wait := syscall.NsecToTimespec(nanoseconds); nanoseconds > 0 {
				_ = syscall.Nanosleep(&wait, nil)
			}
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
