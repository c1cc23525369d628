package iptables

import (
	"fmt"
	"slices"
	"strings"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
)

// AcceptChain is the chain of the forward-accept rule, in the filter table.
const AcceptChain = "ALLOCNET-FORWARD"

// The rules as iptables lists them.
var (
	jump   = "-m comment --comment allocnet -j " + AcceptChain
	accept = fmt.Sprintf("-m mark --mark %#x/%#[1]x -j ACCEPT", ruleset.ForwardMark)
	// unmark is a rule of FORWARD in the table mangle, which is evaluated before
	// the table filter.
	unmark = fmt.Sprintf("-m comment --comment allocnet -m mark --mark %#x/%#[1]x -j MARK --set-xmark 0x0/%#[1]x", ruleset.ForwardMark)
)

func toAdmin(chain string) string { return "-j " + chain }

// state is what exists in the kernel of the forward-accept rule.
type state struct {
	forward, chain []string        // rules of both chains, in order
	exists         map[string]bool // which chains exist
	// unmarks is the number of rules that clear the mark in the table mangle. There
	// has to be one if mustUnmark is true.
	unmarks    int
	mustUnmark bool
}

// repair returns the lines for iptables-restore that complete the rule; none if it is
// complete.
//
// The lines succeed only if this state has not changed: they make a chain only if it is
// missing, and to replace a rule they first delete all its copies. So if two processes
// repair at the same time, one of them fails without any change and lists again;
// neither reverts the changes of the other.
func (l *state) repair(admins []string) []string {
	var lines []string
	for _, chain := range append([]string{AcceptChain}, admins...) {
		if !l.exists[chain] {
			lines = append(lines, "-N "+chain)
		}
	}
	if n := count(l.chain, accept); n != 1 {
		lines = append(lines, replace(AcceptChain, accept, n, "-A "+AcceptChain)...)
	}
	for _, admin := range slices.Backward(admins) {
		if n := count(l.chain, toAdmin(admin)); n != 1 || !l.decidesFirst(admin) {
			lines = append(lines, replace(AcceptChain, toAdmin(admin), n, "-I "+AcceptChain+" 1")...)
		}
	}
	if n := count(l.forward, jump); n != 1 {
		lines = append(lines, replace(forwardChain, jump, n, "-I "+forwardChain+" 1")...)
	}
	return lines
}

// repairUnmark returns the lines for the table mangle.
func (l *state) repairUnmark() []string {
	if !l.mustUnmark || l.unmarks == 1 {
		return nil
	}
	return replace(forwardChain, unmark, l.unmarks, "-A "+forwardChain)
}

// missing describes what the rule lacks.
func (l *state) missing(admins []string) []string {
	var missing []string
	if !slices.Contains(l.forward, jump) {
		missing = append(missing, "no jump from "+forwardChain+" to "+AcceptChain)
	}
	if !slices.Contains(l.chain, accept) {
		missing = append(missing, AcceptChain+" does not accept what is marked")
	}
	if l.mustUnmark && l.unmarks == 0 {
		missing = append(missing, forwardChain+" of the table "+mangleTable+" does not clear the mark")
	}
	for _, admin := range admins {
		if !slices.Contains(l.chain, toAdmin(admin)) || !l.decidesFirst(admin) {
			missing = append(missing, AcceptChain+" does not ask "+admin+" first")
		}
	}
	return missing
}

// decidesFirst reports whether the jump to an admin chain precedes every accept.
func (l *state) decidesFirst(admin string) bool {
	accepts := slices.Index(l.chain, accept)
	return accepts < 0 || slices.Index(l.chain, toAdmin(admin)) < accepts
}

func count(rules []string, rule string) int {
	n := 0
	for _, one := range rules {
		if one == rule {
			n++
		}
	}
	return n
}

// replace returns the lines that delete n copies of a rule and add one.
func replace(chain, rule string, n int, where string) []string {
	return append(remove(chain, rule, n), where+" "+rule)
}

func remove(chain, rule string, n int) []string {
	return slices.Repeat([]string{"-D " + chain + " " + rule}, n)
}

// specs returns the rules in the output of "iptables -S" for one chain.
func specs(output string) ([]string, error) {
	listing, err := Parse([]string{output})
	specs := make([]string, len(listing.Rules))
	for i, rule := range listing.Rules {
		specs[i] = strings.Join(rule.Spec, " ")
	}
	return specs, err
}

// checkNames rejects names that would have another meaning in a line of
// iptables-restore.
func checkNames(admins []string) error {
	for _, admin := range admins {
		if names.ValidateChain(admin) != nil || admin == AcceptChain {
			return fmt.Errorf("make forward-accept rule: %q cannot be the name of an admin chain", admin)
		}
	}
	return nil
}
