package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/google/nftables"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
)

// healTitle names the time from a flush of the ruleset to the first connection that is
// answered through a host port, with a number of allocations.
func healTitle(n int) string { return fmt.Sprintf("flush to answer, %d allocations", n) }

// The measure of the daemon's CPU time for an ADD and a DEL, and what it is compared with:
// the same daemon without notifications.
const (
	healCPUTitle   = "CPU of allocnetd, ADD and DEL"
	deafDaemonName = "no-notifications"
)

// heal measures how long the daemon needs to repair, and what listening costs.
func (b *bench) heal(ctx context.Context) error {
	sizes := b.size.heal
	slots, err := b.slots(ctx, sizes[len(sizes)-1])
	if err != nil {
		return err
	}
	dir, err := b.buildDaemon(ctx)
	if err != nil {
		return err
	}
	err = b.withDaemon(ctx, dir, slots[0], "", func(u *pluginUser, c *client.Client) error {
		for i, n := range sizes {
			b.progress("%s", healTitle(n))
			from := 0
			if i > 0 {
				from = sizes[i-1]
			}
			if err := setUpThrough(ctx, c, u, slots[from:n]); err != nil {
				return err
			}
			if err := b.healOf(ctx, slots[n-1], n); err != nil {
				return err
			}
		}
		return tearDownThrough(ctx, c, slots)
	})
	if err != nil {
		return err
	}
	return b.healCPU(ctx, dir, slots[:1])
}

// healPause is the time after which the daemon repairs the next damage at once.
const healPause = 12 * time.Second

func (b *bench) healOf(ctx context.Context, last *slot, n int) error {
	l, err := listenIn(last)
	if err != nil {
		return err
	}
	defer l.Close()
	to := fmt.Sprintf("127.0.0.1:%d", last.hostPort())
	var took samples
	for range b.size.heals {
		if err := sleepFor(ctx, healPause); err != nil {
			return err
		}
		if err := connectTo(ctx, to); err != nil {
			return err
		}
		err := timed(&took, func() error {
			if err := flushRuleset(); err != nil {
				return fmt.Errorf("flush the ruleset: %w", err)
			}
			return connectTo(ctx, to)
		})
		if err != nil {
			return err
		}
	}
	b.report.add(healTitle(n), daemonName, seconds, took)
	return nil
}

// flushRuleset does what "nft flush ruleset" does. The program itself ends only after the
// kernel has destroyed the objects, when they may have been restored already.
func flushRuleset() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	c.FlushRuleset()
	return c.Flush()
}

// connectTo connects as soon as a connection is answered.
func connectTo(ctx context.Context, to string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		c, err := (&net.Dialer{Timeout: 20 * time.Millisecond}).DialContext(ctx, "tcp4", to)
		if err == nil {
			return c.Close()
		}
		if err := sleepFor(ctx, time.Millisecond); err != nil {
			return fmt.Errorf("connect to %s: %w", to, err)
		}
	}
}

func sleepFor(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// withDaemon runs act with a daemon that has more settings.
func (b *bench) withDaemon(ctx context.Context, dir string, s *slot, settings string, act func(*pluginUser, *client.Client) error) (err error) {
	u, err := newPluginUser(b.newNetwork("heal", "bridge", false), dir, shimName, s)
	if err != nil {
		return err
	}
	if err := u.set(settings); err != nil {
		return err
	}
	daemon, err := u.startDaemon(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, daemon.stop(), removeBridge(u.bridge)) }()
	return act(u, client.New(client.Config{Socket: u.file("sock")}))
}

func setUpThrough(ctx context.Context, c *client.Client, u *pluginUser, slots []*slot) error {
	return atOnce(4, slots, func(s *slot) error {
		_, err := c.Setup(ctx, configurator.Allocation{ID: s.id, Netns: s.netns, Networks: []string{u.network}, Ports: s.ports()})
		return err
	})
}

func tearDownThrough(ctx context.Context, c *client.Client, slots []*slot) error {
	return atOnce(4, slots, func(s *slot) error { return c.Teardown(ctx, configurator.Allocation{ID: s.id}) })
}

// healCPU compares the CPU time of a daemon that listens with that of one that does not.
// Both take turns, each with a fresh process.
func (b *bench) healCPU(ctx context.Context, dir string, slots []*slot) error {
	b.progress("%s", healCPUTitle)
	took := map[string]*samples{daemonName: {}, deafDaemonName: {}}
	for range b.size.heals {
		for name, settings := range map[string]string{
			daemonName:     "heal {\n  check_interval = \"0s\"\n}\n",
			deafDaemonName: "heal {\n  enabled = false\n  check_interval = \"0s\"\n}\n",
		} {
			err := b.withDaemon(ctx, dir, slots[0], settings, func(u *pluginUser, c *client.Client) error {
				one, err := cpuOfLives(ctx, c, u, slots, b.size.healLives)
				*took[name] = append(*took[name], one)
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	for _, name := range []string{deafDaemonName, daemonName} {
		b.report.add(healCPUTitle, name, seconds, *took[name])
	}
	return nil
}

// cpuOfLives returns the daemon's CPU time for each of n ADDs with their DELs.
func cpuOfLives(ctx context.Context, c *client.Client, u *pluginUser, slots []*slot, n int) (float64, error) {
	var before float64
	for i := range n + 10 {
		if i == 10 { // the first ones create shared objects
			var err error
			if before, err = cpuOf(ctx, u); err != nil {
				return 0, err
			}
		}
		if err := errors.Join(setUpThrough(ctx, c, u, slots), tearDownThrough(ctx, c, slots)); err != nil {
			return 0, err
		}
	}
	after, err := cpuOf(ctx, u)
	return (after - before) / float64(n), err
}

// cpuOf returns the CPU time of the daemon so far.
func cpuOf(ctx context.Context, u *pluginUser) (float64, error) {
	const metric = "process_cpu_seconds_total "
	h := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", u.file("sock"))
	}}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://allocnetd/metrics", nil)
	if err != nil {
		return 0, err
	}
	answer, err := h.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, metric); ok {
			var sum float64
			_, err := fmt.Sscan(value, &sum)
			return sum, err
		}
	}
	return 0, errors.New("allocnetd has no metric " + metric)
}
