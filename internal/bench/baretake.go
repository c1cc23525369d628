package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// bareName is the baseline that takes a prepared network namespace.
const bareName = "bare take"

// bareTaker binds prepared network namespaces to allocations with as few system calls as
// possible: the minimum of a take from a pool. It adds a line to a record and renames it,
// mounts the namespace at the path of the allocation, and adds the elements of the host port.
// It checks nothing.
type bareTaker struct {
	*baseline
	dir   string     // on tmpfs
	calls *bareCalls // if all system calls are made
}

func newBareTaker(b *baseline) (*bareTaker, error) {
	t := &bareTaker{baseline: b, dir: filepath.Join(workDir, "bare")}
	return t, os.MkdirAll(t.dir, 0o755)
}

func (t *bareTaker) record(s *slot) string { return filepath.Join(t.dir, "pool-"+s.id) }

func (t *bareTaker) path(s *slot) string { return filepath.Join(t.dir, "netns-"+s.id) }

// block measures takes in a row, and removes the allocations.
func (t *bareTaker) block(ctx context.Context, slots []*slot, m *samples) error {
	sockets, err := t.baseline.take()
	if err != nil {
		return err
	}
	defer t.give(sockets)
	var spaces []*os.File
	for _, s := range slots {
		ns, err := t.prepare(sockets, s)
		if err != nil {
			return fmt.Errorf("%s: prepare %q: %w", bareName, s.id, err)
		}
		defer ns.Close()
		if t.calls != nil {
			if err := t.calls.ready(s); err != nil {
				return err
			}
		}
		spaces = append(spaces, ns)
	}
	bind := t.bind
	if t.calls != nil {
		bind = t.calls.bind
	}
	for i, s := range slots {
		if err := timed(m, func() error { return bind(sockets, s, spaces[i]) }); err != nil {
			return fmt.Errorf("%s: bind %q: %w", bareName, s.id, err)
		}
	}
	for _, s := range slots {
		err := errors.Join(unix.Unmount(t.path(s), unix.MNT_DETACH), os.Remove(t.path(s)), os.Remove(t.record(s)+".taken"), t.del(ctx, s))
		if t.calls != nil {
			err = errors.Join(err, t.calls.clear(s))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// parts returns the elements of a slot before it is taken, and those that the host port adds.
func (t *bareTaker) parts(s *slot) (before, ports []elements) {
	for _, e := range t.elements(s) {
		if e.set == "ports" || e.set == "published" {
			ports = append(ports, e)
		} else {
			before = append(before, e)
		}
	}
	return before, ports
}

// prepare creates the links and all elements except those of the host port, and a record.
func (t *bareTaker) prepare(sockets *baselineSockets, s *slot) (*os.File, error) {
	host, err := t.attach(sockets.links, s)
	if err != nil {
		return nil, err
	}
	if t.network.kind == "ptp" {
		if err := sockets.links.do(t.hostMessages(s, host)...); err != nil {
			return nil, err
		}
	}
	before, _ := t.parts(s)
	if err := sockets.change(unix.NFT_MSG_NEWSETELEM, before); err != nil {
		return nil, err
	}
	if err := os.WriteFile(t.record(s), make([]byte, 2048), 0o600); err != nil {
		return nil, err
	}
	return os.Open(s.netns)
}

// bind does what is left when the allocation is known.
func (t *bareTaker) bind(sockets *baselineSockets, s *slot, ns *os.File) error {
	if err := appendLine(t.record(s), make([]byte, 512)); err != nil {
		return err
	}
	if err := unix.Rename(t.record(s), t.record(s)+".taken"); err != nil {
		return err
	}
	if err := t.mount(s, ns); err != nil {
		return err
	}
	_, ports := t.parts(s)
	return sockets.change(unix.NFT_MSG_NEWSETELEM, ports)
}

// mount mounts a network namespace at the path of the allocation.
func (t *bareTaker) mount(s *slot, ns *os.File) error {
	target, err := unix.Open(t.path(s), unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o444)
	if err != nil {
		return err
	}
	if err := unix.Close(target); err != nil {
		return err
	}
	return unix.Mount(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()), t.path(s), "", unix.MS_BIND, "")
}

func appendLine(path string, line []byte) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_APPEND|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = unix.Write(fd, line)
	return errors.Join(err, unix.Close(fd))
}
