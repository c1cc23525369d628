package bench

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
)

// network is a network configuration. Every system has its own.
type network struct {
	name   string
	kind   string // bridge or ptp
	number int    // part of the subnets: 10.<number>.0.0/16 and fd00:<number>::/64
	dual   bool
	policy bool // with the plugin policy
	// addresses is the number of addresses that IPAM gives to allocations; 0 for all of the subnet.
	addresses int
}

// subnet is a network's address range of one family.
type subnet struct{ subnet netip.Prefix }

func (n *network) families() []subnet {
	f := []subnet{{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n.number)}), 16)}}
	if n.dual {
		f = append(f, subnet{netip.MustParsePrefix(fmt.Sprintf("fd00:%x::/64", n.number))})
	}
	return f
}

// bridge returns the name of the network's bridge.
func (n *network) bridge() string { return fmt.Sprintf("bench%d", n.number) }

func (s subnet) gateway() netip.Addr { return s.address(-1) }

// address returns the address of a slot, in a range whose host part has 16 bits
// or more.
func (s subnet) address(slot int) netip.Addr {
	b := s.subnet.Addr().AsSlice()
	slot += 2
	b[len(b)-2], b[len(b)-1] = byte(slot>>8), byte(slot)
	a, _ := netip.AddrFromSlice(b)
	return a
}

func (s subnet) host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// all returns the destination of a default route.
func (s subnet) all() netip.Prefix {
	if s.subnet.Addr().Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

type object = map[string]any

// plugins returns the network as a chain of plugins. Each plugin chooses its
// backend; the reference plugins use iptables.
func (n *network) plugins() []object {
	list := []object{
		{"type": "loopback"}, n.main(), {"type": "firewall"},
		{"type": "portmap", "snat": true, "capabilities": object{"portMappings": true}},
	}
	if n.policy {
		list = append(list, object{"type": "policy", "capabilities": object{"policy": true}})
	}
	return list
}

func (n *network) main() object {
	p := object{"type": n.kind, "ipMasq": true, "ipam": n.ipam()}
	if n.kind == "bridge" {
		p["bridge"], p["isGateway"], p["hairpinMode"] = n.bridge(), true, true
	}
	return p
}

func (n *network) ipam() object {
	var ranges [][]object
	var routes []object
	for _, f := range n.families() {
		one := object{"subnet": f.subnet.String()}
		if n.addresses > 0 {
			one["rangeEnd"] = f.address(n.addresses - 1).String()
		}
		ranges = append(ranges, []object{one})
		routes = append(routes, object{"dst": f.all().String()})
	}
	return object{"type": "host-local", "dataDir": leaseDir, "ranges": ranges, "routes": routes}
}

// conflist returns the network as text.
func (n *network) conflist() ([]byte, error) {
	return json.Marshal(object{"cniVersion": "1.0.0", "name": n.name, "plugins": n.plugins()})
}

// Directories on tmpfs, in the private host.
const (
	workDir  = "/run/bench"
	leaseDir = workDir + "/leases"
	confDir  = workDir + "/net.d"
)

// write writes the network's conflist into the directory of the configurators.
func (n *network) write() error {
	text, err := n.conflist()
	if err != nil {
		return fmt.Errorf("encode network %q: %w", n.name, err)
	}
	if err := os.MkdirAll(confDir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(confDir, n.name+".conflist"), text, 0o600)
}
