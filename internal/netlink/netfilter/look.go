package netfilter

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/retry"
)

// Look has act list objects of nftables, and repeats it until the ruleset did not
// change meanwhile. Where the kernel has no nftables, Look does not call act and
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
		before, err := generation(ctx)
		if IsUnsupported(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read generation of nftables: %w", err)
		}
		actErr := act(conn)
		after, err := generation(ctx)
		switch {
		case err != nil:
			return fmt.Errorf("read generation of nftables: %w", err)
		case before != after:
			return retry.ErrChanged // the lists can have holes
		}
		return actErr
	})
}

// IsUnsupported reports whether the error says that the kernel does not have the
// subsystem or family, and so no objects in it.
func IsUnsupported(err error) bool {
	for _, missing := range []error{unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.EINVAL} {
		if errors.Is(err, missing) {
			return true
		}
	}
	return false
}
