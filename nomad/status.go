package nomad

import (
	"net"
	"strconv"
	"strings"

	"github.com/allocnet/allocnet"
)

// NetworkStatus is the network of an allocation as Nomad reports it.
type NetworkStatus struct {
	InterfaceName, Address, AddressIPv6 string
	DNS                                 *DNS
}

// StatusOf returns the network of an allocation that is set up, or nil if s is nil.
func StatusOf(s *allocnet.Status) *NetworkStatus {
	if s == nil {
		return nil
	}
	n := &NetworkStatus{InterfaceName: s.InterfaceName, Address: s.Address, AddressIPv6: s.AddressIPv6}
	if s.DNS != nil {
		n.DNS = &DNS{Servers: s.DNS.Servers, Searches: s.DNS.Searches, Options: s.DNS.Options}
	}
	return n
}

// DNS returns the resolver configuration of the tasks, for allocnet.ResolvConf: that of the
// job or, if it has none, that of the network. It is nil if neither has one; tasks then use
// the configuration of the host.
func (g *Group) DNS(s *allocnet.Status) *allocnet.DNS {
	if len(g.Networks) > 0 && g.Networks[0].DNS != nil {
		dns := g.Networks[0].DNS
		return &allocnet.DNS{Servers: dns.Servers, Searches: dns.Searches, Options: dns.Options}
	}
	if s == nil {
		return nil
	}
	return s.DNS
}

// Environment returns the variables, as "NAME=value", with which Nomad describes the ports
// of a group to its tasks:
//
//	NOMAD_IP_<label>, NOMAD_HOST_IP_<label>      host address
//	NOMAD_HOST_PORT_<label>                      host port
//	NOMAD_ADDR_<label>, NOMAD_HOST_ADDR_<label>  host address and host port
//	NOMAD_PORT_<label>, NOMAD_ALLOC_PORT_<label> port on which the task should listen
//	NOMAD_ALLOC_INTERFACE_<label>                interface in the network namespace
//	NOMAD_ALLOC_IP_<label>                       its address
//	NOMAD_ALLOC_ADDR_<label>                     its address, and the port of the task
//
// Characters of the label other than ASCII letters, digits and '_' become '_'. Variables
// without a value are omitted: those with the host address if the port is published on all
// addresses, those with interface or address if s is nil or has none. Nomad 1.6 has all
// but NOMAD_ALLOC_INTERFACE, NOMAD_ALLOC_IP and NOMAD_ALLOC_ADDR.
func (g *Group) Environment(s *allocnet.Status) (list []string) {
	if s == nil {
		s = &allocnet.Status{}
	}
	for _, p := range g.ports() {
		label := strings.Map(underscore, p.Label)
		set := func(value string, names ...string) {
			for _, name := range names {
				if value != "" {
					list = append(list, "NOMAD_"+name+"_"+label+"="+value)
				}
			}
		}
		set(p.HostIP, "IP", "HOST_IP")
		set(strconv.Itoa(p.Value), "HOST_PORT")
		set(join(p.HostIP, p.Value), "ADDR", "HOST_ADDR")
		set(strconv.Itoa(p.inside()), "PORT", "ALLOC_PORT")
		set(s.InterfaceName, "ALLOC_INTERFACE")
		set(s.Address, "ALLOC_IP")
		set(join(s.Address, p.inside()), "ALLOC_ADDR")
	}
	return list
}

// join returns an address with a port, or "" without an address.
func join(address string, port int) string {
	if address == "" {
		return ""
	}
	return net.JoinHostPort(address, strconv.Itoa(port))
}

// underscore replaces characters that names of variables cannot have.
func underscore(r rune) rune {
	switch {
	case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
		return r
	}
	return '_'
}
