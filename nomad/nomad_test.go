package nomad

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/testing/imports"
	"github.com/allocnet/allocnet/portmap"
)

// group returns a group with a network of the mode "bridge" and the given ports.
func group(ports ...AllocatedPort) *Group {
	return &Group{
		AllocID: "4cf0a37d", Region: "global", Namespace: "default", JobID: "web", Name: "front",
		Shared: Shared{Networks: []Network{{Mode: "bridge"}}, Ports: ports},
	}
}

// read reads a network block as Nomad's parser returns it.
func read(t *testing.T, name string) *Network {
	text, err := os.ReadFile("testdata/" + name)
	require.NoError(t, err)
	var networks []Network
	require.NoError(t, json.Unmarshal(text, &networks))
	require.Len(t, networks, 1)
	return &networks[0]
}

func TestAllocation(t *testing.T) {
	g := group(AllocatedPort{"http", 20100, 8080, "192.0.2.1"}, AllocatedPort{"metrics", 20101, 0, ""}, AllocatedPort{"admin", 9901, -1, ""})
	g.JobID, g.Name = "a;b", "c=d"
	g.Networks[0].Mode = "cni/web"
	g.Networks[0].CNI = &CNI{Args: map[string]string{"color": "red"}}
	a, err := g.Allocation()
	require.NoError(t, err)
	require.Equal(t, allocnet.Allocation{
		ID: "4cf0a37d", Networks: []string{"web"},
		Args:          map[string]string{"color": "red"},
		SchedulerArgs: map[string]string{"NOMAD_ALLOC_ID": "4cf0a37d", "NOMAD_REGION": "global", "NOMAD_NAMESPACE": "default"},
		Ports: []portmap.Port{
			{Label: "http", Value: 20100, To: 8080, HostIP: "192.0.2.1"}, {Label: "metrics", Value: 20101, To: 20101}, {Label: "admin", Value: 9901, To: 9901},
		},
	}, a)
}

func TestAllocationOfNetworkPorts(t *testing.T) {
	g := group()
	g.Networks[0].ReservedPorts = []Port{{Label: "lb", Value: 80, HostNetwork: "public"}}
	g.Networks[0].DynamicPorts = []Port{{Label: "http", Value: 20100, To: 8080}}
	a, err := g.Allocation()
	require.NoError(t, err)
	require.Equal(t, []string{BridgeNetwork}, a.Networks)
	require.Equal(t, []portmap.Port{{Label: "http", Value: 20100, To: 8080}, {Label: "lb", Value: 80, To: 80}}, a.Ports)
}

func TestAllocationWithoutNetwork(t *testing.T) {
	for _, networks := range [][]Network{nil, {{}}, {{Mode: "host"}}, {{Mode: "none"}}} {
		g := group()
		g.Networks = networks
		_, err := g.Allocation()
		require.ErrorIs(t, err, ErrNoNetwork)
	}
}

func TestAllocationErrors(t *testing.T) {
	for want, g := range map[string]*Group{
		`another port has the same label`:      group(AllocatedPort{"http", 80, 0, ""}, AllocatedPort{"http", 81, 0, ""}),
		`port 1 has no label`:                  group(AllocatedPort{"http", 80, 0, ""}, AllocatedPort{"", 81, 0, ""}),
		`("http"): value "0" must be`:          group(AllocatedPort{"http", 0, 8080, ""}),
		`("http"): value "65536" must be`:      group(AllocatedPort{"http", 65536, 0, ""}),
		`("http"): to "65536" must be`:         group(AllocatedPort{"http", 80, 65536, ""}),
		`("http"): hostIP "public" must be`:    group(AllocatedPort{"http", 80, 0, "public"}),
		`port 80 on all addresses ("b"): host`: group(AllocatedPort{"a", 80, 0, ""}, AllocatedPort{"b", 80, 1, ""}),
		`unknown network mode "cni/"`:          {Shared: Shared{Networks: []Network{{Mode: "cni/"}}}},
		`unknown network mode "Bridge"`:        {Shared: Shared{Networks: []Network{{Mode: "Bridge"}}}},
		`2 networks; a group has one at most`:  {Shared: Shared{Networks: make([]Network, 2)}},
	} {
		_, err := g.Allocation()
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "convert group")
	}
	_, err := group(AllocatedPort{"http", 0, 0, ""}).Allocation()
	var fault *portmap.PortError
	require.ErrorAs(t, err, &fault)
	require.Equal(t, "http", fault.Label)
}

func TestAllocate(t *testing.T) {
	next := 20000
	host := Host{
		Networks: map[string]string{"private": "192.0.2.1", "public": "198.51.100.1"},
		Choose:   func(string) (int, error) { next++; return next, nil },
	}
	ports, err := read(t, "cni.json").Allocate(host)
	require.NoError(t, err)
	require.Equal(t, []AllocatedPort{{"http", 20001, 8080, "192.0.2.1"}, {"metrics", 20002, 0, ""}}, ports)

	host.Networks["default"] = "203.0.113.1"
	ports, err = read(t, "bridge.json").Allocate(host)
	require.NoError(t, err)
	require.Equal(t, []AllocatedPort{{"https", 443, 8443, "198.51.100.1"}, {"admin", 9901, -1, "203.0.113.1"}}, ports)
}

func TestAllocateErrors(t *testing.T) {
	none := errors.New("no port is free")
	for want, n := range map[string]*Network{
		`port "lb": static 70000 must be 1 to 65535`: {ReservedPorts: []Port{{Label: "lb", Value: 70000}}},
		`port "lb": static 0 must be 1 to 65535`:     {ReservedPorts: []Port{{Label: "lb"}}},
		`port "lb": to -2 must be`:                   {ReservedPorts: []Port{{Label: "lb", Value: 80, To: -2}}},
		`port "lb": to 65536 must be`:                {DynamicPorts: []Port{{Label: "lb", To: 65536}}},
		`port "lb": unknown host_network "public"`:   {DynamicPorts: []Port{{Label: "lb", HostNetwork: "public"}}},
		`port "lb": no port is free`:                 {DynamicPorts: []Port{{Label: "lb"}}},
		`port "lb": another port has the same label`: {ReservedPorts: []Port{{Label: "lb", Value: 80}}, DynamicPorts: []Port{{Label: "lb", Value: 81}}},
	} {
		ports, err := n.Allocate(Host{Choose: func(string) (int, error) { return 0, none }})
		require.ErrorContains(t, err, want)
		require.Nil(t, ports)
	}
	_, err := (&Network{DynamicPorts: []Port{{Label: "lb"}}}).Allocate(Host{})
	require.ErrorContains(t, err, `port "lb": no host port is chosen`)
}

func TestStatusOf(t *testing.T) {
	require.Nil(t, StatusOf(nil))
	require.Equal(t, &NetworkStatus{InterfaceName: "eth0", Address: "10.0.0.2", AddressIPv6: "fd00::2", DNS: &DNS{Servers: []string{"192.0.2.53"}}},
		StatusOf(&allocnet.Status{InterfaceName: "eth0", Address: "10.0.0.2", AddressIPv6: "fd00::2", DNS: &allocnet.DNS{Servers: []string{"192.0.2.53"}}}))
}

func TestDNS(t *testing.T) {
	g, ofNetwork := group(), &allocnet.Status{DNS: &allocnet.DNS{Servers: []string{"198.51.100.53"}}}
	require.Nil(t, g.DNS(nil))
	require.Equal(t, "nameserver 198.51.100.53\n", string(allocnet.ResolvConf(g.DNS(ofNetwork))))
	g.Networks = []Network{*read(t, "cni.json")}
	require.Equal(t, "search example.org\nnameserver 192.0.2.53\noptions ndots:2\n", string(allocnet.ResolvConf(g.DNS(ofNetwork))))
}

func TestEnvironment(t *testing.T) {
	g := group(AllocatedPort{"http", 20100, 8080, "192.0.2.1"}, AllocatedPort{"my-admin", 9901, -1, ""})
	require.Equal(t, `
NOMAD_IP_http=192.0.2.1
NOMAD_HOST_IP_http=192.0.2.1
NOMAD_HOST_PORT_http=20100
NOMAD_ADDR_http=192.0.2.1:20100
NOMAD_HOST_ADDR_http=192.0.2.1:20100
NOMAD_PORT_http=8080
NOMAD_ALLOC_PORT_http=8080
NOMAD_ALLOC_INTERFACE_http=eth0
NOMAD_ALLOC_IP_http=fd00::2
NOMAD_ALLOC_ADDR_http=[fd00::2]:8080
NOMAD_HOST_PORT_my_admin=9901
NOMAD_PORT_my_admin=9901
NOMAD_ALLOC_PORT_my_admin=9901
NOMAD_ALLOC_INTERFACE_my_admin=eth0
NOMAD_ALLOC_IP_my_admin=fd00::2
NOMAD_ALLOC_ADDR_my_admin=[fd00::2]:9901`,
		"\n"+strings.Join(g.Environment(&allocnet.Status{InterfaceName: "eth0", Address: "fd00::2", AddressIPv6: "fd00::2"}), "\n"))
	require.Equal(t, []string{"NOMAD_HOST_PORT_a=80", "NOMAD_PORT_a=80", "NOMAD_ALLOC_PORT_a=80"}, group(AllocatedPort{"a", 80, 0, ""}).Environment(nil))
}

// TestOfNomad compares with Nomad 1.6.1: alloc.json is a part of what "nomad alloc status
// -json" printed for a job of docs/nomad, env has the variables of the ports in its task.
func TestOfNomad(t *testing.T) {
	text, err := os.ReadFile("testdata/alloc.json")
	require.NoError(t, err)
	var alloc struct {
		ID, Namespace, JobID, TaskGroup string
		AllocatedResources              struct{ Shared Shared }
	}
	require.NoError(t, json.Unmarshal(text, &alloc))
	g := &Group{AllocID: alloc.ID, Namespace: alloc.Namespace, JobID: alloc.JobID, Name: alloc.TaskGroup, Shared: alloc.AllocatedResources.Shared}
	a, err := g.Allocation()
	require.NoError(t, err)
	require.Equal(t, []string{"web"}, a.Networks)
	require.Equal(t, []portmap.Port{
		{Label: "http", Value: 24446, To: 8080, HostIP: "198.51.100.1"}, {Label: "metrics", Value: 24795, To: 24795, HostIP: "192.0.2.1"},
	}, a.Ports)
	require.Equal(t, []string{"192.0.2.53"}, g.DNS(nil).Servers)
	env, err := os.ReadFile("testdata/env")
	require.NoError(t, err)
	require.ElementsMatch(t, strings.Fields(string(env)), g.Environment(nil))
}

func TestGroupOfForeignRecords(t *testing.T) {
	for _, r := range []*allocnet.Record{
		{Networks: []allocnet.NetworkRecord{{Network: "web"}}}, {Args: map[string]string{"NOMAD_ALLOC_ID": "4cf0a37d"}},
	} {
		_, is := GroupOf(r)
		require.False(t, is)
	}
}

// recorded returns the record of an allocation.
func recorded(t *testing.T, a allocnet.Allocation) *allocnet.Record {
	mappings, err := portmap.Mappings(a.Ports, portmap.Options{})
	require.NoError(t, err)
	r := &allocnet.Record{ID: a.ID, Ports: mappings, Args: map[string]string{}}
	for _, args := range []map[string]string{a.Args, a.SchedulerArgs} {
		for name, value := range args {
			r.Args[name] = value
		}
	}
	for _, name := range a.Networks {
		r.Networks = append(r.Networks, allocnet.NetworkRecord{Network: name})
	}
	return r
}

// FuzzRoundTrip: the group of the record of an allocation leads to the same record.
func FuzzRoundTrip(f *testing.F) {
	f.Add("4cf0a37d", "web", "bridge", "http", 20100, 8080, "192.0.2.1", "color", "red")
	f.Add("4cf0a37d", "a;b", "cni/web", "http", 80, -1, "", "", "")
	f.Add("4cf0a37d", "", "cni/web", "http", 80, 0, "0:0::1", "NOMAD_REGION", "x")
	f.Fuzz(func(t *testing.T, id, job, mode, label string, value, to int, ip, arg, argValue string) {
		g := group(AllocatedPort{label, value, to, ip}, AllocatedPort{label + "2", 1, 2, ip})
		g.AllocID, g.JobID, g.Networks[0].Mode = id, job, mode
		if arg != "" {
			g.Networks[0].CNI = &CNI{Args: map[string]string{arg: argValue}}
		}
		a, err := g.Allocation()
		if err != nil || a.SchedulerArgs[argAllocID] == "" {
			return
		}
		first := recorded(t, a)
		again, is := GroupOf(first)
		require.True(t, is)
		require.Equal(t, id, again.AllocID)
		b, err := again.Allocation()
		require.NoError(t, err)
		require.Equal(t, first, recorded(t, b))
	})
}

// TestImports: the package is as small as the types that it converts.
func TestImports(t *testing.T) {
	imports.RequireNone(t, append(imports.OfEngines, imports.OfPrograms...)...)
}
