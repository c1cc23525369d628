package portmap

import (
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/conntrack"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// publication is the set of host ports that one attachment publishes.
type publication struct {
	*portmap
	id string
	// addresses are the container's first address of each family, with the
	// prefix length of its network.
	addresses []netip.Prefix
	// first is the first interface of the result, if it is on the host.
	first string
}

// publication derives a publication from the result of the previous plugins.
// Without a result it has no addresses.
func (p *portmap) publication(c *sdk.CmdArgs, previous *types100.Result) *publication {
	pub := &publication{portmap: p, id: c.ContainerID}
	if previous == nil {
		return pub
	}
	if len(previous.Interfaces) > 0 && previous.Interfaces[0] != nil && previous.Interfaces[0].Sandbox == "" {
		pub.first = previous.Interfaces[0].Name
	}
	var has4, has6 bool
	for _, ip := range previous.IPs {
		if ip == nil || !inSandbox(previous, ip.Interface, c.IfName) {
			continue
		}
		address := prefix(ip)
		has := &has6
		if address.Addr().Is4() {
			has = &has4
		}
		if address.IsValid() && !*has {
			*has = true
			pub.addresses = append(pub.addresses, address)
		}
	}
	if len(pub.addresses) == 2 && pub.addresses[0].Addr().Is6() {
		pub.addresses[0], pub.addresses[1] = pub.addresses[1], pub.addresses[0]
	}
	return pub
}

// inSandbox reports whether an address belongs to the container's interface. It
// does, unless the result assigns the address to another interface.
func inSandbox(result *types100.Result, index *int, ifName string) bool {
	if index == nil || *index < 0 || *index >= len(result.Interfaces) {
		return true
	}
	itf := result.Interfaces[*index]
	return itf != nil && itf.Name == ifName && itf.Sandbox != ""
}

func prefix(ip *types100.IPConfig) netip.Prefix {
	addr, _ := netip.AddrFromSlice(ip.Address.IP)
	ones, bits := ip.Address.Mask.Size()
	addr = addr.Unmap()
	return netip.PrefixFrom(addr, ones-bits+addr.BitLen())
}

// of returns the mappings for an address: those without a host IP and those
// with a host IP of the address's family.
func (p *publication) of(addr netip.Addr) []portMapping {
	var list []portMapping
	for _, m := range p.mappings {
		if !m.hostIP.IsValid() || m.hostIP.Is4() == addr.Is4() {
			list = append(list, m)
		}
	}
	return list
}

// restricted reports whether the mapping is limited to one host address.
func (m *portMapping) restricted() bool { return m.hostIP.IsValid() && !m.hostIP.IsUnspecified() }

// ports returns the host ports of an address's family.
func (p *publication) ports(addr netip.Addr) []conntrack.Port {
	var ports []conntrack.Port
	for _, m := range p.of(addr) {
		ports = append(ports, conntrack.Port{Protocol: m.protocol, Number: uint16(m.HostPort), HostIP: m.hostIP})
	}
	return ports
}

// stateless returns the host ports of an address's family whose clients may
// reuse a tracked connection indefinitely: UDP and SCTP.
func (p *publication) stateless(addr netip.Addr) []conntrack.Port {
	return slices.DeleteFunc(p.ports(addr), func(port conntrack.Port) bool { return !isStateless(port) })
}

func isStateless(p conntrack.Port) bool {
	return p.Protocol == unix.IPPROTO_UDP || p.Protocol == unix.IPPROTO_SCTP
}

func family(addr netip.Addr) uint8 {
	if addr.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

var errNoResult = types.NewError(types.ErrInternal, "missing prevResult",
	"place the portmap plugin after a plugin that creates an interface")
