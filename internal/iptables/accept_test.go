package iptables

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/skip"
)

const complete = `
-P INPUT ACCEPT
-P FORWARD ACCEPT
-P OUTPUT ACCEPT
-N ALLOCNET-FORWARD
-N CNI-ADMIN
-A FORWARD -m comment --comment allocnet -j ALLOCNET-FORWARD
-A ALLOCNET-FORWARD -j CNI-ADMIN
-A ALLOCNET-FORWARD -m mark --mark 0x1000/0x1000 -j ACCEPT
`

func TestEnsureMakesTheRule(t *testing.T) {
	eachVariant(t, func(h *host) {
		o := h.acceptRule()
		h.ensure(o, "CNI-ADMIN")
		h.rules(complete)
		h.ensure(o, "CNI-ADMIN")
		h.rules(complete)
		h.ensure(h.acceptRule(), "CNI-ADMIN")
		h.rules(complete)
	})
}

// TestKnown: the kernel does not notify of changes of legacy tables, so their rules are never known.
func TestKnown(t *testing.T) {
	eachVariant(t, func(h *host) {
		o := h.acceptRule()
		require.False(t, o.Known(both))
		require.NoError(t, o.Ensure(t.Context(), []Family{IPv4}))
		inTables := !strings.Contains(h.programs[0], "legacy")
		require.Equal(t, inTables, o.Known([]Family{IPv4}))
		require.False(t, o.Known(both))
		h.ensure(o)
		require.Equal(t, inTables, o.Known(both))
		require.False(t, o.Known(both, "CNI-ADMIN"))
		o.families[IPv4].lock <- struct{}{}
		require.False(t, o.Known(both), "another call looks at it, for as long as iptables takes")
		<-o.families[IPv4].lock
		h.ensure(o, "CNI-ADMIN")
		require.Equal(t, inTables, o.Known(both, "CNI-ADMIN"))
	})
}

func TestEnsureActsOnTheFamiliesItIsGiven(t *testing.T) {
	eachVariant(t, func(h *host) {
		o := h.acceptRule()
		require.NoError(h.tb, o.Ensure(context.Background(), []Family{IPv6}))
		require.NotContains(h.tb, h.run(h.programs[0], "-S"), AcceptChain)
		require.Contains(h.tb, h.run(h.programs[1], "-S"), AcceptChain)
	})
}

func TestEnsureKeepsWhatOthersMade(t *testing.T) {
	eachVariant(t, func(h *host) {
		h.each("-N MINE")
		h.each("-A MINE -j DROP")
		h.each("-A FORWARD -j DROP")
		o := h.acceptRule()
		h.ensure(o, "MINE")
		h.each("-I FORWARD 1 -i docker0 -j ACCEPT")
		h.ensure(o, "OTHER", "MINE")
		h.ensure(o, "MINE")
		h.rules(`
-P INPUT ACCEPT
-P FORWARD ACCEPT
-P OUTPUT ACCEPT
-N ALLOCNET-FORWARD
-N MINE
-N OTHER
-A FORWARD -i docker0 -j ACCEPT
-A FORWARD -m comment --comment allocnet -j ALLOCNET-FORWARD
-A FORWARD -j DROP
-A ALLOCNET-FORWARD -j OTHER
-A ALLOCNET-FORWARD -j MINE
-A ALLOCNET-FORWARD -m mark --mark 0x1000/0x1000 -j ACCEPT
-A MINE -j DROP
`)
		require.NoError(h.tb, o.Check(context.Background(), both, "MINE", "OTHER"))
	})
}

// damages are changes by other programs, and the part that is missing after
// each.
var damages = map[string]struct {
	commands []string
	missing  string
}{
	"everything flushed":   {[]string{"-F", "-X"}, "no jump from FORWARD"},
	"FORWARD flushed":      {[]string{"-F FORWARD"}, "no jump from FORWARD"},
	"jump deleted":         {[]string{"-D FORWARD " + jump}, "no jump from FORWARD"},
	"own chain flushed":    {[]string{"-F ALLOCNET-FORWARD"}, "does not accept what is marked"},
	"accept deleted":       {[]string{"-D ALLOCNET-FORWARD " + accept}, "does not accept what is marked"},
	"admin jump deleted":   {[]string{"-D ALLOCNET-FORWARD -j CNI-ADMIN"}, "does not ask CNI-ADMIN first"},
	"admin comes too late": {[]string{"-D ALLOCNET-FORWARD -j CNI-ADMIN", "-A ALLOCNET-FORWARD -j CNI-ADMIN", "-A FORWARD -j RETURN", "-D FORWARD -j RETURN"}, "does not ask CNI-ADMIN first"},
	"surplus":              {[]string{"-A FORWARD " + jump, "-A ALLOCNET-FORWARD " + accept, "-A ALLOCNET-FORWARD -j CNI-ADMIN"}, ""},
}

func TestDamageIsNoticedAndMended(t *testing.T) {
	eachVariant(t, func(h *host) {
		for i, name := range slices.Sorted(maps.Keys(damages)) {
			damage := damages[name]
			h.tb.(*testing.T).Run(name, func(t *testing.T) {
				skip.InTurn(t, i, 3)
				defer h.clear()
				ctx := context.Background()
				o, later := h.acceptRule(), h.acceptRule()
				h.ensure(o, "CNI-ADMIN")
				require.NoError(t, o.Check(ctx, both, "CNI-ADMIN"))
				for _, command := range damage.commands {
					h.each(command)
				}
				if damage.missing == "" {
					require.NoError(t, o.Check(ctx, both, "CNI-ADMIN"))
					h.ensure(later, "CNI-ADMIN") // one that knows nothing counts
				} else {
					err := o.Check(ctx, both, "CNI-ADMIN")
					require.ErrorIs(t, err, ErrMissing)
					require.ErrorContains(t, err, damage.missing)
					require.ErrorContains(t, err, h.programs[0])
					require.ErrorContains(t, err, h.programs[1])
				}
				if name == "admin comes too late" && strings.Contains(h.programs[0], "legacy") {
					h.ensure(later, "CNI-ADMIN") // the same number of bytes: the legacy snapshot does not differ
				} else {
					h.ensure(o, "CNI-ADMIN")
				}
				h.rules(complete)
				require.NoError(t, o.Check(ctx, both, "CNI-ADMIN"))
			})
		}
	})
}

// TestMarkIsCleared: with iptables-legacy, whose rules outlive the tables of nftables, a
// rule clears the mark of packets that arrive with it. CHECK reports its removal.
func TestMarkIsCleared(t *testing.T) {
	eachVariant(t, func(h *host) {
		ctx, o := context.Background(), h.acceptRule()
		marks := func() (list []string) {
			for _, program := range h.programs {
				rules, err := specs(h.run(program, "-t", "mangle", "-S", "FORWARD"))
				require.NoError(h.tb, err)
				list = append(list, rules...)
			}
			return list
		}
		h.ensure(o, "CNI-ADMIN")
		if h.programs == variants["nf_tables"] {
			require.Empty(h.tb, marks())
			return
		}
		require.Equal(h.tb, []string{unmark, unmark}, marks())
		h.each("-t mangle -F FORWARD")
		require.ErrorIs(h.tb, o.Check(ctx, both, "CNI-ADMIN"), ErrMissing)
		h.ensure(o, "CNI-ADMIN")
		require.NoError(h.tb, o.Check(ctx, both, "CNI-ADMIN"))
		h.each("-t mangle -A FORWARD " + unmark)
		h.each("-t mangle -A FORWARD -j RETURN")
		h.ensure(o, "CNI-ADMIN")
		require.ElementsMatch(h.tb, []string{"-j RETURN", unmark, "-j RETURN", unmark}, marks())
	})
}

// TestOtherRulesWithOurHandlesAreNotOurs: a table that is created again numbers
// its rules from the start, so other rules may have the handles of allocnet's.
func TestOtherRulesWithOurHandlesAreNotOurs(t *testing.T) {
	h := newHost(t, "nf_tables")
	o := h.acceptRule()
	remake := func(target string) {
		for _, program := range h.programs {
			family := map[string]string{"iptables-nft": "ip", "ip6tables-nft": "ip6"}[program]
			h.run("nft", "delete", "table", family, "filter")
			for _, command := range []string{
				"-N ALLOCNET-FORWARD", "-N CNI-ADMIN", "-N X",
				"-A ALLOCNET-FORWARD -j CNI-ADMIN", "-A ALLOCNET-FORWARD " + accept, "-A FORWARD -j " + target,
			} {
				h.run(program, strings.Fields(command)...)
			}
		}
	}
	h.each("-N X")
	remake("ALLOCNET-FORWARD -m comment --comment allocnet")
	h.ensure(o, "CNI-ADMIN")
	before := o.families[IPv4].cache.entries[0].snapshot.(nftSnapshot)
	remake("X")
	now := o.kernel.snapshot(IPv4).(nftSnapshot)
	require.Zero(t, now.jumps)
	require.False(t, before.unchanged())
	remake("ALLOCNET-FORWARD -m comment --comment allocnet")
	now = o.kernel.snapshot(IPv4).(nftSnapshot)
	require.Equal(t, before.rules[0].handle, now.rules[0].handle, "the test needs equal handles")
	require.True(t, before.unchanged())
}

// TestEnsureAsksTheKernelOnly: for cached rules, Ensure does not run iptables,
// with or without traffic.
func TestEnsureAsksTheKernelOnly(t *testing.T) {
	eachVariant(t, func(h *host) {
		o := h.acceptRule()
		h.ensure(o, "CNI-ADMIN", "MINE")
		runs := h.counted(h.tb.(*testing.T))
		o.families[IPv4].command, o.families[IPv6].command = h.programs[0], h.programs[1]
		h.ensure(o, "MINE")
		h.ensure(o, "MINE", "CNI-ADMIN")
		require.Zero(h.tb, runs())
		h.ensure(o, "NEW")
		require.NotZero(h.tb, runs(), "nothing is known of that chain")

		before := runs()
		h.ensure(o, "NEW")
		require.Equal(h.tb, before, runs())
		if h.programs[0] == "iptables-nft" { // the other variant shows only that something changed
			h.ensure(o, "MINE", "CNI-ADMIN")
			require.Equal(h.tb, before, runs(), "one more jump changes nothing for the other chains")
		}
		for _, f := range o.families {
			for _, e := range f.cache.entries {
				require.NotNil(h.tb, e.snapshot)
			}
		}
	})
}

// TestCacheIsBounded: the newest entry replaces the oldest one.
func TestCacheIsBounded(t *testing.T) {
	var c cache
	for i := range 2 * maxEntries {
		name := fmt.Sprint("ADMIN", i)
		require.Same(t, c.of([]string{name}), c.of([]string{name}))
	}
	require.Len(t, c.entries, maxEntries)
	require.Equal(t, []string{fmt.Sprint("ADMIN", 2*maxEntries-1)}, c.entries[maxEntries-1].admins)
	require.False(t, c.any([]string{"ADMIN0"}, func(*entry) bool { return true }))
}

func TestManyAtOnceMakeOne(t *testing.T) {
	eachVariant(t, func(h *host) {
		processes := []*AcceptRule{h.acceptRule(), h.acceptRule()}
		var wait sync.WaitGroup
		for i := range 16 {
			wait.Go(func() {
				admin := []string{"CNI-ADMIN", "MINE"}[i/2%2]
				err := processes[i%2].Ensure(context.Background(), both, admin)
				if err != nil {
					h.tb.Errorf("ensure: %v", err)
				}
			})
		}
		wait.Wait()
		for _, program := range h.programs {
			rules := h.run(program, "-S")
			for _, rule := range []string{"-A FORWARD " + jump, "-j CNI-ADMIN", "-j MINE", accept} {
				require.Equal(h.tb, 1, strings.Count(rules, rule+"\n"), "%s: %s: %s", program, rule, rules)
			}
		}
		require.NoError(h.tb, processes[0].Check(context.Background(), both, "CNI-ADMIN", "MINE"))
	})
}

func TestWithoutIptablesNothingIsMissing(t *testing.T) {
	o := newAcceptRule("no-such-iptables", "no-such-ip6tables")
	require.NoError(t, o.Ensure(context.Background(), both, "CNI-ADMIN"))
	require.NoError(t, o.Check(context.Background(), both, "CNI-ADMIN"))
	require.NoError(t, o.Close())
}

// TestProgramMissing: if a policy drops and the program is missing, Ensure
// fails.
func TestProgramMissing(t *testing.T) {
	eachVariant(t, func(h *host) {
		made := h.acceptRule()
		h.ensure(made, "CNI-ADMIN")
		o := newAcceptRule("no-such-iptables", "no-such-ip6tables")
		h.each("-P FORWARD DROP")
		for _, err := range []error{o.Ensure(context.Background(), both), o.Check(context.Background(), both)} {
			require.ErrorIs(h.tb, err, exec.ErrNotFound)
			require.ErrorContains(h.tb, err, "no-such-iptables")
			require.ErrorContains(h.tb, err, "no-such-ip6tables")
			require.NotErrorIs(h.tb, err, ErrMissing, "it could not be examined")
		}
		h.each("-P FORWARD ACCEPT")
		require.NoError(h.tb, o.Ensure(context.Background(), both))
	})
}

func TestErrorsSayWhatToDo(t *testing.T) {
	tests := map[string]struct{ script, want string }{
		"no permission": {`echo "Could not fetch rule set generation id: Permission denied (you must be root)" >&2; exit 4`, "CAP_NET_ADMIN"},
		"no modules":    {`echo "can't initialize iptables table 'filter': Table does not exist (do you need to insmod?)" >&2; exit 3`, "ip_tables"},
		"foreign rules": {`echo "chain 'FORWARD' in table 'filter' is incompatible, use 'nft' tool." >&2; exit 1`, "nft -a list table ip filter"},
		"no match":      {`case "$*" in *-S*FORWARD*) ;; *) echo "Extension mark revision 0 not supported, missing kernel module?" >&2; exit 1;; esac`, "xt_mark"},
		"unknown":       {`echo "it is raining" >&2; exit 9`, "exit status 9: it is raining"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "iptables")
			script := "#!/bin/sh\n[ \"$1\" = --version ] && echo 'iptables v1.8.9 (nf_tables)' && exit\n" + test.script + "\n"
			require.NoError(t, os.WriteFile(program, []byte(script), 0o755))
			require.NoError(t, os.WriteFile(program+"-restore", []byte(script), 0o755))
			o := newAcceptRule(program, program)
			defer o.Close()
			err := o.Ensure(context.Background(), []Family{IPv4}, "CNI-ADMIN")
			require.ErrorContains(t, err, program)
			require.ErrorContains(t, err, test.want)
			require.NotErrorIs(t, err, ErrMissing)
		})
	}
}

func TestEnsureEndsWithTheContext(t *testing.T) {
	program := filepath.Join(t.TempDir(), "iptables")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\nexec sleep 600\n"), 0o755))
	o := newAcceptRule(program, program)
	defer o.Close()
	ctx, cancel := context.WithCancel(context.Background())
	running := make(chan error)
	go func() { running <- o.Ensure(ctx, []Family{IPv4}) }()
	cancel()
	require.ErrorIs(t, <-running, context.Canceled)

	o.families[IPv4].lock <- struct{}{} // another call is running
	require.ErrorIs(t, o.Ensure(ctx, []Family{IPv4}), context.Canceled)
}

// TestRepairOfWhatIsNoLongerSoFails: two processes may list the same rules and
// repair both. The second repair fails as a whole and keeps the rules of the
// first one.
func TestRepairOfWhatIsNoLongerSoFails(t *testing.T) {
	eachVariant(t, func(h *host) {
		ctx := context.Background()
		p := &tables{path: h.programs[0]}
		spoil := func(admin string) {
			old, err := p.list(ctx, []string{admin})
			require.NoError(h.tb, err)
			lines := old.repair([]string{admin})
			h.ensure(h.acceptRule(), "CNI-ADMIN")
			before := h.run(p.path, "-S")
			require.Error(h.tb, p.restore(ctx, nil, lines), "%q", lines)
			require.Equal(h.tb, before, h.run(p.path, "-S"))
		}
		spoil("MINE")
		h.each("-A FORWARD " + jump)
		spoil("CNI-ADMIN")
		h.each("-A ALLOCNET-FORWARD " + accept)
		spoil("CNI-ADMIN")
		h.rules(complete)
	})
}

func TestNamesThatAreNone(t *testing.T) {
	for _, name := range []string{"", "-j", "!x", "a b", "a\nCOMMIT", `"a`, "ALLOCNET-FORWARD", strings.Repeat("x", 29)} {
		o := NewAcceptRule()
		require.ErrorContains(t, o.Ensure(context.Background(), nil, name), "admin chain", name)
		require.ErrorContains(t, o.Check(context.Background(), nil, name), "admin chain", name)
	}
	require.ErrorContains(t, NewAcceptRule().Ensure(context.Background(), []Family{7}), "no address family 7")
}

func BenchmarkEnsureWhatIsKnown(b *testing.B) {
	for name := range variants {
		b.Run(name, func(b *testing.B) {
			h := newHost(b, name)
			o := h.acceptRule()
			h.ensure(o, "CNI-ADMIN")
			for b.Loop() {
				if err := o.Ensure(context.Background(), []Family{IPv4}, "CNI-ADMIN"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
