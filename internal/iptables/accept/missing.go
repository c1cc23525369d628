package accept

import (
	"context"
	"fmt"
	"time"

	xtables "github.com/allocnet/allocnet/internal/netlink/netfilter"
)

// lookEvery is how long a look at the policy of the host's FORWARD chain is valid.
const lookEvery = 5 * time.Second

// unneeded is nil if the host forwards without the opening. Otherwise the error wraps
// cause, the error of the missing program.
func (f *family) unneeded(ctx context.Context, cause error) error {
	if time.Since(f.forwards) < lookEvery {
		return nil
	}
	drops, err := f.filter().DropsForwarded(ctx)
	if err != nil {
		return fmt.Errorf("%w; without it: %w", cause, err)
	}
	if drops {
		return fmt.Errorf("table %s: the policy of chain FORWARD is to drop, and %w; install %s, or have the policy accept",
			f.filter(), cause, f.program)
	}
	f.forwards = time.Now()
	return nil
}

func (f *family) filter() xtables.Table {
	return xtables.Table{IPv6: f.Family == IPv6, Name: table}
}
