package names

import (
	"strconv"
	"strings"
)

// The names of chains and sets of one policy in PolicyTable begin with policyPrefix, and those of
// sets of allocations that policies select with selectionPrefix.
const (
	policyPrefix    = "policy_"
	selectionPrefix = "selection_"
)

// The directions of a PolicyChain, seen from the allocation.
const (
	Egress  = "egress"
	Ingress = "ingress"
)

// NoStage is the Stage of the chain to which links and addresses lead.
const NoStage = -1

// PolicyChain is the name of a chain of a network policy in PolicyTable. A policy has one for each
// direction in which it denies something. If there are several stages, because the network and the
// allocation both deny something, that chain calls one for each stage.
type PolicyChain struct {
	ID        string // of the policy: letters and digits
	Direction string // Egress or Ingress
	Stage     int    // from 0, in the order in which they are applied; else NoStage
}

// String returns the name: policy_ID_DIRECTION, followed by _STAGE if the chain is that of a stage.
func (c PolicyChain) String() string {
	name := policyPrefix + c.ID + "_" + c.Direction
	if c.Stage == NoStage {
		return name
	}
	return name + "_" + strconv.Itoa(c.Stage)
}

// Set returns the name of the set with the prefixes of a rule of the chain.
func (c PolicyChain) Set(rule int) string { return c.String() + "_" + strconv.Itoa(rule) }

// ServicesSet returns the name of the set with ports that rules of a policy share.
func ServicesSet(id, digest string) string { return policyPrefix + id + "_services_" + digest }

// ParsePolicyChain parses the name that String returns.
func ParsePolicyChain(name string) (PolicyChain, bool) {
	rest, ok := strings.CutPrefix(name, policyPrefix)
	id, rest, found := strings.Cut(rest, "_")
	direction, stage, staged := strings.Cut(rest, "_")
	c := PolicyChain{ID: id, Direction: direction, Stage: NoStage}
	if !ok || !found || id == "" || direction != Egress && direction != Ingress {
		return PolicyChain{}, false
	}
	if staged {
		n, err := strconv.Atoi(stage)
		if err != nil || n < 0 || strconv.Itoa(n) != stage {
			return PolicyChain{}, false
		}
		c.Stage = n
	}
	return c, true
}

// The beginnings of the names of sets in PolicyTable that the rules of all policies may use.
const (
	Metadata = "metadata"  // the addresses of metadata services
	NotWorld = "not_world" // the addresses to which the peer "world" never applies
)

// IsConstantSet reports whether a set of PolicyTable always has the same elements.
func IsConstantSet(name string) bool {
	return strings.HasPrefix(name, Metadata+"_") || strings.HasPrefix(name, NotWorld+"_")
}

// PolicyID returns the ID in the name of a policy's chain or set; "" for other names.
func PolicyID(name string) string {
	rest, ok := strings.CutPrefix(name, policyPrefix)
	id, _, found := strings.Cut(rest, "_")
	if !ok || !found {
		return ""
	}
	return id
}

// SelectionSet returns the name of the set for a selection of allocations.
func SelectionSet(selection string) string { return selectionPrefix + selection }

// ParseSelectionSet parses the name that SelectionSet returns.
func ParseSelectionSet(name string) (selection string, ok bool) {
	return strings.CutPrefix(name, selectionPrefix)
}
