package policy

import (
	"bytes"
	"fmt"
	"slices"
)

// Canonical returns bytes that are the same for policies that mean the same, for a content
// hash: one line for each combination of a peer and a service, in a fixed order, with
// presets and "metadata" replaced by their rules and addresses. Names and the order of rules,
// and how peers and services are grouped in rules, do not matter. The policy must be valid.
func (p *Policy) Canonical() []byte {
	var lines []string
	for _, t := range []Traffic{Ingress, Egress} {
		lines = append(lines, fmt.Sprintf("%s default %s", t, p.fallback(t)))
		if p.fallback(t) == Allow && p.closesHost(t) {
			lines = append(lines, fmt.Sprintf("%s %s", t, byNoHost))
		}
		if p.fallback(t) == Allow && p.admitsPublished(t) {
			lines = append(lines, fmt.Sprintf("%s %s", t, byPublishedOnly))
		}
		for _, r := range p.sources(t) {
			for _, peer := range r.canonicalPeers() {
				for _, s := range r.spans() {
					lines = append(lines, fmt.Sprintf("%s %s %s %s", t, r.action(), peer, s))
				}
			}
		}
	}
	slices.Sort(lines)
	var out bytes.Buffer
	for _, line := range slices.Compact(lines) {
		out.WriteString(line + "\n")
	}
	return out.Bytes()
}

func (r *Rule) canonicalPeers() []string {
	if len(r.Peers) == 0 {
		return []string{"everyone"}
	}
	var list []string
	for i := range r.Peers {
		prefixes := r.Peers[i].prefixes()
		for _, prefix := range prefixes {
			list = append(list, prefix.String())
		}
		if len(prefixes) == 0 {
			list = append(list, r.Peers[i].String())
		}
	}
	return list
}
