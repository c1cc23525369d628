package conflist

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/allocnet/allocnet/internal/iptables"
	"github.com/allocnet/allocnet/internal/netlink/announce"
	"github.com/allocnet/allocnet/internal/state/subnetenv"
	"github.com/allocnet/allocnet/policy"
)

// EmbeddedName is the name of the embedded network.
const EmbeddedName = "allocnet"

// embeddedVersion is the newest version that the reference plugins of all current
// distributions support. It includes CHECK. 1.1.0 adds GC and STATUS; older builds
// refuse that version, and no reference plugin implements GC.
const embeddedVersion = "1.0.0"

// EmbeddedSubnets are the subnets from which that of each family is chosen if none are configured: see
// package subnets.
var EmbeddedSubnets = [][]netip.Prefix{
	{
		netip.MustParsePrefix("10.202.0.0/16"), netip.MustParsePrefix("10.203.0.0/16"),
		netip.MustParsePrefix("172.29.0.0/16"), netip.MustParsePrefix("192.168.224.0/20"),
	},
	{netip.MustParsePrefix("fd0a:110c:2e7::/64"), netip.MustParsePrefix("fd0a:110c:2e7:1::/64")},
}

// EmbeddedOptions configures the embedded network.
type EmbeddedOptions struct {
	StateDir string         // absolute; contains the directory of the leases
	Subnets  []netip.Prefix // at most one per family; default the first of each of EmbeddedSubnets
	MTU      int            // in bytes; 0 leaves it to the kernel
	// SubnetsFrom is the absolute path of the file in which flanneld writes the subnets of
	// the host, in place of Subnets and MTU; "" for none.
	SubnetsFrom string
	// Routes configures the plugin routes. It is not in the chain if Table is 0.
	Routes EmbeddedRoutes
	// Policy is the network policy of all allocations; by default the preset no-host, and
	// published-only unless the network spans several hosts. There is none with ForBinaries,
	// because plugin binaries cannot enforce it.
	Policy *policy.Policy
	// ForBinaries configures the network for plugin binaries. Their firewall plugin
	// needs an admin chain in which published ports are accepted, and their ptp plugin
	// leaves a requested hardware address to the tuning plugin.
	ForBinaries bool
}

// EmbeddedRoutes are the keys of the plugin routes, and the networks of all hosts.
type EmbeddedRoutes struct {
	Table    uint32
	Protocol uint8 // 0 for the default
	Subnets  bool
	Cluster  []netip.Prefix // not masqueraded
}

// Embedded returns the network for hosts without a configuration: dual-stack and routed,
// with masquerading, firewall and port mappings.
func Embedded(o EmbeddedOptions) (*Network, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("embedded network %q: %w", EmbeddedName, err)
	}
	data, err := json.Marshal(o.list())
	if err != nil {
		return nil, fmt.Errorf("encode embedded network %q: %w", EmbeddedName, err)
	}
	return Parse(data)
}

func (o EmbeddedOptions) withDefaults() EmbeddedOptions {
	if len(o.Subnets) == 0 && o.SubnetsFrom == "" {
		for _, candidates := range EmbeddedSubnets {
			o.Subnets = append(o.Subnets, candidates[0])
		}
	}
	if o.Routes.Protocol == 0 {
		o.Routes.Protocol = announce.DefaultProtocol
	}
	if o.Policy == nil && !o.ForBinaries {
		o.Policy = &policy.Policy{Presets: []policy.Preset{policy.NoHost}}
		if !o.spansHosts() {
			o.Policy.Presets = append(o.Policy.Presets, policy.PublishedOnly)
		}
	}
	return o
}

// spansHosts reports whether other hosts have routes to the allocations, which reach each other directly.
func (o EmbeddedOptions) spansHosts() bool { return o.SubnetsFrom != "" || o.Routes.Table != 0 }

func (o EmbeddedOptions) validate() error {
	if !filepath.IsAbs(o.StateDir) {
		return fmt.Errorf("state directory %q is not an absolute path", o.StateDir)
	}
	if o.Routes.Table != 0 {
		if err := announce.Validate(o.Routes.Table, o.Routes.Protocol); err != nil {
			return fmt.Errorf("routes: %w", err)
		}
	}
	for _, p := range o.Routes.Cluster {
		if err := validatePrefix(p); err != nil {
			return fmt.Errorf("routes: cluster network %q: %w", p, err)
		}
	}
	if err := o.validatePolicy(); err != nil {
		return err
	}
	if o.SubnetsFrom != "" {
		return o.validateSubnetsFrom()
	}
	seen := map[string]netip.Prefix{}
	for _, s := range o.Subnets {
		if err := validateSubnet(s); err != nil {
			return fmt.Errorf("subnet %q: %w", s, err)
		}
		family := familyOf(s)
		if other, ok := seen[family]; ok {
			return fmt.Errorf("subnets %q and %q are both %s: give at most one of each family", other, s, family)
		}
		seen[family] = s
	}
	_, v6 := seen["IPv6"]
	return validateMTU(o.MTU, v6)
}

// ErrPolicyOfBinaries is the error of a network policy together with ForBinaries.
var ErrPolicyOfBinaries = errors.New("plugin binaries cannot enforce network policies: use the engine auto or native, or the policy none")

func (o EmbeddedOptions) validatePolicy() error {
	if !o.Policy.IsEmpty() && o.ForBinaries {
		return fmt.Errorf("policy: %w", ErrPolicyOfBinaries)
	}
	return o.Policy.Validate()
}

func (o EmbeddedOptions) validateSubnetsFrom() error {
	switch {
	case !filepath.IsAbs(o.SubnetsFrom):
		return fmt.Errorf("file of the subnets %q is not an absolute path", o.SubnetsFrom)
	case len(o.Subnets) > 0 || o.MTU != 0:
		return fmt.Errorf("the subnets and the MTU are those of %q: give either the file or the subnets", o.SubnetsFrom)
	case len(o.Routes.Cluster) > 0:
		return fmt.Errorf("routes: the cluster networks are those of %q: give either the file or the networks", o.SubnetsFrom)
	}
	return nil
}

// validateSubnet requires room for the gateway and one allocation. The IPAM plugin
// requires that too, but reports it only at the first ADD.
func validateSubnet(s netip.Prefix) error {
	if err := validatePrefix(s); err != nil {
		return err
	}
	a := s.Addr()
	largest := a.BitLen() - 2
	switch {
	case s.Bits() > largest:
		return fmt.Errorf("too small: /%d is the smallest with room for a gateway and an allocation", largest)
	case a.IsUnspecified(), a.IsLoopback(), a.IsMulticast(), a.IsLinkLocalUnicast():
		return errors.New("not a range of ordinary unicast addresses")
	}
	return nil
}

func validatePrefix(p netip.Prefix) error {
	switch {
	case !p.IsValid():
		return errors.New("not a valid prefix")
	case p.Addr().Is4In6():
		return fmt.Errorf("write it as the IPv4 prefix of %s", p.Addr().Unmap())
	case p != p.Masked():
		return fmt.Errorf("has host bits set: the network is %s", p.Masked())
	}
	return nil
}

func validateMTU(mtu int, v6 bool) error {
	smallest := 68
	if v6 {
		smallest = 1280
	}
	if mtu != 0 && (mtu < smallest || mtu > 65535) {
		return fmt.Errorf("MTU %d is out of range: choose 0 or %d to 65535", mtu, smallest)
	}
	return nil
}

func familyOf(s netip.Prefix) string {
	if s.Addr().Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// object is a JSON object. Its keys are encoded in sorted order.
type object = map[string]any

func (o EmbeddedOptions) list() object {
	portmap := object{"type": "portmap", "snat": true, "capabilities": object{"portMappings": true}}
	plugins := []object{{"type": "loopback"}, o.ptp(), {"type": "firewall"}, portmap}
	if o.ForBinaries {
		plugins = []object{
			{"type": "loopback"},
			// The reference ptp plugin waits two seconds for duplicate address
			// detection, which has nothing to detect on a link of two ends.
			{"type": "tuning", "sysctl": object{"net.ipv6.conf.default.accept_dad": "0"}},
			o.ptp(),
			{"type": "tuning", "capabilities": object{"mac": true}},
			{"type": "firewall", "backend": "iptables", "iptablesAdminChainName": iptables.AdminChain},
			portmap,
		}
	}
	if r := o.Routes; r.Table != 0 {
		plugins = append(plugins, object{"type": "routes", "table": r.Table, "protocol": r.Protocol, "subnets": r.Subnets})
	}
	if !o.ForBinaries { // there is no binary
		enforced := object{"type": "policy", "capabilities": object{"policy": true}}
		if !o.Policy.IsEmpty() {
			enforced["policy"] = o.Policy
		}
		plugins = append(plugins, enforced)
	}
	return object{"name": EmbeddedName, "cniVersion": embeddedVersion, "plugins": plugins}
}

func (o EmbeddedOptions) ptp() object {
	// ips and ipRanges are for host-local, which gets the runtimeConfig of the ptp
	// plugin.
	capabilities := object{"ips": true, "ipRanges": true}
	if !o.ForBinaries {
		capabilities["mac"] = true
	}
	if o.SubnetsFrom != "" {
		return object{
			"type": subnetenv.Type, "subnetFile": o.SubnetsFrom, "dataDir": filepath.Join(o.StateDir, "flannel"),
			"delegate": object{"type": "ptp"}, "ipam": o.ipam(), "capabilities": capabilities,
		}
	}
	p := object{"type": "ptp", "ipMasq": true, "ipam": o.ipam(), "capabilities": capabilities}
	if o.MTU != 0 {
		p["mtu"] = o.MTU
	}
	if len(o.Routes.Cluster) > 0 {
		p[subnetenv.MasqExceptKey] = o.Routes.Cluster
	}
	return p
}

// ipam returns the IPAM configuration. It has a default route only for the families
// with a subnet: without an address, the route cannot be added. Those of SubnetsFrom are not
// known yet: flannel adds the ranges, and drops the routes of other families.
func (o EmbeddedOptions) ipam() object {
	ranges, routes := [][]object{}, []object{}
	if o.SubnetsFrom != "" {
		routes = append(routes, object{"dst": "0.0.0.0/0"})
		if !o.ForBinaries { // the reference plugin drops none
			routes = append(routes, object{"dst": "::/0"})
		}
	}
	for _, s := range o.Subnets {
		ranges = append(ranges, []object{{"subnet": s.String()}})
		all := "0.0.0.0/0"
		if s.Addr().Is6() {
			all = "::/0"
		}
		routes = append(routes, object{"dst": all})
	}
	return object{
		"type":          "host-local",
		"dataDir":       filepath.Join(o.StateDir, "leases"),
		"ranges":        ranges,
		"routes":        routes,
		"reclaimOnBoot": true,
	}
}
