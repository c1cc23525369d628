package policy

import (
	"net/netip"
	"slices"
)

// Preset is the name of a predefined set of rules.
type Preset string

// The presets. The rules of several presets, and those of the policy itself, are added up;
// a direction denies by default if one of them does.
const (
	// Isolated denies both directions by default.
	Isolated Preset = "isolated"
	// EgressOnly denies both directions by default, and allows egress to "world".
	EgressOnly Preset = "egress-only"
	// NoMetadata denies egress to "metadata".
	NoMetadata Preset = "no-metadata"
	// NoPrivate denies egress to the host and to private and link-local addresses: those
	// of RFC 1918, RFC 6598, RFC 3927, and fc00::/7 and fe80::/10. It also denies egress to
	// allocations with such addresses.
	NoPrivate Preset = "no-private"
	// NoHost denies by default egress to the other addresses of the host and to the other
	// networks on it: addresses of the host and of allocations outside the allocation's own
	// network. Host ports of allocations in other networks stay reachable, as from everywhere.
	NoHost Preset = "no-host"
	// PublishedOnly denies by default ingress from everywhere but the host and allocations in the
	// allocation's own network, unless it was sent to a host port of the allocation.
	PublishedOnly Preset = "published-only"
)

// The names of decisions of NoHost and PublishedOnly.
const (
	byNoHost        = "preset " + string(NoHost)
	byPublishedOnly = "preset " + string(PublishedOnly)
)

// metadata are the addresses of the services by which cloud providers give metadata, and
// often credentials, to their machines, tasks and pods. Sources, all public documentation:
//
//   - 169.254.169.254, fd00:ec2::254: Amazon EC2 User Guide, "Access instance metadata for an
//     EC2 instance". The IPv4 address is also that of Azure, Google Cloud, Oracle Cloud,
//     OpenStack, DigitalOcean and others.
//   - 169.254.170.2: Amazon ECS Developer Guide, "Amazon ECS task metadata endpoint version
//     2" and "Task IAM role".
//   - 169.254.170.23, fd00:ec2::23: Amazon EKS User Guide, "Set up the Amazon EKS Pod Identity
//     Agent".
//   - 168.63.129.16: Microsoft Learn, "What is IP address 168.63.129.16?" (WireServer).
//   - fd20:ce::254: Google Cloud, "View and query VM metadata" (IPv6-only machines).
//   - 100.100.100.200, fd00:100::100:200: Alibaba Cloud, "Obtain instance metadata", and
//     cloud-init, data source AliYun (IPv6).
//   - 192.0.0.192: Oracle Cloud at Customer and Oracle Compute Cloud Service (Classic),
//     "Retrieve Predefined Instance Metadata".
//   - fd00:c1::a9fe:a9fe: Oracle Cloud Infrastructure, its Python SDK, signer for instance
//     principals (IPv6).
//   - fd00:a9fe:a9fe::1: Akamai (Linode), "How to use the Metadata Service API" (IPv6).
//   - 169.254.42.42, fd00:42::42: the documentation of cloud-init, data source Scaleway.
//   - 169.254.0.23: Tencent Cloud, as in the source of the Datadog agent, package tencent.
//   - fe80::a9fe:a9fe: OpenStack Neutron, metadata service over IPv6.
var metadata = mustPrefixes(
	"100.100.100.200/32", "168.63.129.16/32", "169.254.0.23/32", "169.254.42.42/32",
	"169.254.169.254/32", "169.254.170.2/32", "169.254.170.23/32", "192.0.0.192/32",
	"fd00:42::42/128", "fd00:100::100:200/128", "fd00:a9fe:a9fe::1/128", "fd00:c1::a9fe:a9fe/128",
	"fd00:ec2::23/128", "fd00:ec2::254/128", "fd20:ce::254/128", "fe80::a9fe:a9fe/128",
)

// linkLocal are the link-local addresses (RFC 3927 and RFC 4291).
var linkLocal = mustPrefixes("169.254.0.0/16", "fe80::/10")

// notWorld are the addresses to which the peer "world" never applies. None contains another.
var notWorld = outermost(append(slices.Clone(linkLocal), metadata...))

// private are the addresses that NoPrivate denies: RFC 1918, RFC 6598, RFC 3927, RFC 4193,
// and the link-local ones of RFC 4291.
var private = mustPrefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10",
	"169.254.0.0/16", "fc00::/7", "fe80::/10")

var presets = map[Preset]*Policy{
	Isolated: {Ingress: &Direction{Default: Deny}, Egress: &Direction{Default: Deny}},
	EgressOnly: {
		Ingress: &Direction{Default: Deny},
		Egress:  &Direction{Default: Deny, Rules: []Rule{{Peers: []Peer{{Name: nameWorld}}}}},
	},
	NoMetadata: {Egress: &Direction{Rules: []Rule{{Action: Deny, Peers: []Peer{{Name: nameMetadata}}}}}},
	NoPrivate:  {Egress: &Direction{Rules: []Rule{{Action: Deny, Peers: append(cidrs(private), Peer{Name: nameHost})}}}},
	// These are not about particular addresses: see Remote.elsewhere and Remote.unpublished.
	NoHost: {}, PublishedOnly: {},
}

// Metadata returns the addresses for which the peer "metadata" stands, as prefixes of full
// length: those of metadata services of cloud providers.
func Metadata() []netip.Prefix { return slices.Clone(metadata) }

// NotWorld returns the addresses to which the peer "world" never applies, although they are neither
// of the host nor of an allocation: link-local ones and those of Metadata. None contains another.
func NotWorld() []netip.Prefix { return slices.Clone(notWorld) }

func cidrs(prefixes []netip.Prefix) []Peer {
	var peers []Peer
	for _, prefix := range prefixes {
		peers = append(peers, Peer{CIDR: prefix})
	}
	return peers
}

func mustPrefixes(texts ...string) []netip.Prefix {
	var list []netip.Prefix
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

func contains(prefixes []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}
