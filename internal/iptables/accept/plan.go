package accept

import (
	"fmt"
	"slices"
	"strings"

	"github.com/allocnet/allocnet/internal/iptables/rules"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
)

const (
	// Chain is the chain of the opening, in the filter table.
	Chain   = "ALLOCNET-FORWARD"
	forward = "FORWARD"
)

// The rules, spelt as iptables lists them.
var (
	jump   = "-m comment --comment allocnet -j " + Chain
	accept = fmt.Sprintf("-m mark --mark %#x/%#[1]x -j ACCEPT", ruleset.ForwardMark)
	// unmark stands in FORWARD of the table mangle, which comes before the others.
	unmark = fmt.Sprintf("-m comment --comment allocnet -m mark --mark %#x/%#[1]x -j MARK --set-xmark 0x0/%#[1]x", ruleset.ForwardMark)
)

func toAdmin(chain string) string { return "-j " + chain }

// listing is what stands in the kernel.
type listing struct {
	forward, chain []string        // rules of both chains, in order
	exists         map[string]bool // the chains that are there
	// unmarks is how many rules clear the mark first, where that is needed.
	unmarks    int
	mustUnmark bool
}

// repair are the lines for iptables-restore that turn the listing into the
// opening; none if it is that already.
//
// They succeed only on what the listing says: a chain is made only where it is
// missing, and of a rule that is to be there once, all are deleted before one is
// inserted. So when two processes repair at once, one of them fails as a whole
// and lists again; none undoes the other's work.
func (l *listing) repair(admins []string) []string {
	var lines []string
	for _, chain := range append([]string{Chain}, admins...) {
		if !l.exists[chain] {
			lines = append(lines, "-N "+chain)
		}
	}
	if n := count(l.chain, accept); n != 1 {
		lines = append(lines, replace(Chain, accept, n, "-A "+Chain)...)
	}
	for _, admin := range slices.Backward(admins) {
		if n := count(l.chain, toAdmin(admin)); n != 1 || !l.decidesFirst(admin) {
			lines = append(lines, replace(Chain, toAdmin(admin), n, "-I "+Chain+" 1")...)
		}
	}
	if n := count(l.forward, jump); n != 1 {
		lines = append(lines, replace(forward, jump, n, "-I "+forward+" 1")...)
	}
	return lines
}

// repairUnmark are the lines for the table mangle.
func (l *listing) repairUnmark() []string {
	if !l.mustUnmark || l.unmarks == 1 {
		return nil
	}
	return replace(forward, unmark, l.unmarks, "-A "+forward)
}

// missing says what keeps the listing from being open, for people.
func (l *listing) missing(admins []string) []string {
	var missing []string
	if !slices.Contains(l.forward, jump) {
		missing = append(missing, "no jump from "+forward+" to "+Chain)
	}
	if !slices.Contains(l.chain, accept) {
		missing = append(missing, Chain+" does not accept what is marked")
	}
	if l.mustUnmark && l.unmarks == 0 {
		missing = append(missing, forward+" of the table "+mangle+" does not clear the mark")
	}
	for _, admin := range admins {
		if !slices.Contains(l.chain, toAdmin(admin)) || !l.decidesFirst(admin) {
			missing = append(missing, Chain+" does not ask "+admin+" first")
		}
	}
	return missing
}

// decidesFirst says whether no accept stands before an admin chain.
func (l *listing) decidesFirst(admin string) bool {
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

// replace puts one rule in the place of n.
func replace(chain, rule string, n int, where string) []string {
	return append(remove(chain, rule, n), where+" "+rule)
}

func remove(chain, rule string, n int) []string {
	return slices.Repeat([]string{"-D " + chain + " " + rule}, n)
}

// rulesOf are the rules in what "iptables -S" says about one chain.
func rulesOf(output string) ([]string, error) {
	parsed, err := rules.Parse(strings.Split(output, "\n"))
	rules := make([]string, len(parsed.Rules))
	for i, rule := range parsed.Rules {
		rules[i] = strings.Join(rule.Spec, " ")
	}
	return rules, err
}

// checkNames refuses what would mean something else in a line of iptables-restore.
func checkNames(admins []string) error {
	for _, admin := range admins {
		if names.ValidateChain(admin) != nil || admin == Chain {
			return fmt.Errorf("open forwarding: %q cannot be the name of an admin chain", admin)
		}
	}
	return nil
}
