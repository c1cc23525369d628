package iptables

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// inPath puts a script in the place of iptables.
func inPath(t *testing.T, script string) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "iptables"), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// TestCommandEndsWithTheContext: an iptables that hangs does not keep its caller.
func TestCommandEndsWithTheContext(t *testing.T) {
	started := filepath.Join(t.TempDir(), "started")
	require.NoError(t, unix.Mkfifo(started, 0o600))
	inPath(t, "echo >"+started+"\nexec sleep 600")
	ask := func(_ bool, err error) error { return err }
	calls := map[string]func(context.Context, *Command) error{
		"List":                func(ctx context.Context, c *Command) error { _, err := c.List(ctx, "nat"); return err },
		"ListChains":          func(ctx context.Context, c *Command) error { _, err := c.ListChains(ctx, "nat"); return err },
		"Exists":              func(ctx context.Context, c *Command) error { return ask(c.Exists(ctx, "nat", "X", "-j", "Y")) },
		"ChainExists":         func(ctx context.Context, c *Command) error { return ask(c.ChainExists(ctx, "nat", "X")) },
		"Append":              func(ctx context.Context, c *Command) error { return c.Append(ctx, "nat", "X", "-j", "Y") },
		"Delete":              func(ctx context.Context, c *Command) error { return c.Delete(ctx, "nat", "X", "-j", "Y") },
		"EnsureChain":         func(ctx context.Context, c *Command) error { return c.EnsureChain(ctx, "nat", "X") },
		"ClearAndDeleteChain": func(ctx context.Context, c *Command) error { return c.ClearAndDeleteChain(ctx, "nat", "X") },
		"Ensure": func(ctx context.Context, c *Command) error {
			return c.Ensure(ctx, "nat", []Wanted{{Chain: "X"}, {Chain: "Y"}})
		},
		"Remove":         func(ctx context.Context, c *Command) error { return c.Remove(ctx, "nat", []Wanted{{Chain: "X"}}) },
		"AllowPublished": func(ctx context.Context, _ *Command) error { return AllowPublished(ctx, Destination{Bridge: "br0"}) },
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			ended := make(chan error)
			go func() {
				c, err := Open(IPv4)
				if err == nil {
					err = call(ctx, c)
				}
				ended <- err
			}()
			_, err := os.ReadFile(started) // waits for the program
			require.NoError(t, err)
			cancel()
			require.ErrorIs(t, <-ended, context.Canceled)
		})
	}
}

// TestLockEndsWithTheContext: an ADD waits for another one until its own deadline at most.
func TestLockEndsWithTheContext(t *testing.T) {
	l := NewLock()
	require.NoError(t, l.Hold(context.Background(), func() error {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		require.ErrorIs(t, l.Hold(ctx, func() error { return nil }), context.Canceled)
		return nil
	}))
	require.NoError(t, l.Hold(context.Background(), func() error { return nil }), "it was released")
}

// TestCommand makes and removes rules with both implementations.
func TestCommand(t *testing.T) {
	eachVariant(t, func(h *host) {
		ctx := context.Background()
		c := &Command{Name: h.programs[0], path: h.programs[0]}
		rule := []string{"-s", "10.0.0.2/32", "-j", "ACCEPT"}
		yes := func(found bool, err error) { require.NoError(t, err); require.True(t, found) }
		no := func(found bool, err error) { require.NoError(t, err); require.False(t, found) }

		no(c.ChainExists(ctx, "filter", "X"))
		no(c.Exists(ctx, "filter", "X", rule...))
		require.True(t, IsMissing(c.Delete(ctx, "filter", "FORWARD", rule...)))
		require.NoError(t, c.ClearAndDeleteChain(ctx, "filter", "X"))
		require.NoError(t, c.Ensure(ctx, "filter", []Wanted{{Chain: "X"}, {Chain: "X", Spec: rule}, {Chain: "X", Spec: []string{"-j", "DROP"}, First: true}}))
		yes(c.ChainExists(ctx, "filter", "X"))
		yes(c.Exists(ctx, "filter", "X", rule...))
		require.NoError(t, c.AppendUnique(ctx, "filter", "X", rule...))
		lines, err := c.List(ctx, "filter", "X")
		require.NoError(t, err)
		require.Equal(t, []string{"-N X", "-A X -j DROP", "-A X -s 10.0.0.2/32 -j ACCEPT"}, lines)
		require.Error(t, c.NewChain(ctx, "filter", "X"))
		chains, err := c.ListChains(ctx, "filter")
		require.NoError(t, err)
		require.Contains(t, chains, "FORWARD")
		require.Contains(t, chains, "X")
		require.NoError(t, c.Delete(ctx, "filter", "X", rule...))
		no(c.Exists(ctx, "filter", "X", rule...))
		require.NoError(t, c.ClearAndDeleteChain(ctx, "filter", "X"))
		no(c.ChainExists(ctx, "filter", "X"))
	})
}

// TestStatusOfIPTables: only what iptables answered is an answer.
func TestStatusOfIPTables(t *testing.T) {
	ctx := context.Background()
	inPath(t, "exit 4")
	c, err := Open(IPv4)
	require.NoError(t, err)
	_, err = c.Exists(ctx, "nat", "X")
	require.True(t, IsBusy(err), err)
	require.False(t, IsMissing(err))
	inPath(t, "kill -9 $$")
	c, err = Open(IPv4)
	require.NoError(t, err)
	_, err = c.ChainExists(ctx, "nat", "X")
	require.Error(t, err)
	require.False(t, IsBusy(err))
}
