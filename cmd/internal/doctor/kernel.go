package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/netfilter"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/ptp"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/sandbox"
)

func checkPrivileges(context.Context, *Host) ([]Finding, error) {
	missing, err := rtnl.MissingPrivileges()
	if err != nil {
		return nil, err
	}
	if len(missing) > 0 {
		return []Finding{find("privileges", strings.Join(missing, ", "), "this process lacks "+strings.Join(missing, " and "), "sudo allocnet doctor")}, nil
	}
	owns, err := rtnl.OwnsHost()
	if err == nil && !owns {
		return []Finding{find("privileges", "user namespace", "the capabilities of this process do not apply to its network namespace", "run allocnet outside of the user namespace, as root")}, nil
	}
	return nil, err
}

// feature is a part of the kernel that plugins need.
type feature struct {
	name, modules, config string
	try                   func() error
}

// checkKernel tries what the plugins of the networks need, in a network namespace of its own
// that ends with the check.
func checkKernel(ctx context.Context, h *Host) (findings []Finding, err error) {
	if missing, err := rtnl.MissingPrivileges(); err != nil || len(missing) > 0 {
		return nil, err // checkPrivileges reports it
	}
	s, err := sandbox.New()
	if errors.Is(err, unix.ENOSPC) { // checkLimits reports it
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("create a network namespace for tests: %w", err)
	}
	defer s.Close()
	needed := map[string][]string{} // networks by feature
	for _, n := range h.Networks {
		for _, f := range featuresOf(n) {
			if !slices.Contains(needed[f], n.Name) {
				needed[f] = append(needed[f], n.Name)
			}
		}
	}
	err = s.Do(func() error {
		for _, f := range append(features,
			feature{bridgeTables, "nf_tables", "CONFIG_NF_TABLES_BRIDGE", func() error { return tryGuard(ctx, ruleset.Bridge) }},
			feature{routeLookups, "nft_fib_inet nft_fib_ipv4 nft_fib_ipv6", "CONFIG_NFT_FIB_IPV4 and CONFIG_NFT_FIB_IPV6", func() error { return tryGuard(ctx, ptp.GuardedFamilies()...) }},
			feature{policyTables, "nf_conntrack nft_ct nft_limit", "CONFIG_NF_CONNTRACK_MARK, CONFIG_NFT_CT and CONFIG_NFT_LIMIT", func() error { return tryPolicies(ctx) }},
		) {
			if len(needed[f.name]) == 0 {
				continue
			}
			if err := f.try(); err != nil {
				findings = append(findings, find("kernel-feature", f.name, fmt.Sprintf("the kernel has no %s (%v), which networks need: %s", f.name, err, strings.Join(needed[f.name], ", ")),
					fmt.Sprintf("modprobe --all %s, or use a kernel with %s", f.modules, f.config)))
			}
		}
		if err := tryRuleset(ctx); err != nil {
			findings = append(findings, find("nftables", "nf_tables", "the kernel refuses allocnet's tables: "+err.Error(),
				"modprobe --all nf_tables nft_chain_nat nft_fib_inet, or use a kernel with CONFIG_NF_TABLES, CONFIG_NFT_NAT and CONFIG_NFT_FIB_INET"))
		}
		return nil
	})
	return findings, err
}

// The features that the source guards of the plugins bridge and ptp need, and the plugin policy.
const (
	bridgeTables = "nftables of family bridge"
	routeLookups = "route lookups of nftables"
	policyTables = "connection marks and rates of nftables"
)

var features = []feature{
	{"veth", "veth", "CONFIG_VETH", func() error { return tryLink(&netlink.Veth{PeerName: "doctor1"}, "doctor0") }},
	{"bridge", "bridge", "CONFIG_BRIDGE", func() error { return tryLink(&netlink.Bridge{}, "doctor2") }},
	{"bridge VLAN filtering", "bridge", "CONFIG_BRIDGE_VLAN_FILTERING", tryVLANFiltering},
	{"macvlan", "macvlan", "CONFIG_MACVLAN", func() error { return tryLink(&netlink.Macvlan{Mode: netlink.MACVLAN_MODE_BRIDGE}, "doctor3") }},
	{"ipvlan", "ipvlan", "CONFIG_IPVLAN", func() error { return tryLink(&netlink.IPVlan{}, "doctor4") }},
	{"vlan", "8021q", "CONFIG_VLAN_8021Q", func() error {
		return tryLink(&netlink.Vlan{VlanId: 7, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}, "doctor5")
	}},
	{"dummy", "dummy", "CONFIG_DUMMY", func() error { return tryLink(&netlink.Dummy{}, "doctor6") }},
	{"ifb", "ifb", "CONFIG_IFB", func() error { return tryLink(&netlink.Ifb{}, "doctor7") }},
	{"vrf", "vrf", "CONFIG_NET_VRF", func() error { return tryLink(&netlink.Vrf{Table: 7}, "doctor8") }},
}

// featuresOf returns the features that the plugins of a network need.
func featuresOf(n *conflist.Network) (list []string) {
	for _, p := range n.List.Plugins {
		switch p.Network.Type {
		case "ptp":
			list = append(list, "veth")
			if guardsSources(p.Bytes) {
				list = append(list, routeLookups)
			}
		case "bridge":
			list = append(list, "veth", "bridge")
			var conf struct {
				VLAN      int               `json:"vlan"`
				VLANTrunk []json.RawMessage `json:"vlanTrunk"`
			}
			if json.Unmarshal(p.Bytes, &conf) != nil {
				continue
			}
			if conf.VLAN != 0 || len(conf.VLANTrunk) > 0 {
				list = append(list, "bridge VLAN filtering")
			}
			if guardsSources(p.Bytes) {
				list = append(list, bridgeTables)
			}
		case "bandwidth":
			list = append(list, "ifb")
		case "policy":
			list = append(list, policyTables)
		case "macvlan", "ipvlan", "vlan", "dummy", "vrf":
			list = append(list, p.Network.Type)
		}
	}
	return list
}

// guardsSources reports whether the configuration of ptp or bridge has the source guard, which is on
// by default. What cannot be read has none.
func guardsSources(conf []byte) bool {
	var c struct {
		SourceGuard *bool `json:"sourceGuard"`
	}
	return json.Unmarshal(conf, &c) == nil && (c.SourceGuard == nil || *c.SourceGuard)
}

// tryLink makes a link and its parent in the network namespace of the thread.
func tryLink(l netlink.Link, name string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	switch l.(type) {
	case *netlink.Macvlan, *netlink.IPVlan, *netlink.Vlan:
		parent := netlink.NewLinkAttrs()
		parent.Name = "parent"
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: parent, PeerName: "parent1"}); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("make its parent: %w", err)
		}
		made, err := netlink.LinkByName("parent")
		if err != nil {
			return err
		}
		attrs.ParentIndex = made.Attrs().Index
	}
	*l.Attrs() = attrs
	return netlink.LinkAdd(l)
}

func tryVLANFiltering() error {
	on := true
	return tryLink(&netlink.Bridge{VlanFiltering: &on}, "doctor9")
}

// tryGuard makes the tables of source guards in the network namespace of the thread.
func tryGuard(ctx context.Context, families ...ruleset.Family) error {
	return ruleset.Lend(func(r *ruleset.Ruleset) error { return r.Guard(ctx, families...) })
}

// tryRuleset makes allocnet's tables in the network namespace of the thread.
func tryRuleset(ctx context.Context) error {
	r, err := ruleset.Open()
	if err != nil {
		return err
	}
	err = r.Add(ctx, &ruleset.Elements{
		Owner: names.Owner{Network: "doctor", ID: "doctor", IfName: "eth0"},
		Open:  []netip.Addr{netip.MustParseAddr("192.0.2.1")},
	})
	if err != nil && netfilter.IsUnsupported(err) {
		err = fmt.Errorf("%w (no support in the kernel)", err)
	}
	return errors.Join(err, r.Close())
}

// tryPolicies makes the tables of policies in the network namespace of the thread.
func tryPolicies(ctx context.Context) error {
	return ruleset.Lend(func(r *ruleset.Ruleset) error { return r.EnsurePolicies(ctx) })
}
