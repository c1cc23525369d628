package portmap_test

import (
	"errors"
	"fmt"

	"github.com/allocnet/allocnet/portmap"
)

func ExampleMappings() {
	mappings, err := portmap.Mappings([]portmap.Port{
		{Label: "http", Value: 8080, To: 80},
		{Label: "rtp", Value: 9000, Range: 2, HostIP: "10.0.0.1", Protocols: []string{"UDP"}},
	}, portmap.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, m := range mappings {
		fmt.Printf("%s: %q %d -> %d/%s\n", m.Label, m.HostIP, m.HostPort, m.ContainerPort, m.Protocol)
	}
	// Output:
	// http: "" 8080 -> 80/tcp
	// http: "" 8080 -> 80/udp
	// rtp: "10.0.0.1" 9000 -> 9000/udp
	// rtp: "10.0.0.1" 9001 -> 9001/udp
}

// The error shows every fault of the list, and errors.As finds its type.
func ExampleMappings_faults() {
	_, err := portmap.Mappings([]portmap.Port{
		{Label: "http", Value: 80800},
		{Label: "dns", Value: 53, HostIP: "localhost", Protocols: []string{"dns"}},
	}, portmap.Options{})
	fmt.Println(err)

	var first *portmap.PortError
	if errors.As(err, &first) {
		fmt.Println("first:", first.Index, first.Field)
	}
	// Output:
	// check ports[0] ("http"): value "80800" must be 1 to 65535
	// check ports[1] ("dns"): hostIP "localhost" must be an IPv4 or IPv6 address, or empty for all addresses
	// check ports[1] ("dns"): protocols "dns" must be tcp, udp or sctp
	// first: 0 value
}

// An allocation wants a port on one address that another one has on all.
func ExampleFindConflict() {
	taken := []portmap.Mapping{{Label: "web", HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}}
	wanted := []portmap.Mapping{{Label: "api", HostPort: 8080, ContainerPort: 8080, Protocol: "tcp", HostIP: "10.0.0.1"}}

	if w, t, found := portmap.FindConflict(wanted, taken); found {
		var err error = &portmap.ConflictError{Mapping: w, Other: t, ID: "new", OtherID: "old"}
		fmt.Println(err)
		fmt.Println(errors.Is(err, portmap.ErrConflict))
	}
	// Output:
	// publish tcp port 8080 on 10.0.0.1 ("api") for allocation "new": host port conflict with tcp port 8080 on all addresses ("web") of allocation "old"
	// true
}

func ExampleLookup() {
	mappings := []portmap.Mapping{{Label: "http", HostPort: 25000, ContainerPort: 80, Protocol: "tcp"}}
	if m, ok := portmap.Lookup(mappings, "http"); ok {
		fmt.Println(m.HostPort)
	}
	// Output: 25000
}

// A job that lists no ports of its own has those of its networks.
func ExampleSelect() {
	networks := []portmap.Network{{
		ReservedPorts: []portmap.Port{{Label: "ssh", Value: 22}},
		DynamicPorts:  []portmap.Port{{Label: "http", Value: 25000, To: 80, HostIP: "10.0.0.1"}},
	}}
	for _, p := range portmap.Select(nil, networks) {
		fmt.Println(p)
	}
	// Output:
	// http=25000:80
	// ssh=22
}

func ExampleParse() {
	p, err := portmap.Parse("http=127.0.0.1:8080:80/tcp")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.Label, p.HostIP, p.Value, p.To, p.Protocols)

	_, err = portmap.Parse("8080:http")
	fmt.Println(err)
	// Output:
	// http 127.0.0.1 8080 80 [tcp]
	// parse port "8080:http": container port "http" must be 1 to 65535; an example is http=127.0.0.1:8080:80/tcp
}

func ExamplePort_String() {
	fmt.Println(portmap.Port{Label: "rtp", Value: 9000, To: 80, Range: 11, HostIP: "::1", Protocols: []string{"udp"}})
	// Output: rtp=[::1]:9000-9010:80-90/udp
}
