package cleanup

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeTables simulates the tables of both families by listings, and counts the
// calls.
type fakeTables struct {
	text    map[string]string // "<family> <table>" -> listing
	fail    map[string]error
	kernel  map[string]fakeKernel
	listed  []string
	deleted []string
}

// fakeKernel is a table in the kernel.
type fakeKernel struct {
	chains   []string
	accepted []netip.Addr
	err      error
}

func (k fakeKernel) Chains(context.Context) ([]string, error) { return k.chains, k.err }
func (k fakeKernel) Addresses(context.Context, string) ([]netip.Addr, error) {
	return k.accepted, k.err
}
func (k fakeKernel) HiddenChains(context.Context) ([]string, error) { return k.chains, k.err }
func (k fakeKernel) HiddenAddresses(context.Context, string) ([]netip.Addr, error) {
	return k.accepted, k.err
}
func (k fakeKernel) HiddenComments(context.Context) ([]string, error) { return nil, k.err }
func (k fakeKernel) HeldByOther(what string) error                    { return errors.New(what) }

func (k fakeKernel) Held(cause error, what string) error { return fmt.Errorf("%s: %w", what, cause) }

// open returns the command of one family.
func (f *fakeTables) open(fam family) (tables, error) {
	return fakeCommand{fam, f}, f.fail[string(fam)]
}

type fakeCommand struct {
	fam family
	*fakeTables
}

func (c fakeCommand) List(_ context.Context, table string, _ ...string) ([]string, error) {
	key := string(c.fam) + " " + table
	c.listed = append(c.listed, key)
	c.fakeTables.listed = c.listed
	return strings.Split(c.text[key], "\n"), c.fail[key]
}

func (c fakeCommand) Delete(_ context.Context, table, chain string, spec ...string) error {
	c.fakeTables.deleted = append(c.fakeTables.deleted, strings.Join(append([]string{string(c.fam), table, chain}, spec...), "|"))
	return c.fail["delete "+chain]
}

func (c fakeCommand) ClearAndDeleteChain(_ context.Context, table, chain string) error {
	c.fakeTables.deleted = append(c.fakeTables.deleted, strings.Join([]string{string(c.fam), table, chain}, "|"))
	return c.fail["delete "+chain]
}

// searchWith returns a search that uses only a fake iptables.
func searchWith(fake *fakeTables, t Target) *search {
	s := newSearch(t)
	s.iptables.open = fake.open
	s.iptables.kernel = func(fam family, table string) kernelTable { return fake.kernel[string(fam)+" "+table] }
	s.addResultAddresses()
	return s
}

const resultV4 = `{"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}]}`

func iptTarget(config, result string) Target {
	return Target{ID: "id", Attachments: []Attachment{
		{Network: "one", IfName: "eth0", Config: []byte(config), Result: []byte(result)},
	}}
}

// chainOfOne is a kernel in which the allocation has a chain in each family.
var chainOfOne = map[string]fakeKernel{
	"ipv4 nat": {chains: []string{"CNI-68966f9f256fea8957de7869"}}, "ipv6 nat": {chains: []string{"CNI-68966f9f256fea8957de7869"}},
}

// TestIPTablesListings: only tables that can contain rules of the allocation
// are listed, and each once.
func TestIPTablesListings(t *testing.T) {
	const firewall, masq = `{"type": "firewall"}`, `{"type": "bridge", "ipMasq": true}`
	accept := map[string]string{"ipv4 filter": "-A CNI-FORWARD -s 10.0.0.2/32 -j ACCEPT"}
	tests := []struct {
		name, config, result string
		text                 map[string]string
		kernel               map[string]fakeKernel
		want                 []string
	}{
		{name: "nothing that uses iptables", config: `{"type": "bridge"}`},
		{name: "nftables alone", config: `{"type": "portmap", "backend": "nftables"}`},
		{name: "family of the result", config: masq, result: resultV4, want: []string{"ipv4 nat"}},
		{name: "no chain in the kernel", config: masq},
		{
			name: "family unknown", config: masq, kernel: chainOfOne, want: []string{"ipv4 nat", "ipv6 nat"},
			text: map[string]string{"ipv4 nat": natListing, "ipv6 nat": natListing},
		},
		{name: "no address, no accepts", config: firewall},
		{name: "accepts", config: firewall, result: resultV4, want: []string{"ipv4 filter"}},
		{
			name: "who holds the accepted address", config: firewall, result: resultV4, text: accept,
			want: []string{"ipv4 filter", "ipv4 nat"},
		},
		{
			name: "both", config: `{"plugins": [` + masq + `,` + firewall + `]}`, result: resultV4, text: accept,
			want: []string{"ipv4 nat", "ipv4 filter"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			fake := &fakeTables{text: test.text, kernel: test.kernel}
			_, err := searchWith(fake, iptTarget(test.config, test.result)).iptables.find(context.Background())
			require.NoError(t, err)
			require.Equal(t, test.want, fake.listed)
		})
	}
}

const natListing = `-P POSTROUTING ACCEPT
-N CNI-68966f9f256fea8957de7869
-N CNI-DN-68966f9f256fea8957de7
-N CNI-000000000000000000000000
-N CNI-HOSTPORT-DNAT
-A POSTROUTING -s 10.0.0.2/32 -m comment --comment "name: \"one\" id: \"id\"" -j CNI-68966f9f256fea8957de7869
-A POSTROUTING -s 10.0.0.3/32 -m comment --comment "name: \"one\" id: \"id2\"" -j CNI-000000000000000000000000
-A CNI-68966f9f256fea8957de7869 -d 10.0.0.0/24 -m comment --comment "name: \"one\" id: \"id\"" -j ACCEPT
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"one\" id: \"id\"" -m multiport --dports 80 -j CNI-DN-68966f9f256fea8957de7
-A CNI-DN-68966f9f256fea8957de7 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.0.0.4:80
-A OUTPUT -m comment --comment "my own id: \"id\"" -j ACCEPT`

const filterListing = `-N CNI-FORWARD
-A CNI-FORWARD -d 10.0.0.2/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A CNI-FORWARD -s 10.0.0.2/32 -j ACCEPT
-A CNI-FORWARD -s 10.0.0.2/32 -p tcp -j ACCEPT
-A CNI-FORWARD -s 10.0.0.2/31 -j ACCEPT
-A CNI-FORWARD -s 10.0.0.2/32 -j DROP
-A CNI-FORWARD ! -s 10.0.0.2/32 -j ACCEPT
-A FORWARD -s 10.0.0.2/32 -j ACCEPT
-A CNI-FORWARD -s 10.0.0.3/32 -j ACCEPT
-A CNI-FORWARD -s 10.0.0.4/32 -j ACCEPT`

const fullChain = `{"plugins": [{"type": "bridge", "ipMasq": true}, {"type": "portmap"}, {"type": "firewall"}]}`

func TestIPTablesFindAndRemove(t *testing.T) {
	fake := &fakeTables{text: map[string]string{"ipv4 nat": natListing, "ipv4 filter": filterListing}}
	// The result also contains an address that another allocation masquerades
	// now.
	result := `{"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}, {"address": "10.0.0.3/24"}]}`
	s := searchWith(fake, iptTarget(fullChain, result))
	found, err := s.iptables.find(context.Background())
	require.NoError(t, err)
	removed, err := s.iptables.remove(context.Background())
	require.NoError(t, err)
	require.Equal(t, sorted(found), sorted(removed))
	const comment = `|-m|comment|--comment|`
	require.Equal(t, []string{
		`ipv4|nat|POSTROUTING|-s|10.0.0.2/32` + comment + `name: "one" id: "id"|-j|CNI-68966f9f256fea8957de7869`,
		`ipv4|nat|CNI-HOSTPORT-DNAT|-p|tcp` + comment +
			`dnat name: "one" id: "id"|-m|multiport|--dports|80|-j|CNI-DN-68966f9f256fea8957de7`,
		`ipv4|filter|CNI-FORWARD|-d|10.0.0.2/32|-m|conntrack|--ctstate|RELATED,ESTABLISHED|-j|ACCEPT`,
		`ipv4|filter|CNI-FORWARD|-s|10.0.0.2/32|-j|ACCEPT`,
		`ipv4|filter|CNI-FORWARD|-s|10.0.0.4/32|-j|ACCEPT`,
		`ipv4|nat|CNI-68966f9f256fea8957de7869`,
		`ipv4|nat|CNI-DN-68966f9f256fea8957de7`,
	}, fake.deleted)
}

// TestIPTablesAddresses: if the result is unknown, the addresses are derived
// from the rules.
func TestIPTablesAddresses(t *testing.T) {
	fake := &fakeTables{text: map[string]string{"ipv4 nat": natListing}, kernel: map[string]fakeKernel{"ipv4 nat": chainOfOne["ipv4 nat"]}}
	s := searchWith(fake, iptTarget(fullChain, ""))
	_, err := s.iptables.find(context.Background())
	require.NoError(t, err)
	require.Equal(t, map[netip.Addr]string{
		netip.MustParseAddr("10.0.0.2"): "one", netip.MustParseAddr("10.0.0.4"): "one",
	}, s.addresses.own)
	require.Equal(t, map[netip.Addr]bool{netip.MustParseAddr("10.0.0.3"): true}, s.addresses.foreign)
}

// TestIPTablesSharedChain: a chain stays if another allocation has the same
// hash. Rules are distinguished by their comments.
func TestIPTablesSharedChain(t *testing.T) {
	shared := strings.Replace(natListing, `-A CNI-DN`, `-A CNI-HOSTPORT-DNAT -p udp -m comment `+
		`--comment "dnat name: \"on\" id: \"eid\"" -m multiport --dports 53 -j CNI-DN-68966f9f256fea8957de7
-A CNI-DN`, 1)
	fake := &fakeTables{text: map[string]string{"ipv4 nat": shared}}
	s := searchWith(fake, iptTarget(fullChain, resultV4))
	list, err := s.iptables.find(context.Background())
	require.NoError(t, err)
	require.NotContains(t, objects(list), "CNI-DN-68966f9f256fea8957de7")
	require.Contains(t, objects(list), "CNI-68966f9f256fea8957de7869")
	require.Len(t, list, 3)
}

// TestIPTablesChainWithForeignRules: a chain also stays if it contains another
// allocation's rules, even if no rule jumps to it.
func TestIPTablesChainWithForeignRules(t *testing.T) {
	mixed := natListing + `
-A CNI-68966f9f256fea8957de7869 -d 10.0.1.0/24 -m comment --comment "name: \"on\" id: \"eid\"" -j ACCEPT`
	fake := &fakeTables{text: map[string]string{"ipv4 nat": mixed}}
	list, err := searchWith(fake, iptTarget(fullChain, resultV4)).iptables.find(context.Background())
	require.NoError(t, err)
	require.NotContains(t, objects(list), "CNI-68966f9f256fea8957de7869")
	require.Contains(t, objects(list), "CNI-DN-68966f9f256fea8957de7")
}

func TestIPTablesErrors(t *testing.T) {
	broken := errors.New("broken")
	fake := &fakeTables{
		text:   map[string]string{"ipv4 nat": natListing, "ipv6 nat": natListing, "ipv4 filter": filterListing},
		fail:   map[string]error{"ipv6 nat": broken},
		kernel: chainOfOne,
	}
	s := searchWith(fake, iptTarget(fullChain, ""))
	list, err := s.iptables.find(context.Background())
	require.ErrorIs(t, err, broken)
	require.NotEmpty(t, list, "one family hides the other")

	fake.fail = map[string]error{"delete POSTROUTING": broken}
	removed, err := s.iptables.remove(context.Background())
	require.ErrorIs(t, err, broken)
	require.Len(t, removed, len(list)-1)
}

// TestIPTablesMissing: if a command cannot list the rules, the host is clean
// only if the kernel shows it.
func TestIPTablesMissing(t *testing.T) {
	broken := errors.New("broken")
	own, other := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	for name, test := range map[string]struct {
		kernel map[string]fakeKernel
		bare   bool // only the ID is known
		want   string
	}{
		"no tables":           {},
		"no tables, ID alone": {bare: true},
		"another's chain":     {kernel: map[string]fakeKernel{"ipv4 nat": {chains: []string{"CNI-000000000000000000000000", "POSTROUTING"}}}},
		"shared chains":       {kernel: map[string]fakeKernel{"ipv4 nat": {chains: []string{"CNI-HOSTPORT-DNAT", "POSTROUTING"}}}, bare: true},
		"anybody's chain": {
			kernel: map[string]fakeKernel{"ipv4 nat": {chains: []string{"CNI-000000000000000000000000"}}}, bare: true,
			want: "CNI-000000000000000000000000",
		},
		"masquerading": {
			kernel: map[string]fakeKernel{"ipv4 nat": {chains: []string{"CNI-68966f9f256fea8957de7869"}}}, want: "CNI-68966f9f256fea8957de7869",
		},
		"host ports": {
			kernel: map[string]fakeKernel{"ipv4 nat": {chains: []string{"CNI-DN-68966f9f256fea8957de7"}}}, want: "CNI-DN-68966f9f256fea8957de7",
		},
		"accepts":            {kernel: map[string]fakeKernel{"ipv4 filter": {accepted: []netip.Addr{other, own}}}, want: "for 10.0.0.2"},
		"another's accepts":  {kernel: map[string]fakeKernel{"ipv4 filter": {accepted: []netip.Addr{other}}}},
		"kernel says no":     {kernel: map[string]fakeKernel{"ipv4 nat": {err: broken}}, want: "broken"},
		"kernel says no too": {kernel: map[string]fakeKernel{"ipv4 filter": {err: broken}}, want: "broken"},
	} {
		t.Run(name, func(t *testing.T) {
			target := iptTarget(fullChain, resultV4)
			if test.bare {
				target.Attachments = nil
			}
			fake := &fakeTables{kernel: test.kernel, fail: map[string]error{"ipv4": exec.ErrNotFound, "ipv6": exec.ErrNotFound}}
			list, err := searchWith(fake, target).iptables.find(context.Background())
			require.Empty(t, list)
			if test.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, exec.ErrNotFound)
			require.ErrorContains(t, err, test.want)
		})
	}
}

// TestIPTablesOfTheOtherKind: rules that the installed iptables does not list
// may come from the other kind. The host is clean only if the kernel shows it.
func TestIPTablesOfTheOtherKind(t *testing.T) {
	broken := errors.New("broken")
	own, other := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	for name, test := range map[string]struct {
		kernel fakeKernel
		table  string
		listed string
		want   string
	}{
		"nothing":          {},
		"masquerading":     {table: "nat", kernel: fakeKernel{chains: []string{"CNI-68966f9f256fea8957de7869"}}, want: "CNI-68966f9f256fea8957de7869"},
		"listed":           {table: "nat", kernel: fakeKernel{chains: []string{"CNI-68966f9f256fea8957de7869"}}, listed: "-N CNI-68966f9f256fea8957de7869"},
		"another's chain":  {table: "nat", kernel: fakeKernel{chains: []string{"CNI-000000000000000000000000"}}},
		"unreadable":       {table: "nat", kernel: fakeKernel{err: broken}, want: "broken"},
		"accepts":          {table: "filter", kernel: fakeKernel{accepted: []netip.Addr{other, own}}, want: "for 10.0.0.2"},
		"listed accepts":   {table: "filter", kernel: fakeKernel{accepted: []netip.Addr{own}}, listed: "-A CNI-FORWARD -s 10.0.0.2/32 -j ACCEPT"},
		"another's accept": {table: "filter", kernel: fakeKernel{accepted: []netip.Addr{other}}},
	} {
		t.Run(name, func(t *testing.T) {
			key := "ipv4 " + test.table
			fake := &fakeTables{text: map[string]string{key: test.listed}, kernel: map[string]fakeKernel{key: test.kernel}}
			_, err := searchWith(fake, iptTarget(fullChain, resultV4)).iptables.find(context.Background())
			if test.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.want)
		})
	}
}

// TestOpenTables: an iptables that is not installed or does not work is an
// error.
func TestOpenTables(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	_, err := openTables(ipv6)
	require.ErrorIs(t, err, exec.ErrNotFound)
	require.ErrorContains(t, err, "ip6tables")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ip6tables"), []byte("#!/bin/sh\nexit 3\n"), 0o755))
	ipt, err := openTables(ipv6)
	require.NoError(t, err)
	_, err = list(context.Background(), ipt, "nat")
	require.ErrorContains(t, err, "exit status 3")
}

// TestIPTablesRetry: a concurrent change of the tables leads to another
// attempt.
func TestIPTablesRetry(t *testing.T) {
	dir := t.TempDir()
	busy := filepath.Join(dir, "busy")
	script := "#!/bin/sh\nrm " + busy + " 2>/dev/null && exit 4\nexit 0\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "iptables"), []byte(script), 0o755))
	require.NoError(t, os.WriteFile(busy, nil, 0o644))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	s := newSearch(Target{ID: "id"})
	err := s.iptables.change(context.Background(), ipv4, func(ipt tables) error { return ipt.Delete(context.Background(), "nat", "X") })
	require.NoError(t, err)
	require.NoFileExists(t, busy)
}
