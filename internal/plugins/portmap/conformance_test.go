package portmap_test

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/skip"
)

// layouts are configurations that create the rules of the reference plugin.
var layouts = []struct {
	name   string
	config object
	ports  []string
}{
	{"iptables", object{"backend": "iptables"}, []string{"8080->80/tcp", "8080->80/udp", "9000->90/sctp"}},
	{"iptables without source NAT", object{"backend": "iptables", "snat": false}, []string{"8080->80/tcp"}},
	{"iptables masquerade all", object{"backend": "iptables", "masqAll": true}, []string{"8080->80/tcp"}},
	{"iptables mark bit", object{"markMasqBit": 3}, []string{"8080->80/tcp"}},
	{"iptables foreign chain", object{"externalSetMarkChain": "MARK-ME"}, []string{"8080->80/tcp"}},
	{"iptables conditions", object{"conditionsV4": []string{"!", "-d", "192.0.2.1"}, "conditionsV6": []string{"!", "-d", "fd00:2::1"}}, []string{"8080->80/tcp"}},
	{"iptables host IPs", object{"backend": "iptables"}, []string{
		"192.0.2.1:8080->80/tcp", "0.0.0.0:8081->80/tcp", "[fd00:2::1]:8082->80/tcp", "[::]:8083->80/udp"}},
	{"iptables long name", object{"backend": "iptables", "name": strings.Repeat("n", 240)}, []string{"8080->80/tcp"}},
	{"iptables many ports", object{"backend": "iptables"}, many(17)},
	{"nftables", object{"backend": "nftables"}, []string{"8080->80/tcp", "8080->80/udp", "9000->90/sctp"}},
	{"nftables without source NAT", object{"backend": "nftables", "snat": false}, []string{"8080->80/tcp"}},
	{"nftables conditions", object{"backend": "nftables", "conditionsV4": []string{"ip", "daddr", "!=", "192.0.2.1"}}, []string{"8080->80/tcp"}},
	{"nftables host IPs", object{"backend": "nftables"}, []string{
		"192.0.2.1:8080->80/tcp", "0.0.0.0:8081->80/tcp", "[fd00:2::1]:8082->80/tcp", "[::]:8083->80/udp"}},
}

func many(n int) []string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf("%d->80/tcp", 8000+i))
	}
	return list
}

// rules returns the rules of the host.
func (h *testHost) rules() string {
	h.t.Helper()
	return packets.ReplaceAllString(h.run("nft", "list", "ruleset"), "counter")
}

// guard matches the table that the native plugin adds to a layout of the
// reference plugin.
var guard = regexp.MustCompile(`(?ms)^table ip allocnet_guard \{.*?^\}\n`)

var packets = regexp.MustCompile(`counter packets \d+ bytes \d+`)

// TestReferenceLayouts publishes host ports with the reference plugin and with
// the native one. The rules are the same, and each plugin's CHECK and DEL work
// on the rules of the other.
func TestReferenceLayouts(t *testing.T) {
	for i, test := range layouts {
		t.Run(test.name, func(t *testing.T) {
			skip.InTurn(t, i, 5)
			h := newTestHost(t)
			two := h.allocation(2).with(test.config).with(ports(test.ports...))
			life := func(one, other answer) (with, without string) {
				h.clear()
				_, err := two.call(one, "ADD")
				require.NoError(t, err)
				with = h.rules()
				for _, checker := range []answer{one, other} {
					_, err := two.call(checker, "CHECK")
					require.NoError(t, err)
				}
				for _, x := range []answer{other, one} {
					_, err := two.call(x, "DEL")
					require.NoError(t, err)
				}
				return with, h.rules()
			}
			want, wantLeft := life(h.reference, h.native)
			got, left := life(h.native, h.reference)
			require.NotRegexp(t, guard, want, "CHECK of ours accepts that there is none")
			require.Equal(t, want, guard.ReplaceAllString(got, ""))
			require.Equal(t, wantLeft, guard.ReplaceAllString(left, ""))
			require.NotContains(t, left, "CNI-DN-")
			require.NotContains(t, left, "alloc-2")
		})
	}
}

// clear restores the initial rules, which include a foreign chain.
func (h *testHost) clear() {
	h.t.Helper()
	privhost.FlushRuleset(h.t)
	for _, program := range []string{"iptables", "ip6tables"} {
		h.run(program, "-t", "nat", "-N", "MARK-ME")
	}
}

// TestBackendCheck: in each layout, CHECK reports missing rules and DEL removes
// the rest.
func TestBackendCheck(t *testing.T) {
	tests := []struct{ backend, remove string }{
		{"iptables", "iptables -t nat -F CNI-HOSTPORT-DNAT"},
		{"iptables", "ip6tables -t nat -F CNI-HOSTPORT-DNAT"},
		{"iptables", "nft flush ruleset"},
		{"nftables", "nft flush chain ip cni_hostport hostports"},
		{"nftables", "nft flush chain ip6 cni_hostport masquerading"},
		{"nftables", "nft delete table ip cni_hostport"},
	}
	h := newTestHost(t)
	two := h.allocation(2).with(ports("8080->80/tcp"))
	for _, test := range tests {
		t.Run(test.remove, func(t *testing.T) {
			h.clear()
			two := two.with(object{"backend": test.backend})
			two.do("ADD")
			two.do("CHECK")
			words := strings.Fields(test.remove)
			h.run(words[0], words[1:]...)
			_, err := two.call(h.native, "CHECK")
			require.Error(t, err)
			_, referenceErr := two.call(h.reference, "CHECK")
			require.Error(t, referenceErr)
			require.Equal(t, code(referenceErr), code(err))
			two.do("DEL")
			two.do("DEL")
			require.NotContains(t, h.rules(), "CNI-DN-")
			require.NotContains(t, h.rules(), "alloc-2")
		})
	}
}

// TestBackendAddAgain: another ADD without a DEL replaces the rules of the
// first one.
func TestBackendAddAgain(t *testing.T) {
	h := newTestHost(t)
	two := h.allocation(2)
	for _, backend := range []string{"iptables", "nftables"} {
		t.Run(backend, func(t *testing.T) {
			h.clear()
			two := two.with(object{"backend": backend})
			other := two.with(ports("9090->80/tcp"))
			two = two.with(ports("8080->80/tcp"))
			two.do("ADD")
			once := h.rules()
			other.do("ADD")
			other.do("CHECK")
			require.NotContains(t, h.rules(), "8080")
			two.do("ADD")
			require.Equal(t, once, h.rules())
		})
	}
}

// TestFirstAtOnce: concurrent ADDs publish the first host ports of a host, and
// so also create the shared chains.
func TestFirstAtOnce(t *testing.T) {
	h := newTestHost(t)
	var allocations []*allocation
	for i := range 4 {
		allocations = append(allocations, h.allocation(10+i).with(ports(fmt.Sprintf("%d->80/tcp", 8000+i))))
	}
	for _, backend := range []string{"iptables", "nftables"} {
		t.Run(backend, func(t *testing.T) {
			h.clear()
			var all []*allocation
			for _, a := range allocations {
				all = append(all, a.with(object{"backend": backend}))
			}
			for _, command := range []string{"ADD", "CHECK", "DEL"} {
				errs := make([]error, len(all))
				var wait sync.WaitGroup
				for i, a := range all {
					wait.Go(func() { _, errs[i] = a.call(h.native, command) })
				}
				wait.Wait()
				require.NoError(t, errors.Join(errs...), command)
			}
			require.NotContains(t, h.rules(), "CNI-DN-")
			require.NotContains(t, h.rules(), "alloc-1")
		})
	}
}
