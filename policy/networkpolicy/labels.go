package networkpolicy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
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
	// Ports are the named ports of its containers. Those names in ingress rules stand for
	// their numbers.
	Ports []Port
	// PeerPorts are the named ports of all pods on this host, in any order, each at least
	// once. A name in an egress rule stands for these numbers, each at those peers whose own
	// Ports have it. A number that is not among them is not allowed until the policy is
	// translated again.
	PeerPorts []Port
}

// Port is a named port of a container. A pod can have several with the same name.
type Port struct {
	Name string
	// Protocol is "tcp", "udp" or "sctp".
	Protocol string
	Number   uint16
}

func (p Port) validate() error {
	switch {
	case !isPortName(p.Name):
		return fmt.Errorf("port %.64q: %s", p.Name, portNames)
	case p.Protocol != "tcp" && p.Protocol != "udp" && p.Protocol != "sctp":
		return fmt.Errorf("port %q: protocol %.64q is not tcp, udp or sctp", p.Name, p.Protocol)
	case p.Number == 0:
		return fmt.Errorf("port %q: it has no number", p.Name)
	}
	return nil
}

// key returns the key of the label that an allocation has for the port.
func (p Port) key() string {
	return fmt.Sprintf("%s.%s.%s/%d", p.Name, p.Protocol, names.PortDomain, p.Number)
}

// numbers returns the ports with a name and a protocol, each once: those of the pod for ingress,
// those of its peers for egress.
func (p *Pod) numbers(t policy.Traffic, name servicePort) []Port {
	ports := p.Ports
	if t == policy.Egress {
		ports = p.PeerPorts
	}
	var list []Port
	for _, one := range ports {
		if one.Name == name.name && one.Protocol == name.Protocol && !slices.Contains(list, one) {
			list = append(list, one)
		}
	}
	slices.SortFunc(list, func(a, b Port) int { return cmp.Compare(a.Number, b.Number) })
	return list
}

// validate checks the ports.
func (p *Pod) validate() error {
	for _, one := range slices.Concat(p.Ports, p.PeerPorts) {
		if err := one.validate(); err != nil {
			return err
		}
	}
	return nil
}

func (p *Pod) namespace() string {
	if p.Namespace == "" {
		return "default"
	}
	return p.Namespace
}

// AllocationLabels returns the labels that the allocation of the pod must have, so that the
// policies of other pods match it. Setup accepts them only with Allocation.AllowReservedLabels. It is an error if the
// pod has a label with a key that stands for a label of a namespace or for a port, if a port is not valid, or if the labels
// are not valid for an allocation.
func (p *Pod) AllocationLabels() (map[string]string, error) {
	all, err := p.labels()
	if err != nil {
		return nil, fmt.Errorf("translate labels of a pod in namespace %.64q: %w", p.namespace(), err)
	}
	return all, nil
}

func (p *Pod) labels() (map[string]string, error) {
	if err := p.validate(); err != nil {
		return nil, err
	}
	all := map[string]string{}
	if err := names.RefuseReserved(p.Labels); err != nil {
		return nil, err
	}
	maps.Copy(all, p.Labels)
	for key, value := range p.NamespaceLabels {
		all[namespaceKey(key)] = value
	}
	all[namespaceKey(nameKey)] = p.namespace()
	for _, port := range p.Ports {
		all[port.key()] = ""
	}
	return all, names.ValidateLabels(all)
}

// namespaceKey returns the key under which an allocation has a label of its namespace.
func namespaceKey(key string) string {
	prefix, name, found := strings.Cut(key, "/")
	if !found {
		return names.NamespaceDomain + "/" + key
	}
	return prefix + "." + names.NamespaceDomain + "/" + name
}

// checkPodKey refuses the keys that namespaceKey and Port.key return.
func checkPodKey(key string) error { return names.RefuseReserved(map[string]bool{key: true}) }
