package netfilter

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
	"github.com/allocnet/allocnet/internal/retry"
)

// Look calls act to list objects of nftables, and repeats it until the ruleset did not
// change in the meantime. If the kernel has no nftables, Look does not call act and
// returns nil.
func Look(ctx context.Context, act func(*nftables.Conn) error) error {
	conn, err := nftables.New(nftables.AsLasting())
	if IsUnsupported(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	defer conn.CloseLasting()
	return retry.Do(ctx, func() error {
		before, err := sock.Generation(ctx, kernel)
		if IsUnsupported(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read generation of nftables: %w", err)
		}
		actErr := act(conn)
		after, err := sock.Generation(ctx, kernel)
		switch {
		case err != nil:
			return fmt.Errorf("read generation of nftables: %w", err)
		case before != after:
			return retry.ErrChanged // the lists can be incomplete
		}
		return actErr
	})
}

// IsUnsupported reports whether the error means that the kernel does not have the
// subsystem or family, and so has no objects of it.
func IsUnsupported(err error) bool {
	for _, missing := range []error{unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.EINVAL} {
		if errors.Is(err, missing) {
			return true
		}
	}
	return false
}
