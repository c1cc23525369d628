package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/cmd/internal/cni"
	"github.com/allocnet/allocnet/cmd/internal/server/api"
	"github.com/allocnet/allocnet/cmd/internal/server/settings"
	"github.com/allocnet/allocnet/configurator"
)

// daemonOf is the variable that makes the test binary a daemon; its value is the file
// of settings.
const daemonOf = "ALLOCNET_CNI_TEST_DAEMON"

// serveDaemon runs the part of the daemon that the plugin uses. It prints on stdout when
// it listens and which requests it has served.
func serveDaemon(file string) error {
	s, err := settings.Source{File: file}.Load()
	if err != nil {
		return err
	}
	libcni.CacheDir = filepath.Join(s.StateDir, "cni-cache")
	c, err := configurator.New(s.Configurator())
	if err != nil {
		return err
	}
	service := cni.New(cni.Options{
		Backend: func() allocnet.Service { return c },
		Ready:   func(ctx context.Context, _ configurator.Allocation) error { return c.Ready(ctx) },
	})
	_ = os.Remove(s.Socket.Path)
	l, err := net.Listen("unix", s.Socket.Path)
	if err != nil {
		return err
	}
	fmt.Println("listens")
	served := api.New(api.Options{
		Service: func() allocnet.Service { return c },
		CNI: func(ctx context.Context, r cni.Request) cni.Response {
			response := service.Serve(ctx, r)
			code := uint(0)
			if response.Error != nil {
				code = response.Error.Code
			}
			fmt.Printf("%s %s %d\n", r.Env.Command, r.Env.ContainerID, code)
			return response
		},
		Metrics: http.NotFoundHandler(),
	})
	server := served.Server()
	handler := server.Handler
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(w, r)
		fmt.Println(handled)
	})
	return server.Serve(served.Listener(l))
}

// handled is the line that the daemon prints after each request, also after one that it
// did not begin.
const handled = "handled"

// daemon is a running daemon process.
type daemon struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines chan string
	done  chan struct{} // one value per handled request
}

func (w *workspace) startDaemon() *daemon {
	w.t.Helper()
	d := &daemon{t: w.t, cmd: exec.Command("/proc/self/exe"), lines: make(chan string, 100), done: make(chan struct{}, 100)}
	d.cmd.Env = append(os.Environ(), daemonOf+"="+w.path("allocnetd.hcl"))
	d.cmd.Stderr = os.Stderr
	out, err := d.cmd.StdoutPipe()
	require.NoError(w.t, err)
	require.NoError(w.t, d.cmd.Start())
	go func() {
		for scan := bufio.NewScanner(out); scan.Scan(); {
			if scan.Text() == handled {
				d.done <- struct{}{}
			} else {
				d.lines <- scan.Text()
			}
		}
	}()
	d.prints("listens")
	w.t.Cleanup(d.kill)
	return d
}

const soon = 20 * time.Second

// prints waits for the next line of the daemon.
func (d *daemon) prints(want string) {
	d.t.Helper()
	select {
	case line := <-d.lines:
		require.Equal(d.t, want, line)
	case <-time.After(soon):
		require.FailNow(d.t, "the daemon does not print "+want)
	}
}

// handled waits until the daemon has handled one more request.
func (d *daemon) handled() {
	d.t.Helper()
	select {
	case <-d.done:
	case <-time.After(soon):
		require.FailNow(d.t, "the daemon does not end the request")
	}
}

func (d *daemon) kill() {
	if d.cmd.ProcessState != nil {
		return
	}
	_ = d.cmd.Process.Kill()
	_ = d.cmd.Wait()
}

// stop suspends the daemon.
func (d *daemon) stop() {
	d.t.Helper()
	require.NoError(d.t, d.cmd.Process.Signal(unix.SIGSTOP))
	require.Eventually(d.t, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.cmd.Process.Pid))
		require.NoError(d.t, err)
		var pid int
		var name, state string
		_, err = fmt.Sscan(string(stat), &pid, &name, &state)
		return err == nil && state == "T"
	}, 10*time.Second, time.Millisecond)
}

// resume continues a suspended daemon.
func (d *daemon) resume() {
	d.t.Helper()
	require.NoError(d.t, d.cmd.Process.Signal(unix.SIGCONT))
}
