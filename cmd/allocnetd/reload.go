package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/client"
)

// reloadTime bounds the wait for a reload. It is below systemd's TimeoutStartSec of the unit.
const reloadTime = 50 * time.Second

func (a *app) newReload() *cobra.Command {
	return &cobra.Command{
		Use:   "reload PID",
		Short: "Have a running daemon read its settings again, and wait until they are active",
		Long: `Have the daemon with process number PID read its settings again, and wait until they
are active and the manager has written its file. Invalid settings, and a reload that the
daemon refuses, are an error, and leave the active settings in place. The output names
the settings that have changed, and need a restart of the daemon. The unit of systemd runs
this command for systemctl reload.`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("pass the number of the daemon's process, such as $MAINPID of systemd")}
			}
			pid, err := strconv.Atoi(args[0])
			if err != nil || pid <= 1 {
				return usageError{fmt.Errorf("%q is not the number of a process: pass that of the daemon", args[0])}
			}
			return a.reload(c.Context(), pid)
		},
	}
}

func (a *app) reload(ctx context.Context, pid int) error {
	next, err := loadSettings(a.source())
	if err != nil {
		return usageError{err}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, reloadTime, fmt.Errorf("no answer within %s", reloadTime))
	defer cancel()
	began := time.Now()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", next.Socket.Path)
	if err != nil {
		return fmt.Errorf("%w: if socket.path has changed, restart the daemon", err)
	}
	err = requireListener(conn, pid)
	_ = conn.Close()
	if err != nil {
		return err
	}
	daemon := client.New(client.Config{Socket: next.Socket.Path})
	defer daemon.Close()
	if err := syscall.Kill(pid, syscall.SIGHUP); err != nil {
		return fmt.Errorf("send SIGHUP to process %d: %w", pid, err)
	}
	for event, err := range daemon.Events(ctx, 1) { // from the oldest that the daemon has
		if err != nil {
			return fmt.Errorf("follow the reload: %w", err)
		}
		done, is := event.Data.(*client.Reload)
		if !is || event.Time.Before(began) {
			continue
		}
		if done.Error != "" {
			return errors.New(done.Error)
		}
		fmt.Fprintln(a.out, "reloaded")
		if len(done.Restart) > 0 {
			fmt.Fprintf(a.out, "restart the daemon to change %s: systemctl restart allocnetd\n", strings.Join(done.Restart, ", "))
		}
		return nil
	}
	return fmt.Errorf("follow the reload: %w", context.Cause(ctx))
}

// requireListener returns an error if another process than pid listens on the socket of a connection. The
// listener of a socket that systemd passes is systemd.
func requireListener(conn net.Conn, pid int) error {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return fmt.Errorf("find the process that listens on %s: %w", conn.RemoteAddr(), err)
	}
	var peer *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, failed); err != nil {
		return fmt.Errorf("find the process that listens on %s: %w", conn.RemoteAddr(), err)
	}
	const systemd, ofAnotherNamespace = 1, 0
	if p := int(peer.Pid); p != pid && p != systemd && p != ofAnotherNamespace {
		return usageError{fmt.Errorf("process %d is not the daemon: process %d listens on %s", pid, p, conn.RemoteAddr())}
	}
	return nil
}
