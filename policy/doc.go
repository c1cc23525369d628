// Package policy defines which traffic to and from an allocation is allowed: the form of
// network policies, their validation, what they decide, and the order in which a packet filter
// has to look at their rules.
//
// It only computes: it opens no socket and reads no file. All functions are safe for
// concurrent use as long as no goroutine writes to their arguments. No function changes its
// arguments.
//
// # Basics
//
// A Policy has rules for two directions, seen from the allocation: Ingress is traffic to it,
// Egress traffic from it. Parse reads one:
//
//	p, err := policy.Parse([]byte(`{
//	  "presets": ["no-metadata"],
//	  "ingress": {"default": "deny", "rules": [
//	    {"peers": [{"labels": {"app": "web"}}], "services": [{"protocol": "tcp", "ports": "5432"}]}
//	  ]}
//	}`))
//
// A rule is about some peers and some services, or about every peer, or about everything. A
// policy decides on the first packet of a connection: replies, and ICMP errors that belong to
// a connection, follow that decision. Of the rules that match the packet, the one with the
// most specific peer decides; the order of the rules does not matter. From the most to the
// least specific, the peers are:
//
//  1. an allocation by its ID,
//  2. allocations by their labels,
//  3. "host", the addresses of the host,
//  4. a CIDR, the longer prefix first; "metadata" stands for CIDRs of full length,
//  5. "world", all addresses that are neither the host's nor an allocation's, except link-local
//     ones (169.254.0.0/16, fe80::/10) and those of Metadata,
//  6. a rule without peers.
//
// Among rules whose peers are equally specific, one that denies decides. How specific the
// services are does not matter. If no rule matches, the default of the direction decides.
//
// Two examples. With the default deny, the rules "allow 10.0.0.0/8" and "deny 10.1.0.0/16
// tcp/22" allow 10.1.2.3 on every port except tcp/22. Together with "allow label:app=ops
// tcp/22", they also allow tcp/22 with each allocation that has the label app=ops, whatever
// its address is.
//
// Presets are rules under a name. They are added to the policy's own rules; a direction
// denies by default if any part does. So isolated together with egress-only is
// egress-only, and a preset's rules give way to own rules with more specific peers. The preset
// no-host and published-only give way to every rule that matches: they decide before a default that allows.
//
// Decide is the definition of all this. Steps lists the rules so that the first one that
// matches has the same decision, as in a packet filter. Canonical is the input of a content hash.
// ParsePeer, ParseService and the String methods convert peers and services from and to
// their notation on a command line.
//
// # Caveats
//
// Ingress from the host is allowed, whatever the default is, unless a rule that names "host"
// denies it: the health checks of schedulers come from the host. A rule that denies
// 0.0.0.0/0, and the preset isolated, do not deny ingress from the host.
//
// "host" does not match allocations, and "world" matches neither. Egress to a resolver on the
// host needs a rule that names "host". A CIDR matches every address in it: a rule for
// 10.0.0.0/8 also matches allocations and the host with such an address, if no more specific
// rule does.
//
// "metadata" and "world" are about addresses as the allocation sees them. Behind a gateway that
// translates addresses (NAT64), a metadata service also has others, which need rules of their
// own.
//
// Only allocations of the same host are known as allocations. Those of other hosts are
// addresses, and part of the world.
//
// The services icmp and icmpv6 match the protocol numbers 1 and 58, of which IPv4 only has the
// first and IPv6 the second. Where a policy is enforced, ICMP errors are exempt, and for IPv6
// neighbour discovery between neighbours. Other protocols than those of Service, such as GRE,
// match only rules without services.
//
// A preset's meaning may change with a release: if a cloud provider adds an address for
// metadata, no-metadata includes it, and Canonical is different.
//
// Validate bounds the number of rules, peers and services, the number of their combinations, and
// how many lookups the first packet of a connection needs. Steps, Decide and Canonical expect a valid policy.
package policy
