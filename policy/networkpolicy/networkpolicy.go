package networkpolicy

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/strictjson"
	"github.com/allocnet/allocnet/policy"
)

// Set is the network policies of a cluster. It is safe for concurrent use.
type Set struct {
	policies []networkPolicy
	peers    int // in all policies
}

// MaxSize is the maximum length in bytes of a document or list that Parse reads.
const MaxSize = 16 << 20

// maxPeers is the maximum number of peers of all documents, after except was subtracted from
// blocks.
const maxPeers = 1 << 18

// networkPolicy is a document in the terms of package policy.
type networkPolicy struct {
	name, namespace string
	selector        policy.Selector
	isolates        map[policy.Traffic]bool
	rules           map[policy.Traffic][]rule
}

// rule is an allowing rule. Without peers it is about every peer, without ports about
// everything.
type rule struct {
	place string
	peers []policy.Peer
	ports []servicePort
}

// servicePort is a service; if name is not empty, the port with this name.
type servicePort struct {
	policy.Service
	name string
}

// Parse reads documents in JSON, each a NetworkPolicy or a list of them. The error names the
// document, and the place of the first fault in it such as
// "spec.ingress[0].from[1].ipBlock.cidr".
func Parse(documents ...[]byte) (*Set, error) {
	set := &Set{}
	for i, data := range documents {
		if err := set.add(data); err != nil {
			return nil, fmt.Errorf("parse network policies: document %d: %w", i, err)
		}
	}
	return set, nil
}

// add adds a document, or those of a list.
func (s *Set) add(data []byte) error {
	if len(data) > MaxSize {
		return fmt.Errorf("%d bytes are too many: at most %d are possible", len(data), MaxSize)
	}
	list, err := decode(data)
	if err != nil {
		return err
	}
	for i := range list {
		p, err := list[i].translate()
		for _, rules := range p.rules {
			for _, r := range rules {
				s.peers += len(r.peers)
			}
		}
		if err == nil && s.peers > maxPeers {
			err = fmt.Errorf("the documents have more than %d peers", maxPeers)
		}
		if len(list) > 1 {
			err = strictjson.At(fmt.Sprintf("items[%d]", i), err)
		}
		if err != nil {
			return err
		}
		s.policies = append(s.policies, p)
	}
	return nil
}

// For returns the policy of a pod. It is valid, and allows everything if no network policy
// selects the pod. It is an error if a port of the pod is not valid, or if the rules are more than
// a policy can have.
func (s *Set) For(pod Pod) (*policy.Policy, error) {
	out := &policy.Policy{}
	err := pod.validate()
	for p := range s.selecting(&pod) {
		for _, t := range traffics {
			p.addTo(out, t, &pod)
		}
	}
	if err == nil {
		err = out.Validate()
	}
	if err != nil {
		return nil, fmt.Errorf("translate network policies for a pod in namespace %q: %w", pod.namespace(), err)
	}
	return out, nil
}

// Warnings returns what the network policies that select a pod do not allow although they seem to:
// named ports without a number, and those that a rule names for an ipBlock. Each names the network
// policy and the place in it.
func (s *Set) Warnings(pod Pod) (list []string) {
	for p := range s.selecting(&pod) {
		for _, t := range traffics {
			if !p.isolates[t] {
				continue
			}
			for _, r := range p.rules[t] {
				for _, warning := range r.warnings(t, &pod) {
					list = append(list, fmt.Sprintf("network policy %s/%s: %s", p.namespace, p.name, warning))
				}
			}
		}
	}
	return list
}

var traffics = []policy.Traffic{policy.Ingress, policy.Egress}

// selecting returns the network policies that select a pod.
func (s *Set) selecting(pod *Pod) iter.Seq[*networkPolicy] {
	return func(yield func(*networkPolicy) bool) {
		for i := range s.policies {
			p := &s.policies[i]
			if p.namespace == pod.namespace() && p.selector.Matches(pod.Labels) && !yield(p) {
				return
			}
		}
	}
}

// addTo adds one direction of the network policy to a policy.
func (p *networkPolicy) addTo(out *policy.Policy, t policy.Traffic, pod *Pod) {
	if !p.isolates[t] {
		return
	}
	direction := &out.Ingress
	if t == policy.Egress {
		direction = &out.Egress
	}
	if *direction == nil {
		*direction = &policy.Direction{Default: policy.Deny}
	}
	for _, r := range p.rules[t] {
		for _, one := range r.translate(t, pod) {
			one.Name, one.Action = ruleName(p.name), policy.Allow
			(*direction).Rules = append((*direction).Rules, split(one)...)
		}
	}
}

// translate returns rules that together mean the same. A named port is a number of the pod itself
// for ingress; for egress, it is each number at the peers that have it under this name. Such peers
// are pods: a port of an ipBlock has no name. A rule whose names have no number must not become one
// without services, which would allow everything.
func (r *rule) translate(t policy.Traffic, pod *Pod) []policy.Rule {
	all := policy.Rule{Peers: r.peers}
	var named []policy.Rule
	for _, p := range r.ports {
		if p.name == "" {
			all.Services = append(all.Services, p.Service)
			continue
		}
		for _, port := range pod.numbers(t, p) {
			service := policy.Service{Protocol: port.Protocol, Ports: strconv.Itoa(int(port.Number))}
			if t == policy.Ingress {
				all.Services = append(all.Services, service)
			} else if peers := r.withPort(port); len(peers) > 0 {
				named = append(named, policy.Rule{Peers: peers, Services: []policy.Service{service}})
			}
		}
	}
	if len(r.ports) > 0 && len(all.Services) == 0 {
		return named
	}
	return append([]policy.Rule{all}, named...)
}

// withPort returns the peers of the rule as far as they are pods with a port.
func (r *rule) withPort(port Port) []policy.Peer {
	if len(r.peers) == 0 {
		return []policy.Peer{{Selector: &policy.Selector{Labels: map[string]string{port.key(): ""}}}}
	}
	var list []policy.Peer
	for _, p := range r.peers {
		if p.Selector != nil {
			labels := maps.Clone(p.Selector.Labels) // never nil
			labels[port.key()] = ""
			list = append(list, policy.Peer{Selector: &policy.Selector{Labels: labels, Expressions: p.Selector.Expressions}})
		}
	}
	return list
}

// warnings returns what the rule does not allow for a pod although it seems to, with its place.
func (r *rule) warnings(t policy.Traffic, pod *Pod) (list []string) {
	blocks := slices.ContainsFunc(r.peers, func(p policy.Peer) bool { return p.CIDR.IsValid() })
	for i, p := range r.ports {
		place := fmt.Sprintf("%s.ports[%d].port", r.place, i)
		switch {
		case p.name == "":
		case len(pod.numbers(t, p)) == 0 && t == policy.Ingress:
			list = append(list, fmt.Sprintf("%s: the pod has no %s port %q: it allows nothing", place, p.Protocol, p.name))
		case len(pod.numbers(t, p)) == 0:
			list = append(list, fmt.Sprintf("%s: no peer has a %s port %q: it allows nothing", place, p.Protocol, p.name))
		case t == policy.Egress && blocks:
			list = append(list, fmt.Sprintf("%s: port %q has a number at pods only: it allows nothing for an ipBlock", place, p.name))
		}
	}
	return list
}

// chunk is the maximum number of peers, and of services, of a policy.Rule.
const chunk = 256

// split returns rules that together mean the same as r, with at most chunk peers and services
// each.
func split(r policy.Rule) []policy.Rule {
	peers, services := [][]policy.Peer{nil}, [][]policy.Service{nil}
	if len(r.Peers) > 0 {
		peers = slices.Collect(slices.Chunk(r.Peers, chunk))
	}
	if len(r.Services) > 0 {
		services = slices.Collect(slices.Chunk(r.Services, chunk))
	}
	var list []policy.Rule
	for _, somePeers := range peers {
		for _, someServices := range services {
			r.Peers, r.Services = somePeers, someServices
			list = append(list, r)
		}
	}
	return list
}

// ruleName makes the name of a document, which can be longer, the name of a rule.
func ruleName(name string) string {
	const most = 63
	if len(name) > most {
		name = name[:most]
	}
	return strings.TrimRight(name, "-.")
}

// maxRulePeers is the maximum number of peers of one rule.
const maxRulePeers = 1 << 14

// translate validates a document and translates all that does not depend on a pod.
func (d *document) translate() (networkPolicy, error) {
	p := networkPolicy{name: d.Metadata.Name, namespace: d.Metadata.Namespace, rules: map[policy.Traffic][]rule{}}
	var err error
	if p.isolates, err = d.Spec.isolates(); err != nil {
		return p, strictjson.At("spec.policyTypes", err)
	}
	if p.selector, err = d.Spec.PodSelector.translate(checkPodKey); err != nil {
		return p, strictjson.At("spec.podSelector", err)
	}
	for i, r := range d.Spec.Ingress {
		if err := p.addRule(policy.Ingress, fmt.Sprintf("spec.ingress[%d]", i), "from", r.From, r.Ports); err != nil {
			return p, err
		}
	}
	for i, r := range d.Spec.Egress {
		if err := p.addRule(policy.Egress, fmt.Sprintf("spec.egress[%d]", i), "to", r.To, r.Ports); err != nil {
			return p, err
		}
	}
	return p, nil
}

// isolates returns the directions of policyTypes, or their default.
func (s *spec) isolates() (map[policy.Traffic]bool, error) {
	if len(s.PolicyTypes) == 0 {
		return map[policy.Traffic]bool{policy.Ingress: true, policy.Egress: len(s.Egress) > 0}, nil
	}
	set := map[policy.Traffic]bool{}
	for i, name := range s.PolicyTypes {
		switch name {
		case "Ingress":
			set[policy.Ingress] = true
		case "Egress":
			set[policy.Egress] = true
		default:
			return nil, strictjson.At(fmt.Sprintf("[%d]", i), fmt.Errorf("%.64q is not Ingress or Egress", name))
		}
	}
	return set, nil
}

func (p *networkPolicy) addRule(t policy.Traffic, place, list string, peers []peer, ports []port) error {
	r := rule{place: place}
	for i := range peers {
		translated, err := peers[i].translate(p.namespace)
		if err != nil {
			return strictjson.At(fmt.Sprintf("%s.%s[%d]", place, list, i), err)
		}
		if r.peers = append(r.peers, translated...); len(r.peers) > maxRulePeers {
			return strictjson.At(place, fmt.Errorf("more than %d peers, or prefixes of blocks, are not possible", maxRulePeers))
		}
	}
	for i := range ports {
		translated, err := ports[i].translate()
		if err != nil {
			return strictjson.At(fmt.Sprintf("%s.ports[%d]", place, i), err)
		}
		r.ports = append(r.ports, translated)
	}
	if len(peers) > 0 && len(r.peers) == 0 {
		return nil // blocks without an address: without peers the rule would be about every peer
	}
	p.rules[t] = append(p.rules[t], r)
	return nil
}

// translate returns the peer; a block can be several.
func (p *peer) translate(namespace string) ([]policy.Peer, error) {
	selects := p.PodSelector != nil || p.NamespaceSelector != nil
	if selects == (p.IPBlock != nil) {
		return nil, errors.New("a peer has either ipBlock, or podSelector and namespaceSelector or one of them")
	}
	if p.IPBlock != nil {
		prefixes, err := p.IPBlock.prefixes()
		var peers []policy.Peer
		for _, prefix := range prefixes {
			peers = append(peers, policy.Peer{CIDR: prefix})
		}
		return peers, strictjson.At("ipBlock", err)
	}
	out := policy.Selector{Labels: map[string]string{}}
	if p.PodSelector != nil {
		pods, err := p.PodSelector.translate(checkPodKey)
		if err != nil {
			return nil, strictjson.At("podSelector", err)
		}
		maps.Copy(out.Labels, pods.Labels)
		out.Expressions = append(out.Expressions, pods.Expressions...)
	}
	if p.NamespaceSelector == nil {
		out.Labels[namespaceKey(nameKey)] = namespace
		return []policy.Peer{{Selector: &out}}, nil
	}
	namespaces, err := p.NamespaceSelector.translate(nil)
	if err != nil {
		return nil, strictjson.At("namespaceSelector", err)
	}
	for key, value := range namespaces.Labels {
		out.Labels[namespaceKey(key)] = value
	}
	for _, r := range namespaces.Expressions {
		r.Key = namespaceKey(r.Key)
		out.Expressions = append(out.Expressions, r)
	}
	// Allocations that are not pods have no namespace.
	out.Expressions = append(out.Expressions, policy.Requirement{Key: namespaceKey(nameKey), Operator: "Exists"})
	return []policy.Peer{{Selector: &out}}, nil
}

// translate validates the selector; check, if not nil, also checks each key.
func (s *selector) translate(check func(key string) error) (policy.Selector, error) {
	out := policy.Selector{Labels: s.MatchLabels, Expressions: s.MatchExpressions}
	if err := validate(out); err != nil {
		return out, err
	}
	keys := slices.Collect(maps.Keys(s.MatchLabels))
	for _, r := range s.MatchExpressions {
		keys = append(keys, r.Key)
	}
	for _, key := range slices.Sorted(slices.Values(keys)) {
		if check != nil {
			if err := check(key); err != nil {
				return out, err
			}
		} else if prefix, _, found := strings.Cut(namespaceKey(key), "/"); found && len(prefix) > maxPrefix {
			return out, fmt.Errorf("label %.256q: the prefix must be at most %d characters", key, maxPrefix-len(names.NamespaceDomain)-1)
		}
	}
	return out, nil
}

// maxPrefix is the maximum length of the prefix of a label's key.
const maxPrefix = 253

// validate validates a selector as part of a policy, and returns the error with its place in
// the document.
func validate(s policy.Selector) error {
	const place = "ingress.rules[0].peers[0]"
	err := (&policy.Policy{Ingress: &policy.Direction{Rules: []policy.Rule{{Peers: []policy.Peer{{Selector: &s}}}}}}).Validate()
	placed := (*strictjson.Error)(nil)
	if err == nil || !errors.As(err, &placed) {
		return err
	}
	inner := strings.TrimPrefix(strings.TrimPrefix(placed.Place, place), ".")
	inner = strings.Replace(inner, "labels", "matchLabels", 1)
	return strictjson.At(strings.Replace(inner, "expressions", "matchExpressions", 1), placed.Err)
}

func (p *port) translate() (servicePort, error) {
	out := servicePort{Service: policy.Service{Protocol: "tcp"}}
	if p.Protocol != nil {
		switch *p.Protocol {
		case "TCP", "UDP", "SCTP":
			out.Protocol = strings.ToLower(*p.Protocol)
		default:
			return out, strictjson.At("protocol", fmt.Errorf("%.64q is not TCP, UDP or SCTP", *p.Protocol))
		}
	}
	switch {
	case p.EndPort != nil && (p.Port == nil || p.Port.name != ""):
		return out, strictjson.At("endPort", errors.New("it needs port, as a number"))
	case p.EndPort != nil && *p.EndPort < p.Port.number:
		return out, strictjson.At("endPort", fmt.Errorf("%d is less than port %d", *p.EndPort, p.Port.number))
	case p.EndPort != nil:
		out.Ports = fmt.Sprintf("%d-%d", p.Port.number, *p.EndPort)
	case p.Port != nil && p.Port.name != "" && !isPortName(p.Port.name):
		return out, strictjson.At("port", fmt.Errorf("%.64q is neither a number nor the name of a port: %s", p.Port.name, portNames))
	case p.Port != nil && p.Port.name != "":
		out.name = p.Port.name
	case p.Port != nil:
		out.Ports = strconv.Itoa(int(p.Port.number))
	}
	return out, nil
}

const portNames = "names have up to 15 lowercase letters, digits and single hyphens, with a letter, and a hyphen neither first nor last"

// isPortName reports whether a container's port can have the name (RFC 6335, section 5.1, in lower case).
func isPortName(name string) bool {
	const letters, others = "abcdefghijklmnopqrstuvwxyz", "0123456789-"
	return name != "" && len(name) <= 15 && strings.Trim(name, letters+others) == "" && strings.ContainsAny(name, letters) &&
		!strings.Contains(name, "--") && name[0] != '-' && name[len(name)-1] != '-'
}
