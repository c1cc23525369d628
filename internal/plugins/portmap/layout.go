package portmap

import (
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/allocnet/allocnet/internal/iptables"
)

// The reference plugin's chains and comments in iptables' nat table. Its CHECK
// finds rules by their exact text, its DEL finds the chain by its name.
const (
	table        = "nat"
	portsChain   = "CNI-HOSTPORT-DNAT"
	setMarkChain = "CNI-HOSTPORT-SETMARK"
	masqChain    = "CNI-HOSTPORT-MASQ"

	setMarkComment = "CNI portfwd masquerade mark"
	masqComment    = "CNI portfwd requiring masquerade"

	chainLength   = 28
	commentLength = 255
	multiport     = 15 // maximum number of ports per rule
)

// ownChain is the name of the chain with an attachment's host ports.
func ownChain(network, id string) string {
	sum := sha512.Sum512([]byte(network + id))
	return ("CNI-DN-" + hex.EncodeToString(sum[:]))[:chainLength]
}

func ownComment(network, id string) string {
	comment := fmt.Sprintf(`dnat name: "%s" id: "%s"`, network, id)
	if len(comment) > commentLength {
		comment = comment[:commentLength-2] + "..."
	}
	return comment
}

// sharedRules returns the rules that all attachments share and that DEL keeps.
func (p *publication) sharedRules() []iptables.Wanted {
	var rules []iptables.Wanted
	if p.snat && p.ExternalSetMarkChain == nil {
		mark := fmt.Sprintf("%#x/%#x", 1<<p.markBit, 1<<p.markBit)
		rules = []iptables.Wanted{
			{Chain: setMarkChain},
			{Chain: setMarkChain, Spec: []string{"-m", "comment", "--comment", setMarkComment, "-j", "MARK", "--set-xmark", mark}},
			{Chain: masqChain},
			{Chain: masqChain, Spec: []string{"-m", "mark", "--mark", mark, "-j", "MASQUERADE"}},
			{Chain: "POSTROUTING", Spec: []string{"-m", "comment", "--comment", masqComment, "-j", masqChain}, First: true},
		}
	}
	toPorts := []string{"-m", "addrtype", "--dst-type", "LOCAL", "-j", portsChain}
	return append(rules, iptables.Wanted{Chain: portsChain},
		iptables.Wanted{Chain: "PREROUTING", Spec: toPorts}, iptables.Wanted{Chain: "OUTPUT", Spec: toPorts})
}

// entryRules returns the rules that jump to the attachment's chain, by protocol
// and port.
func (p *publication) entryRules(addr netip.Addr) []iptables.Wanted {
	conditions := p.ConditionsV4
	if addr.Is6() {
		conditions = p.ConditionsV6
	}
	ports := map[string][]string{}
	var protocols []string
	for _, m := range p.mappings {
		if ports[m.Protocol] == nil {
			protocols = append(protocols, m.Protocol)
		}
		ports[m.Protocol] = append(ports[m.Protocol], strconv.Itoa(m.HostPort))
	}
	slices.Sort(protocols)
	var rules []iptables.Wanted
	for _, protocol := range protocols {
		for some := range slices.Chunk(ports[protocol], multiport) {
			spec := []string{"-m", "comment", "--comment", ownComment(p.Name, p.id),
				"-m", "multiport", "-p", protocol, "--destination-ports", strings.Join(some, ",")}
			spec = slices.Concat(spec, conditions, []string{"-j", ownChain(p.Name, p.id)})
			rules = append(rules, iptables.Wanted{Chain: portsChain, Spec: spec})
		}
	}
	return rules
}

// portRules returns the rules of the attachment's chain, in order: packets to
// masquerade are marked before they are redirected.
func (p *publication) portRules(address netip.Prefix) []iptables.Wanted {
	var rules []iptables.Wanted
	add := func(base []string, spec ...string) {
		rules = append(rules, iptables.Wanted{Chain: ownChain(p.Name, p.id), Spec: slices.Concat(base, spec)})
	}
	mark := setMarkChain
	if p.ExternalSetMarkChain != nil {
		mark = *p.ExternalSetMarkChain
	}
	for _, m := range p.of(address.Addr()) {
		base := []string{"-p", m.Protocol, "--dport", strconv.Itoa(m.HostPort)}
		if m.restricted() {
			base = append(base, "-d", m.HostIP)
		}
		for _, source := range p.masqueraded(address) {
			add(base, "-s", source, "-j", mark)
		}
		to := netip.AddrPortFrom(address.Addr(), uint16(m.ContainerPort))
		add(base, "-j", "DNAT", "--to-destination", to.String())
	}
	return rules
}

// masqueraded returns the sources whose connections are masqueraded.
func (p *publication) masqueraded(address netip.Prefix) []string {
	is4 := address.Addr().Is4()
	switch {
	case !p.snat:
		return nil
	case p.MasqAll && is4:
		return []string{"0.0.0.0/0"}
	case p.MasqAll:
		return []string{"::/0"}
	case is4:
		return []string{address.String(), "127.0.0.1"}
	}
	return []string{address.String()}
}
