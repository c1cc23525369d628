package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// ErrLost is in the error of Run if another program has removed or replaced the socket or its
// lock file.
var ErrLost = errors.New("the socket is no longer that of the daemon")

// socketPeriod is how often the daemon looks at its socket. Tests replace it.
var socketPeriod = 10 * time.Second

// keepSocket returns ErrLost once no client can reach the daemon by the path of its socket any
// more, or another daemon could start beside it: then its end lets a supervisor, or an operator,
// start it again. systemd owns the file of a socket that it has passed, and would pass the same
// socket again, so such a loss is only logged.
func (d *daemon) keepSocket(ctx context.Context) error {
	ticker := time.NewTicker(socketPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		err := d.Listener.lost()
		switch {
		case err == nil:
			continue
		case ctx.Err() != nil: // its own end removes the socket
			return nil
		case d.Listener.Passed():
			d.Logger.Error("clients cannot reach the daemon; restart its socket: systemctl restart allocnetd.socket", "error", err)
			return nil
		}
		d.Logger.Error("clients cannot reach the daemon: ending, so that it can be started again", "error", err)
		return err
	}
}

// lost returns an error if the file of the socket, or that of its lock, is not the one that
// Listen has made or taken.
func (l *Listener) lost() error {
	for _, f := range l.files {
		now, err := os.Lstat(f.path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%w: another program has removed %q", ErrLost, f.path)
		case err == nil && !os.SameFile(now, f.info):
			return fmt.Errorf("%w: another program has replaced %q", ErrLost, f.path)
		}
	}
	return nil
}

// ownFile is a file of a Listener as it was at the beginning.
type ownFile struct {
	path string
	info fs.FileInfo
}

// note records the files of the socket and of its lock, as far as this process sees them.
func (l *Listener) note() {
	for _, path := range []string{l.path, lockPath(l.path)} {
		if info, err := os.Lstat(path); err == nil {
			l.files = append(l.files, ownFile{path, info})
		}
	}
}
