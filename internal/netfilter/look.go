package netfilter

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/retry"
)

// Look lets act list what is in nftables, again until all of it is of the same
// moment. A kernel without nftables has nothing there: then act is not called,
// and the error is nil.
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
		before, err := generation()
		if IsUnsupported(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read generation of nftables: %w", err)
		}
		actErr := act(conn)
		after, err := generation()
		switch {
		case err != nil:
			return fmt.Errorf("read generation of nftables: %w", err)
		case before != after:
			return retry.ErrChanged // the lists can have holes
		}
		return actErr
	})
}

// IsUnsupported reports whether the kernel does not have what was asked for, so
// that there is nothing in it.
func IsUnsupported(err error) bool {
	for _, missing := range []error{unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.EINVAL} {
		if errors.Is(err, missing) {
			return true
		}
	}
	return false
}
