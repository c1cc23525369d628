package networkpolicy

import (
	"fmt"
	"maps"
	"strings"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/policy"
)

// nameKey is the label that has the name of a namespace. Kubernetes sets it on every one.
const nameKey = "kubernetes.io/metadata.name"

// Pod is a pod on this host.
type Pod struct {
	// Namespace is the name of its namespace; empty means "default".
	Namespace string
	// NamespaceLabels are the labels of that namespace. The one with its name need not be
	// among them.
	NamespaceLabels map[string]string
	// Labels are the labels of the pod itself.
	Labels map[string]string
	// Port returns the numbers of a named port of a protocol ("tcp", "udp" or "sctp"). For
	// ingress these are ports of the pod; for egress, ports of the peers, which can be
	// several. It may be nil if no document has a named port.
	Port func(t policy.Traffic, protocol, name string) []uint16
}

func (p *Pod) namespace() string {
	if p.Namespace == "" {
		return "default"
	}
	return p.Namespace
}

// AllocationLabels returns the labels that the allocation of the pod must have, so that the
// policies of other pods match it. Setup accepts them only with Allocation.AllowReservedLabels. It is an error if the pod has a label with a key that
// stands for a label of a namespace, or if the labels are not valid for an allocation.
func (p *Pod) AllocationLabels() (map[string]string, error) {
	all := map[string]string{}
	if err := names.RefuseReserved(p.Labels); err != nil {
		return nil, fmt.Errorf("translate labels of a pod in namespace %.64q: %w", p.namespace(), err)
	}
	maps.Copy(all, p.Labels)
	for key, value := range p.NamespaceLabels {
		all[namespaceKey(key)] = value
	}
	all[namespaceKey(nameKey)] = p.namespace()
	if err := names.ValidateLabels(all); err != nil {
		return nil, fmt.Errorf("translate labels of a pod in namespace %.64q: %w", p.namespace(), err)
	}
	return all, nil
}

// namespaceKey returns the key under which an allocation has a label of its namespace.
func namespaceKey(key string) string {
	prefix, name, found := strings.Cut(key, "/")
	if !found {
		return names.NamespaceDomain + "/" + key
	}
	return prefix + "." + names.NamespaceDomain + "/" + name
}

// checkPodKey refuses a key that namespaceKey returns.
func checkPodKey(key string) error { return names.RefuseReserved(map[string]bool{key: true}) }
