package veth

import (
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet/internal/iptables"
	"github.com/allocnet/allocnet/internal/netlink/netfilter"
)

// reference is an attachment's masquerading in the layout of the reference
// plugins, so that each implementation finds the rules of the other. It does
// not use the reference plugins' package, because that imports knftables, which
// takes a tenth of a plugin binary's time.
type reference struct{ network, ifName, id string }

// add creates the rules with a backend, iptables or nftables.
func (m reference) add(ctx context.Context, backend string, addresses []masqueraded) error {
	switch backend {
	case "iptables":
		return m.addIPTables(ctx, addresses)
	case "nftables":
		return m.addNFT(ctx, addresses)
	}
	return errBackend(backend)
}

// del removes the rules of both backends, because the backend of the
// configuration may have changed. It needs no result: both layouts identify the
// attachment.
func (m reference) del(ctx context.Context) error {
	return errors.Join(m.delIPTables(ctx), m.changeNFT(ctx, m.hash(), func(iptables.NFTRule) bool { return true }))
}

// collect removes the nftables rules of the network that belong to no valid
// attachment. The iptables layout does not identify networks.
func (m reference) collect(ctx context.Context, valid []types.GCAttachment) error {
	keep := map[string]bool{}
	for _, a := range valid {
		keep[reference{m.network, a.IfName, a.ContainerID}.comment()] = true
	}
	return m.changeNFT(ctx, hashOf(m.network), func(r iptables.NFTRule) bool { return !keep[r.Comment] })
}

const natTable = "nat"

// chain returns the name of the attachment's chain in iptables' nat table. It
// does not depend on the interface.
func (m reference) chain() string {
	sum := sha512.Sum512([]byte(m.network + m.id))
	return ("CNI-" + hex.EncodeToString(sum[:]))[:28]
}

// natComment returns the comment of the attachment's rules in that table.
func (m reference) natComment() string { return fmt.Sprintf("name: %q id: %q", m.network, m.id) }

// commented returns a rule with the attachment's comment.
func (m reference) commented(spec ...string) []string {
	return append(spec, "-m", "comment", "--comment", m.natComment())
}

func openNAT(ipv6 bool) (t *iptables.Command, multicast string, err error) {
	family, multicast := iptables.IPv4, "224.0.0.0/4"
	if ipv6 {
		family, multicast = iptables.IPv6, "ff00::/8"
	}
	t, err = iptables.Open(family)
	return t, multicast, err
}

func (m reference) addIPTables(ctx context.Context, addresses []masqueraded) error {
	for _, address := range addresses {
		t, multicast, err := openNAT(address.IP.To4() == nil)
		if err != nil {
			return fmt.Errorf("find the program that the backend iptables needs: %w", err)
		}
		if err := t.EnsureChain(ctx, natTable, m.chain()); err != nil {
			return err
		}
		for _, r := range m.natRules(address, multicast) {
			if err := t.AppendUnique(ctx, natTable, r.chain, r.spec...); err != nil {
				return err
			}
		}
	}
	return nil
}

// natRule is a rule of a chain of iptables' nat table.
type natRule struct {
	chain string
	spec  []string
}

// natRules returns the rules of one address, in order.
func (m reference) natRules(address masqueraded, multicast string) []natRule {
	var rules []natRule
	// None is within another: for ip6tables-nft 1.8.9, -d fd00::/48 and -d fd00::/64
	// are the same.
	for _, p := range address.kept {
		rules = append(rules, natRule{m.chain(), m.commented("-d", p.String(), "-j", "ACCEPT")})
	}
	return append(rules,
		natRule{m.chain(), m.commented("!", "-d", multicast, "-j", "MASQUERADE")},
		natRule{"POSTROUTING", m.commented("-s", address.IP.String(), "-j", m.chain())})
}

// check looks for the rules that add creates with a backend. Its error names
// the missing rules.
func (m reference) check(ctx context.Context, backend string, addresses []masqueraded) error {
	switch backend {
	case "iptables":
		return m.checkIPTables(ctx, addresses)
	case "nftables":
		return m.checkNFT(ctx, addresses)
	}
	return errBackend(backend)
}

func (m reference) checkIPTables(ctx context.Context, addresses []masqueraded) error {
	var errs []error
	for _, address := range addresses {
		t, multicast, err := openNAT(address.IP.To4() == nil)
		if err != nil {
			return fmt.Errorf("find the program that the backend iptables needs: %w", err)
		}
		found, err := t.ChainExists(ctx, natTable, m.chain())
		if err != nil {
			return err
		}
		if !found {
			errs = append(errs, fmt.Errorf("iptables chain is missing: %s of %s", m.chain(), address))
			continue
		}
		for _, r := range m.natRules(address, multicast) {
			there, err := t.Exists(ctx, natTable, r.chain, r.spec...)
			if err == nil && !there {
				err = fmt.Errorf("iptables rule is missing: %s %s", r.chain, strings.Join(r.spec, " "))
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// checkNFT looks for the rule of each address, and for rules that lead packets
// to it.
func (m reference) checkNFT(ctx context.Context, addresses []masqueraded) error {
	t := masqueradeTable()
	own, err := rulesOf(ctx, t, m.hash())
	if err != nil {
		return err
	}
	leading, err := t.Rules(ctx, postroutingChain)
	errs := []error{err}
	if err == nil && len(leading) == 0 {
		errs = append(errs, fmt.Errorf("nftables chain %s of table %s %s has no rules", postroutingChain, nftFamily, nftTable))
	}
	for _, address := range addresses {
		addr, _ := netip.AddrFromSlice(address.IP)
		if !slices.ContainsFunc(own, func(r iptables.NFTRule) bool { return r.Names(addr.Unmap()) }) {
			errs = append(errs, fmt.Errorf("nftables chain %s of table %s %s has no rule of the address %s", checksChain, nftFamily, nftTable, address))
		}
	}
	return errors.Join(errs...)
}

// delIPTables removes the rules of both families. If the iptables command of a
// family is not usable now, ADD may still have used it. Then the kernel's
// tables must show that the chain does not exist.
func (m reference) delIPTables(ctx context.Context) error {
	var errs []error
	for _, ipv6 := range []bool{false, true} {
		kernel := netfilter.Table{IPv6: ipv6, Name: natTable}
		var chains []string
		t, _, err := openNAT(ipv6)
		if err == nil {
			chains, err = t.ListChains(ctx, natTable)
		}
		if err != nil {
			errs = append(errs, kernel.Absent(ctx, err, m.chain()))
			continue
		}
		if slices.Contains(chains, m.chain()) {
			err = m.delChain(ctx, t)
		}
		if err == nil {
			err = kernel.Hidden(ctx, m.chain())
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// delChain deletes the attachment's chain and the rules that jump to it: one
// rule per address or, from old versions of the reference plugins, one for the
// network.
func (m reference) delChain(ctx context.Context, t *iptables.Command) error {
	lines, err := t.List(ctx, natTable, "POSTROUTING")
	if err != nil {
		return err
	}
	listing, err := iptables.Parse(lines)
	errs := []error{err}
	for _, r := range listing.Rules {
		if r.Value("-j") != m.chain() || r.Value("--comment") != m.natComment() {
			continue
		}
		if err := t.Delete(ctx, natTable, r.Chain, r.Spec...); err != nil && !iptables.IsMissing(err) {
			errs = append(errs, err)
		}
	}
	if err := t.ClearAndDeleteChain(ctx, natTable, m.chain()); err != nil && !iptables.IsMissing(err) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// The reference plugins' names in nftables.
const (
	nftFamily        = "inet"
	nftTable         = "cni_plugins_masquerade"
	nftTableComment  = "Masquerading for plugins from github.com/containernetworking/plugins"
	checksChain      = "masq_checks"
	checksComment    = "Masquerade traffic from certain IPs to any (non-multicast) IP outside their subnet"
	postroutingChain = "postrouting"
	afterRouting     = 100 // nft's priority srcnat
	maxComment       = 128
)

func hashOf(text string) string {
	sum := sha512.Sum512([]byte(text))
	return hex.EncodeToString(sum[:])[:16]
}

// hash returns the prefix of the comment of the attachment's rules.
func (m reference) hash() string { return hashOf(m.network) + "-" + hashOf(m.ifName+":"+m.id) }

func (m reference) comment() string {
	bare := func(s string) string { return strings.ReplaceAll(s, `"`, "") }
	c := fmt.Sprintf("%s, net: %s, if: %s, id: %s", m.hash(), bare(m.network), bare(m.ifName), bare(m.id))
	return c[:min(len(c), maxComment)]
}

// addNFT creates the missing parts of the table and adds the attachment's
// rules. It replaces rules that an earlier ADD without DEL left.
func (m reference) addNFT(ctx context.Context, addresses []masqueraded) error {
	t := masqueradeTable()
	stale, err := rulesOf(ctx, t, m.hash())
	if err != nil {
		return err
	}
	s := t.Script()
	s.Make(nftTableComment)
	s.Chain(checksChain, checksComment)
	s.NAT(postroutingChain, postroutingChain, afterRouting)
	s.Flush(postroutingChain)
	s.Rule(postroutingChain, "", "ip daddr == 224.0.0.0/4 return")
	s.Rule(postroutingChain, "", "ip6 daddr == ff00::/8 return")
	s.Rule(postroutingChain, "", "goto", checksChain)
	for _, r := range stale {
		s.Delete(r)
	}
	for _, address := range addresses {
		family := "ip"
		if address.IP.To4() == nil {
			family = "ip6"
		}
		s.Rule(checksChain, m.comment(), family, "saddr ==", address.IP.String(), family, "daddr !=", address.nftKept(), "masquerade")
	}
	return t.Run(ctx, s)
}

// nftKept returns the networks of kept in the syntax of nft: one of them as the
// reference plugin writes it.
func (a masqueraded) nftKept() string {
	var networks []string
	for _, p := range a.kept {
		networks = append(networks, p.String())
	}
	if len(networks) == 1 {
		return networks[0]
	}
	return "{ " + strings.Join(networks, ", ") + " }"
}

func masqueradeTable() *iptables.NFTable { return &iptables.NFTable{Family: nftFamily, Name: nftTable} }

// changeNFT deletes rules whose comment begins with hash and for which remove
// is true.
func (m reference) changeNFT(ctx context.Context, hash string, remove func(iptables.NFTRule) bool) error {
	t := masqueradeTable()
	rules, err := rulesOf(ctx, t, hash)
	if err != nil {
		return err
	}
	s := t.Script()
	for _, r := range rules {
		if remove(r) {
			s.Delete(r)
		}
	}
	if s.Empty() {
		return nil
	}
	return t.Run(ctx, s)
}

func rulesOf(ctx context.Context, t *iptables.NFTable, hash string) ([]iptables.NFTRule, error) {
	rules, err := t.Rules(ctx, checksChain)
	var own []iptables.NFTRule
	for _, r := range rules {
		if strings.HasPrefix(r.Comment, hash) {
			own = append(own, r)
		}
	}
	return own, err
}
