// Package features finds what the running kernel lacks of what the plugins of networks need. It does not ask for
// the version of the kernel, but tries each feature in a network namespace of its own.
package features

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/netfilter"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/ptp"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/sandbox"
)

// Feature is a part of the kernel that plugins need: its name, its modules, and the options with which a kernel has it.
type Feature struct {
	Name, Modules, Config string
	try                   func(context.Context) error
}

// Missing is a feature that the kernel lacks, with the networks that need it, and the kernel's answer.
type Missing struct {
	Feature
	Networks []string
	Err      error
}

// Error says what is missing and how to get it.
func (m *Missing) Error() string { return m.Reason() + "; " + m.Remedy() }

// Unwrap returns the kernel's answer.
func (m *Missing) Unwrap() error { return m.Err }

// Reason says what is missing, and for which networks.
func (m *Missing) Reason() string {
	return fmt.Sprintf("the kernel has no %s (%v), which networks need: %s", m.Name, m.Err, strings.Join(m.Networks, ", "))
}

// Remedy says how to get it.
func (m *Missing) Remedy() string {
	return fmt.Sprintf("modprobe --all %s, or use a kernel with %s", m.Modules, m.Config)
}

// Find tries what the plugins of the networks need. It needs the privileges to set them up. If the host has too many
// network namespaces, it tries nothing.
func Find(ctx context.Context, networks []*conflist.Network) (missing []*Missing, err error) {
	err = inNamespace(func() error {
		missing = find(ctx, networks, func(string) bool { return true })
		return nil
	})
	return missing, err
}

// present has the names of features that Require has found.
var present sync.Map

// Require is Find for what no earlier call has found. Its errors are of type *Missing.
func Require(ctx context.Context, networks []*conflist.Network) error {
	unknown := func(name string) bool { _, ok := present.Load(name); return !ok }
	if !slices.ContainsFunc(networks, func(n *conflist.Network) bool { return slices.ContainsFunc(of(n), unknown) }) {
		return nil
	}
	var errs []error
	err := inNamespace(func() error {
		missing := find(ctx, networks, unknown)
		for _, m := range missing {
			errs = append(errs, m)
		}
		for _, n := range networks {
			for _, name := range of(n) {
				if !slices.ContainsFunc(missing, func(m *Missing) bool { return m.Name == name }) {
					present.Store(name, true)
				}
			}
		}
		return nil
	})
	return errors.Join(append(errs, err)...)
}

// inNamespace calls act in a network namespace that ends with it, unless there are too many.
func inNamespace(act func() error) error {
	s, err := sandbox.New()
	if errors.Is(err, unix.ENOSPC) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("create a network namespace for tests: %w", err)
	}
	defer s.Close()
	return s.Do(act)
}

// find tries the features that want selects, in the network namespace of the thread.
func find(ctx context.Context, networks []*conflist.Network, want func(name string) bool) (missing []*Missing) {
	needed := map[string][]string{} // networks by feature
	for _, n := range networks {
		for _, name := range of(n) {
			if want(name) && !slices.Contains(needed[name], n.Name) {
				needed[name] = append(needed[name], n.Name)
			}
		}
	}
	for _, f := range features {
		if len(needed[f.Name]) == 0 {
			continue
		}
		if err := f.try(ctx); err != nil {
			missing = append(missing, &Missing{f, needed[f.Name], err})
		}
	}
	return missing
}

// The features that the source guards of the plugins bridge and ptp need, and the plugin policy.
const (
	bridgeTables = "nftables of family bridge"
	routeLookups = "route lookups of nftables"
	policyTables = "connection marks and rates of nftables"
	bridgeRules  = "rules of IP within bridges"
)

// features are all of them, in the order in which they are tried.
var features = []Feature{
	{"veth", "veth", "CONFIG_VETH", func(context.Context) error { return tryLink(&netlink.Veth{PeerName: "try1"}, "try0") }},
	{"bridge", "bridge", "CONFIG_BRIDGE", func(context.Context) error { return tryLink(&netlink.Bridge{}, "try2") }},
	{"bridge VLAN filtering", "bridge", "CONFIG_BRIDGE_VLAN_FILTERING", tryVLANFiltering},
	{"macvlan", "macvlan", "CONFIG_MACVLAN", func(context.Context) error {
		return tryLink(&netlink.Macvlan{Mode: netlink.MACVLAN_MODE_BRIDGE}, "try3")
	}},
	{"ipvlan", "ipvlan", "CONFIG_IPVLAN", func(context.Context) error { return tryLink(&netlink.IPVlan{}, "try4") }},
	{"vlan", "8021q", "CONFIG_VLAN_8021Q", func(context.Context) error {
		return tryLink(&netlink.Vlan{VlanId: 7, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}, "try5")
	}},
	{"dummy", "dummy", "CONFIG_DUMMY", func(context.Context) error { return tryLink(&netlink.Dummy{}, "try6") }},
	{"ifb", "ifb", "CONFIG_IFB", func(context.Context) error { return tryLink(&netlink.Ifb{}, "try7") }},
	{"vrf", "vrf", "CONFIG_NET_VRF", func(context.Context) error { return tryLink(&netlink.Vrf{Table: 7}, "try8") }},
	{bridgeTables, "nf_tables", "CONFIG_NF_TABLES_BRIDGE", func(ctx context.Context) error { return tryGuard(ctx, ruleset.Bridge) }},
	{routeLookups, "nft_fib_inet nft_fib_ipv4 nft_fib_ipv6", "CONFIG_NFT_FIB_IPV4 and CONFIG_NFT_FIB_IPV6", func(ctx context.Context) error { return tryGuard(ctx, ptp.GuardedFamilies()...) }},
	{policyTables, "nf_conntrack nft_ct nft_limit", "CONFIG_NF_CONNTRACK_MARK, CONFIG_NFT_CT and CONFIG_NFT_LIMIT", tryPolicies},
	{bridgeRules, "br_netfilter", "CONFIG_BRIDGE_NETFILTER", func(context.Context) error { return netfilter.MayHaveBridgeNetfilter() }},
}

// of returns the names of the features that the plugins of a network need.
func of(n *conflist.Network) (list []string) {
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
			if slices.Contains(list, "bridge") {
				list = append(list, bridgeRules)
			}
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

func tryVLANFiltering(context.Context) error {
	on := true
	return tryLink(&netlink.Bridge{VlanFiltering: &on}, "try9")
}

// tryGuard makes the tables of source guards in the network namespace of the thread.
func tryGuard(ctx context.Context, families ...ruleset.Family) error {
	return ruleset.Lend(func(r *ruleset.Ruleset) error { return r.Guard(ctx, families...) })
}

// tryPolicies makes the tables of policies in the network namespace of the thread.
func tryPolicies(ctx context.Context) error {
	return ruleset.Lend(func(r *ruleset.Ruleset) error { return r.EnsurePolicies(ctx) })
}
