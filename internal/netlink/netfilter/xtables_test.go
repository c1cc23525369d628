package netfilter

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/privhost"
)

func TestMain(m *testing.M) { os.Exit(privhost.Main(m)) }

// The policy of FORWARD is seen without the program, too.
func TestDropsForwarded(t *testing.T) {
	for command, c := range commands {
		t.Run(command, func(t *testing.T) {
			privhost.Require(t, command)
			table := Table{IPv6: c.ipv6, Name: "filter"}
			for _, policy := range []string{"ACCEPT", "DROP", "ACCEPT"} {
				require.NoError(t, exec.Command(command, "-P", "FORWARD", policy).Run())
				require.NoError(t, exec.Command(command, "-P", "INPUT", "DROP").Run())
				drops, err := table.DropsForwarded(t.Context())
				require.NoError(t, err)
				require.Equal(t, policy == "DROP", drops)
				require.NoError(t, exec.Command(command, "-P", "INPUT", "ACCEPT").Run())
			}
		})
	}
}

// commands are both kinds of iptables of both families.
var commands = map[string]struct {
	ipv6          bool
	address, mask string
}{
	"iptables-nft":     {false, "10.1.2.3", "/32"},
	"ip6tables-nft":    {true, "fd00::3", "/128"},
	"iptables-legacy":  {false, "10.1.2.3", "/32"},
	"ip6tables-legacy": {true, "fd00::3", "/128"},
}

// The kernel shows what either kind of iptables made, without it.
func TestTable(t *testing.T) {
	for command, c := range commands {
		t.Run(command, func(t *testing.T) {
			privhost.Require(t, command)
			nat, filter := Table{IPv6: c.ipv6, Name: "nat"}, Table{IPv6: c.ipv6, Name: "filter"}
			run := func(table string, args ...string) {
				t.Helper()
				out, err := exec.Command(command, append([]string{"-t", table}, args...)...).CombinedOutput()
				require.NoError(t, err, "%s", out)
			}
			requireEmpty := func(table Table) {
				t.Helper()
				chains, err := table.Chains(t.Context())
				require.NoError(t, err)
				require.Empty(t, slices.DeleteFunc(chains, builtIn))
			}
			requireEmpty(nat)
			run("nat", "-N", "CNI-own")
			run("nat", "-N", "CNI-other")
			run("nat", "-A", "POSTROUTING", "-s", c.address, "-m", "comment", "--comment", "x", "-j", "CNI-own")
			chains, err := nat.Chains(t.Context())
			require.NoError(t, err)
			require.ElementsMatch(t, []string{"CNI-own", "CNI-other"}, slices.DeleteFunc(chains, builtIn))

			missing := errors.New("no such command")
			require.NoError(t, nat.Absent(t.Context(), missing, "CNI", "CNI-owner"))
			require.NoError(t, filter.Absent(t.Context(), missing, "CNI-own"))
			err = nat.Absent(t.Context(), missing, "CNI", "CNI-own")
			require.ErrorIs(t, err, ErrHeld)
			require.ErrorIs(t, err, missing)
			require.ErrorContains(t, err, strings.Split(command, "-")[0]+" -t nat: chain CNI-own")

			run("filter", "-N", "CNI-FORWARD")
			run("filter", "-A", "CNI-FORWARD", "-s", c.address+c.mask, "-j", "ACCEPT")
			run("filter", "-A", "CNI-FORWARD", "-d", c.address+c.mask, "-m", "conntrack", "--ctstate", "RELATED", "-j", "ACCEPT")
			run("filter", "-A", "FORWARD", "-s", nextTo(c.address), "-j", "ACCEPT")
			addresses, err := filter.Addresses(t.Context(), "CNI-FORWARD")
			require.NoError(t, err)
			own := netip.MustParseAddr(c.address)
			require.Equal(t, []netip.Addr{own, own}, addresses)
			addresses, err = filter.Addresses(t.Context(), "CNI-NONE")
			require.NoError(t, err)
			require.Empty(t, addresses)

			for _, table := range []string{"nat", "filter"} {
				run(table, "-F")
				run(table, "-X")
			}
			requireEmpty(nat)
			requireEmpty(filter)
		})
	}
}

// Comments are read of both kinds at once, wherever the rules are.
func TestHiddenComments(t *testing.T) {
	privhost.Require(t, "iptables-nft", "iptables-legacy", "ip6tables-nft", "ip6tables-legacy")
	const long = `dnat name: "net" id: "`
	for prefix, ipv6 := range map[string]bool{"iptables-": false, "ip6tables-": true} {
		t.Run(prefix, func(t *testing.T) {
			add := func(kind, chain, comment string) {
				t.Helper()
				command := []string{"-t", "nat", "-A", chain, "-p", "tcp", "-m", "comment", "--comment", comment, "-m", "multiport", "--dports", "80", "-j", "RETURN"}
				require.NoError(t, exec.Command(prefix+kind, command...).Run())
			}
			nat := Table{IPv6: ipv6, Name: "nat"}
			t.Cleanup(func() {
				for _, kind := range []string{"nft", "legacy"} {
					for _, what := range []string{"-F", "-X"} {
						require.NoError(t, exec.Command(prefix+kind, "-t", "nat", what).Run())
					}
				}
			})
			add("nft", "POSTROUTING", "of nft")
			whole := long + strings.Repeat("x", 255-len(long)-1) + `"`
			require.NoError(t, exec.Command(prefix+"legacy", "-t", "nat", "-N", "CNI-own").Run())
			add("legacy", "CNI-own", whole)
			add("legacy", "POSTROUTING", "of legacy")
			require.NoError(t, exec.Command(prefix+"legacy", "-t", "nat", "-A", "OUTPUT", "-j", "CNI-own").Run())
			comments, err := nat.HiddenComments(t.Context())
			require.NoError(t, err)
			require.ElementsMatch(t, []string{"of nft", "of legacy", whole}, comments)
		})
	}
}

func builtIn(chain string) bool { return !strings.HasPrefix(chain, "CNI-") }

func nextTo(address string) string { return netip.MustParseAddr(address).Next().String() }

// What is no table of the kernel's is an error, and no panic.
func FuzzChains(f *testing.F) {
	f.Add([]byte("x"), false)
	f.Add(make([]byte, 400), true)
	f.Fuzz(func(t *testing.T, entries []byte, ipv6 bool) {
		chains, err := layouts[ipv6].chains(entries)
		if err == nil {
			require.LessOrEqual(t, len(chains), len(entries))
		}
		comments, err := layouts[ipv6].comments(entries)
		if err == nil {
			require.LessOrEqual(t, len(comments), len(entries))
		}
	})
}
