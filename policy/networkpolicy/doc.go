// Package networkpolicy translates NetworkPolicy documents of Kubernetes (API
// networking.k8s.io/v1) into policies of allocations.
//
// It only computes: it opens no socket and reads no file. All functions are safe for
// concurrent use as long as no goroutine writes to their arguments. No function changes its
// arguments.
//
// # Basics
//
// Parse reads the documents of a cluster, in JSON. Set.For returns the policy.Policy of one
// pod. The allocation of each pod needs the labels that Pod.AllocationLabels returns, because
// selectors for peers become selectors for allocations:
//
//	set, err := networkpolicy.Parse(documents...)
//	pod := networkpolicy.Pod{Namespace: "shop", Labels: map[string]string{"app": "db"}}
//	alloc.Labels, err = pod.AllocationLabels()
//	alloc.AllowReservedLabels = true
//	p, err := set.For(pod)
//
// The labels of a pod stay as they are. Those of its namespace become labels of the allocation
// with "namespace.allocnet" in the prefix of their keys: team becomes namespace.allocnet/team,
// and example.com/team becomes example.com.namespace.allocnet/team. The namespace's name is the
// label kubernetes.io/metadata.name, as in Kubernetes. A named port is a label, too: the TCP port
// 8080 with the name web is web.tcp.port.allocnet/8080. Pods cannot have labels with such keys, or
// one pod could pretend to be in the namespace of another. For the same reason, Setup and
// Update accept such keys only with AllowReservedLabels.
//
// The semantics are those of the Kubernetes documentation ("Network Policies" under Concepts,
// and the reference of NetworkPolicy v1):
//
//   - A pod that no document selects is open in both directions. A document that selects it
//     isolates it in the directions of policyTypes. Without policyTypes these are Ingress, and
//     Egress if there is an egress rule.
//   - Several documents add up: traffic is allowed if a rule of any of them allows it.
//   - A rule without from, to or ports, or with an empty list, is about every peer or
//     everything. An empty podSelector selects all pods of its namespace, an empty
//     namespaceSelector all namespaces.
//   - podSelector alone means pods of the document's namespace; together with
//     namespaceSelector in one peer, both must match.
//   - except takes addresses away from its own ipBlock, not from other rules: the rest is
//     translated into prefixes.
//   - A protocol that is left out is TCP; a port that is left out means all ports.
//   - Ingress from the host, which is the pod's node, is allowed, as package policy does anyway.
//
// # Caveats
//
// Kubernetes leaves open what a NetworkPolicy means for ICMP. Here, a rule without ports allows
// it, and a rule with ports does not, so an isolated pod may not answer pings.
//
// Egress to the host is subject to the rules like any other address, as in the reference of
// NetworkPolicy v1. The page on concepts says that traffic between a pod and its node is always
// allowed; to allow it, add an ipBlock with the addresses of the host.
//
// Selectors match allocations of this host only. Pods on other hosts are addresses, which need
// an ipBlock.
//
// A named port of an ingress rule has the numbers in Pod.Ports. That of an egress rule has the
// number that each peer gives it: the labels of an allocation say which ports it has, and
// Pod.PeerPorts which numbers there are. So it is about pods only: for an ipBlock it allows nothing.
// A name without a number allows nothing. Warnings returns these cases.
//
// A document without metadata.namespace is in the namespace "default". Fields of metadata
// other than name and namespace, and status, are ignored; an unknown field anywhere else is
// an error.
package networkpolicy
