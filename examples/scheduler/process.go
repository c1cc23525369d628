package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/allocnet/allocnet/sandbox"
)

// task is the process of a task: it answers every request with its ID and PID.
func task(id string) error {
	return http.ListenAndServe(":"+os.Getenv("ALLOCNET_PORT_HTTP"), http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, id, os.Getpid()) }))
}

// start starts the process of a task in its network namespace.
func start(id, netns string, env []string) error {
	ns, err := sandbox.Open(netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	cmd := exec.Command("/proc/self/exe", "task", id)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it outlives the scheduler
	// A process begins in the network namespace of the thread that starts it.
	if err := ns.Do(cmd.Start); err != nil {
		return err
	}
	go cmd.Wait() // reaps it; reconcile notices that it has ended
	return nil
}

// stop kills the processes in a network namespace.
func stop(netns string) error {
	list, err := processes(netns)
	if err != nil {
		return err
	}
	for _, p := range list {
		if err := p.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
	}
	return nil
}

// processes returns the processes in a network namespace.
func processes(netns string) (list []*os.Process, err error) {
	wanted, err := os.Stat(netns)
	if os.IsNotExist(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	inside := func(dir string) bool {
		its, err := os.Stat(dir + "/ns/net")
		return err == nil && os.SameFile(wanted, its)
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		if !inside(dir) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(dir))
		p, err := os.FindProcess(pid)
		// Another process may have got the PID until p was found, but not after that.
		if err == nil && inside(dir) {
			list = append(list, p)
		}
	}
	return list, err
}
