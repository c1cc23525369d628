package bench

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"
)

// errNoisy: there is always traffic on the host's links.
var errNoisy = errors.New("there is always traffic on the host's links")

// quiet waits until no link of the host has had traffic for a second. For
// seconds after links come up, the kernel runs duplicate address detection and
// reports multicast groups, on a bridge to every other port.
func quiet(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errNoisy)
	defer cancel()
	last := int64(-1)
	for {
		text, err := os.ReadFile("/proc/net/dev")
		if err != nil {
			return err
		}
		now := packets(string(text))
		if now == last {
			return nil
		}
		last = now
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Second):
		}
	}
}

// packets returns the number of packets that all links received and sent, from
// the text of /proc/net/dev.
func packets(text string) int64 {
	const received, sent = 1, 9
	var sum int64
	for line := range strings.Lines(text) {
		_, counters, _ := strings.Cut(line, ":")
		fields := strings.Fields(counters)
		if len(fields) <= sent {
			continue
		}
		for _, i := range []int{received, sent} {
			n, _ := strconv.ParseInt(fields[i], 10, 64) // titles are not numbers
			sum += n
		}
	}
	return sum
}
