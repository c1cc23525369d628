package server

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"
)

// Listener is a listening Unix socket with the lock that excludes other daemons.
type Listener struct {
	*net.UnixListener
	path   string   // "" for a socket without a file
	passed bool     // systemd has passed the socket and owns its file
	lock   *os.File // nil without a path
	remove func() error
	files  []ownFile // see lost
}

// Listen takes the socket that systemd passes to the process, or creates s. The caller
// owns the Listener; [Run] and Release close it. errors.Is finds ErrInUse.
func Listen(s Socket) (*Listener, error) {
	files := activation.Files(true)
	if len(files) > 0 {
		l, err := take(files)
		if err != nil {
			return nil, fmt.Errorf("listen on the socket from systemd: %w", err)
		}
		return l, nil
	}
	l, err := create(s)
	if err != nil {
		return nil, fmt.Errorf("listen on %q: %w", s.Path, err)
	}
	return l, nil
}

// take returns the Listener of the socket that systemd passed.
func take(files []*os.File) (*Listener, error) {
	for _, f := range files {
		defer f.Close()
	}
	if len(files) != 1 {
		return nil, fmt.Errorf("systemd passed %d sockets: set one ListenStream= in the socket unit", len(files))
	}
	if listens, err := unix.GetsockoptInt(int(files[0].Fd()), unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err != nil || listens == 0 {
		return nil, errors.New("it does not listen: set ListenStream= and Accept=no in the socket unit")
	}
	listener, err := net.FileListener(files[0])
	if err != nil {
		return nil, err
	}
	stream, ok := listener.(*net.UnixListener)
	if !ok {
		return nil, errors.Join(errors.New("it is not a Unix socket: set ListenStream= to a path in the socket unit"), listener.Close())
	}
	l := &Listener{UnixListener: stream, passed: true, remove: func() error { return nil }}
	if path := stream.Addr().String(); filepath.IsAbs(path) {
		l.path = path
		if l.lock, err = lock(path); err != nil {
			return nil, errors.Join(err, stream.Close())
		}
		l.note()
	}
	return l, nil
}

// create creates the directory of s, takes its lock, and creates the socket.
func create(s Socket) (*Listener, error) {
	if err := s.makeDir(); err != nil {
		return nil, fmt.Errorf("create its directory: %w", err)
	}
	held, err := lock(s.Path)
	if err != nil {
		return nil, err
	}
	stream, err := s.create()
	if err != nil {
		return nil, errors.Join(err, held.Close())
	}
	l := &Listener{UnixListener: stream, path: s.Path, lock: held}
	l.remove = sync.OnceValue(func() error {
		if l.lost() != nil { // the file may be that of another daemon
			return nil
		}
		if err := os.Remove(s.Path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
	l.note()
	return l, nil
}

// Path returns the path of the socket's file, or "" if it has none.
func (l *Listener) Path() string { return l.path }

// Passed reports whether systemd has passed the socket.
func (l *Listener) Passed() bool { return l.passed }

// Group returns the socket's group; ok is false if its members cannot connect.
func (l *Listener) Group() (gid uint32, ok bool) {
	var stat unix.Stat_t
	if l.path == "" || unix.Stat(l.path, &stat) != nil {
		return 0, false
	}
	return stat.Gid, stat.Mode&unix.S_IWGRP != 0
}

// Close stops listening. It first removes the file of a socket that Listen created, so
// that clients fail at once. The lock stays held.
func (l *Listener) Close() error {
	return errors.Join(l.remove(), l.UnixListener.Close())
}

// Release closes the listener and releases the lock.
func (l *Listener) Release() error {
	err := l.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	if l.lock != nil {
		err = errors.Join(err, l.lock.Close())
		l.lock = nil
	}
	return err
}

// dial connects to the daemon itself.
func (l *Listener) dial() (net.Conn, error) {
	name := l.path
	if name == "" {
		name = l.Addr().String()
	}
	return net.Dial("unix", name)
}
