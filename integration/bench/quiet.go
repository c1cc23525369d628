package main

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"
)

// errNoisy: the links of the host do not come to rest.
var errNoisy = errors.New("there is always traffic on the host's links")

// quiet waits until no link of the host has had traffic for a second: behind
// links that came up, the kernel looks for duplicates of their addresses and
// reports multicast groups for seconds, on a bridge to every other port.
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

// packets is how many all links received and sent, as /proc/net/dev has it.
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
			n, _ := strconv.ParseInt(fields[i], 10, 64) // the titles are no numbers
			sum += n
		}
	}
	return sum
}
