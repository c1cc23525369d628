package lease

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// Handover gives the leases of one owner to another one, which must have none. addrs are all
// addresses of the first owner. If it does not have one of them, the error is ErrNotHeld and
// nothing has changed. After any other error, some leases may belong to either owner.
func (s *Store) Handover(ctx context.Context, from, to Owner, addrs []netip.Addr) error {
	if err := to.validate(); err != nil {
		return err
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	x := s.openIndex()
	if err := x.need(); err != nil {
		return err
	}
	for _, addr := range addrs {
		if holder, ok, err := s.holder(addr); err != nil || !ok || holder != from {
			return errors.Join(fmt.Errorf("address %s: %w", addr, ErrNotHeld), err)
		}
	}
	// The index is not complete while leases are rewritten, which does not change the
	// directory.
	s.touch(unix.Timespec{Nsec: unix.UTIME_NOW})
	for _, addr := range addrs {
		if err := s.rewrite(addr, from, to); err != nil {
			x.exact = false
			return fmt.Errorf("hand over lease of %s: %w", addr, err)
		}
	}
	x.set(from, nil)
	x.set(to, addrs)
	x.sign()
	return nil
}

// rewrite replaces the owner in a lease file. It writes in place, with one call, so that it
// leaves no other file after a crash: the blanks that may remain then do not count.
func (s *Store) rewrite(addr netip.Addr, from, to Owner) error {
	fd, err := openFile(s.path(addr), unix.O_WRONLY)
	if err != nil {
		return err
	}
	text := to.text()
	blanks := strings.Repeat(" ", max(0, len(from.text())-len(text)))
	err = writeAt(fd, text+blanks)
	s.did("hand over lease")
	if err == nil && blanks != "" {
		err = unix.Ftruncate(fd, int64(len(text)))
	}
	return errors.Join(err, unix.Close(fd))
}
