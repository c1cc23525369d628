package plan

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/engine"
)

// TestSelection contains the cases of the schedulers: the interface and the
// addresses that they publish.
func TestSelection(t *testing.T) {
	for name, c := range map[string]struct {
		results []string
		want    allocnet.Status // InterfaceName, Address, AddressIPv6 and DNS
		wantErr error
	}{
		"bridge: host links without sandbox come first in the result": {
			results: []string{`{"interfaces":[{"name":"cni0","mac":"02:00:00:00:00:01"},{"name":"veth1"},{"name":"eth0","sandbox":"/ns"}],
				"ips":[{"interface":2,"address":"10.0.0.2/24","gateway":"10.0.0.1"}]}`},
			want: allocnet.Status{InterfaceName: "eth0", Address: "10.0.0.2"},
		},
		"a virtual machine behind a tap: not the interface in the namespace": {
			results: []string{`{"interfaces":[{"name":"veth0","sandbox":"/ns"},{"name":"tap0","sandbox":"/ns"},{"name":"tap0","sandbox":"vm"}],
				"ips":[{"interface":0,"address":"10.0.0.2/24"},{"interface":2,"address":"10.0.0.2/24"}]}`},
			want: allocnet.Status{InterfaceName: "veth0", Address: "10.0.0.2"},
		},
		"an address without interface is not that of the virtual machine": {
			results: []string{`{"interfaces":[{"name":"eth0","sandbox":"vm"}],"ips":[{"interface":0,"address":"10.0.0.3/24"},{"address":"10.0.0.2/24"}]}`},
			want:    allocnet.Status{InterfaceName: "eth0", Address: "10.0.0.2"},
		},
		"a virtual machine before the host": {
			results: []string{`{"interfaces":[{"name":"br0"},{"name":"tap0","sandbox":"vm"}],
				"ips":[{"interface":0,"address":"10.0.0.1/24"},{"interface":1,"address":"10.0.0.2/24"}]}`},
			want: allocnet.Status{InterfaceName: "tap0", Address: "10.0.0.2"},
		},
		"sorted by name, not by place": {
			results: []string{`{"interfaces":[{"name":"eth1","sandbox":"/ns"},{"name":"eth0","sandbox":"/ns"}],
				"ips":[{"interface":0,"address":"10.0.1.2/24"},{"interface":1,"address":"10.0.0.2/24"}]}`},
			want: allocnet.Status{InterfaceName: "eth0", Address: "10.0.0.2"},
		},
		"a sandbox wins over a name": {
			results: []string{`{"interfaces":[{"name":"aaa"},{"name":"eth0","sandbox":"/ns"}],
				"ips":[{"interface":0,"address":"10.0.1.2/24"},{"interface":1,"address":"10.0.0.2/24"}]}`},
			want: allocnet.Status{InterfaceName: "eth0", Address: "10.0.0.2"},
		},
		"an address wins over a sandbox": {
			results: []string{`{"interfaces":[{"name":"eth0","sandbox":"/ns"},{"name":"veth9"}],
				"ips":[{"interface":1,"address":"10.0.1.2/24"}]}`},
			want: allocnet.Status{InterfaceName: "veth9", Address: "10.0.1.2"},
		},
		"both families, the first of each, of the same interface": {
			results: []string{`{"interfaces":[{"name":"eth0","sandbox":"/ns"},{"name":"eth1","sandbox":"/ns"}],
				"ips":[{"interface":1,"address":"fd00::9/64"},{"interface":0,"address":"fd00::2/64"},{"interface":0,"address":"10.0.0.2/24"},{"interface":0,"address":"10.0.0.3/24"},{"interface":0,"address":"fd00::3/64"}]}`},
			want: allocnet.Status{InterfaceName: "eth0", Address: "10.0.0.2", AddressIPv6: "fd00::2"},
		},
		"IPv6 only is the address too": {
			results: []string{`{"interfaces":[{"name":"eth0","sandbox":"/ns"}],"ips":[{"interface":0,"address":"fd00::2/64"}]}`},
			want:    allocnet.Status{InterfaceName: "eth0", Address: "fd00::2", AddressIPv6: "fd00::2"},
		},
		"an IPv4-mapped address is an IPv4 address": {
			results: []string{`{"interfaces":[{"name":"eth0","sandbox":"/ns"}],"ips":[{"interface":0,"address":"::ffff:10.0.0.2/120"}]}`},
			want:    allocnet.Status{InterfaceName: "eth0", Address: "10.0.0.2"},
		},
		"no interfaces: the address is of the one that was asked for": {
			results: []string{`{"ips":[{"address":"10.0.0.2/24"}]}`},
			want:    allocnet.Status{InterfaceName: "eth0", Address: "10.0.0.2"},
		},
		"an address without interface is of the one in the sandbox, not of its namesake on the host": {
			results: []string{`{"interfaces":[{"name":"eth0"},{"name":"eth0","sandbox":"/ns"}],"ips":[{"address":"10.0.0.2/24"}]}`},
			want:    allocnet.Status{InterfaceName: "eth0", Address: "10.0.0.2"},
		},
		"the first network is the primary one": {
			results: []string{`{"interfaces":[{"name":"zzz","sandbox":"/ns"}],"ips":[{"interface":0,"address":"10.0.0.2/24"}],"dns":{}}`,
				`{"interfaces":[{"name":"aaa","sandbox":"/ns"}],"ips":[{"interface":0,"address":"10.1.0.2/24"}],"dns":{"nameservers":["10.1.0.1"],"domain":"d","search":["s"],"options":["o"]}}`},
			want: allocnet.Status{InterfaceName: "zzz", Address: "10.0.0.2", DNS: &allocnet.DNS{Servers: []string{"10.1.0.1"}, Domain: "d", Searches: []string{"s"}, Options: []string{"o"}}},
		},
		"DNS without a server is none": {
			results: []string{`{"ips":[{"address":"10.0.0.2/24"}],"dns":{"domain":"d","search":["s"]}}`},
			want:    allocnet.Status{InterfaceName: "eth0", Address: "10.0.0.2"},
		},
		"no address": {
			results: []string{`{"interfaces":[{"name":"br0"},{"name":"eth0","sandbox":"/ns"}]}`},
			want:    allocnet.Status{InterfaceName: "eth0"},
		},
		"no address but that of the loopback interface": {
			results: []string{`{"interfaces":[{"name":"lo","sandbox":"/ns"}],"ips":[{"interface":0,"address":"127.0.0.1/8"}]}`,
				`{"interfaces":[{"name":"net0","sandbox":"/ns"}]}`},
			want: allocnet.Status{InterfaceName: "net0"},
		},
		"no address in the first network": {
			results: []string{`{"interfaces":[{"name":"eth0","sandbox":"/ns"}]}`,
				`{"interfaces":[{"name":"eth1","sandbox":"/ns"}],"ips":[{"interface":0,"address":"10.0.0.2/24"}]}`},
			want: allocnet.Status{InterfaceName: "eth1", Address: "10.0.0.2"},
		},
		"nothing":               {results: []string{`{}`}},
		"index out of range":    {results: []string{`{"interfaces":[{"name":"eth0"}],"ips":[{"interface":1,"address":"10.0.0.2/24"}]}`}, wantErr: allocnet.ErrInvalidResult},
		"index below the range": {results: []string{`{"interfaces":[{"name":"eth0"}],"ips":[{"interface":-1,"address":"10.0.0.2/24"}]}`}, wantErr: allocnet.ErrInvalidResult},
		"null interface":        {results: []string{`{"interfaces":[null],"ips":[{"address":"10.0.0.2/24"}]}`}, wantErr: allocnet.ErrInvalidResult},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := statusFromTexts(c.results...)
			if c.wantErr != nil {
				require.ErrorIs(t, err, c.wantErr)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want.InterfaceName, s.InterfaceName)
			require.Equal(t, c.want.Address, s.Address)
			require.Equal(t, c.want.AddressIPv6, s.AddressIPv6)
			require.Equal(t, c.want.DNS, s.DNS)
		})
	}
}

// statusFromTexts parses results as a plugin of version 1.1.0 prints them.
func statusFromTexts(texts ...string) (*allocnet.Status, error) {
	var results []networkResult
	for i, text := range texts {
		r, err := parseLoosely(text)
		if err != nil {
			return nil, err
		}
		results = append(results, networkResult{network: string(rune('a' + i)), ifName: "eth0", netns: "/ns", result: r})
	}
	return newStatus(results, nil)
}

func TestFullResult(t *testing.T) {
	s, err := statusFromTexts(`{"interfaces":[{"name":"br"},{"name":"eth0","mac":"02:00:00:00:00:02","mtu":1400,"sandbox":"/ns"}],
		"ips":[{"interface":1,"address":"10.0.0.2/24","gateway":"10.0.0.1"}],
		"routes":[{"dst":"0.0.0.0/0","gw":"10.0.0.1","mtu":1300},{"dst":"fd00::/8"}]}`)
	require.NoError(t, err)
	require.Equal(t, []allocnet.Interface{
		{Network: "a", Name: "br"},
		{Network: "a", Name: "eth0", MAC: "02:00:00:00:00:02", MTU: 1400, Sandbox: "/ns",
			Addresses: []allocnet.Address{{Address: "10.0.0.2/24", Gateway: "10.0.0.1"}}},
	}, s.Interfaces)
	require.Equal(t, []allocnet.Route{
		{Network: "a", Destination: "0.0.0.0/0", Gateway: "10.0.0.1", MTU: 1300},
		{Network: "a", Destination: "fd00::/8"},
	}, s.Routes)
}

func FuzzStatus(f *testing.F) {
	f.Add(`{"interfaces":[{"name":"eth0","sandbox":"/ns"}],"ips":[{"interface":0,"address":"10.0.0.2/24"}],"routes":[{"dst":"0.0.0.0/0"}]}`)
	f.Add(`{"ips":[{"address":"::1/128"},{"interface":3,"address":"1.2.3.4/5"}]}`)
	f.Add(`{"ips":[null],"interfaces":[null],"routes":[null]}`)
	f.Fuzz(func(t *testing.T, text string) {
		r, err := engine.ParseResult([]byte(text))
		if err != nil {
			return
		}
		s, err := newStatus([]networkResult{{network: "n", ifName: "eth0", netns: "/ns", result: r}}, nil)
		require.NoError(t, err, "what is invalid is refused when the result is parsed")
		require.NotNil(t, s.Interfaces)
		require.True(t, s.Address == "" || s.InterfaceName != "", "each address is of an interface")
	})
}

func TestDNSOfTheFirstNetworkThatHasAServer(t *testing.T) {
	s, err := statusFromTexts(`{"ips":[{"address":"10.0.0.2/24"}],"dns":{"domain":"none"}}`,
		`{"ips":[{"address":"10.0.1.2/24"}],"dns":{"nameservers":["192.0.2.1"]}}`,
		`{"ips":[{"address":"10.0.2.2/24"}],"dns":{"nameservers":["192.0.2.2"]}}`)
	require.NoError(t, err)
	require.Equal(t, &allocnet.DNS{Servers: []string{"192.0.2.1"}}, s.DNS)
}

func TestNullRoute(t *testing.T) {
	s, err := statusFromTexts(`{"ips":[{"address":"10.0.0.2/24"}],"routes":[null,{"dst":"10.0.0.0/8"}]}`)
	require.NoError(t, err)
	require.Equal(t, []allocnet.Route{{Network: "a", Destination: "10.0.0.0/8"}}, s.Routes)
}
