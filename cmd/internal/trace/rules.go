package trace

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"github.com/allocnet/allocnet/cmd/internal/trace/probe"
	"github.com/allocnet/allocnet/internal/names"
)

// Chain is a chain of nftables that the probe or its answer passed.
type Chain struct {
	Family string `json:"family"`
	Table  string `json:"table"`
	Name   string `json:"chain"`
	// Tool is the program to which the table belongs, as far as names tell.
	Tool    string `json:"tool,omitempty"`
	Verdict string `json:"verdict"`
	// Policy: the verdict is that of the chain's policy.
	Policy bool `json:"policy"`
	// Rules are the rules that matched, also of chains that were called.
	Rules []Rule `json:"rules"`
}

// Rule is a rule that matched.
type Rule struct {
	Chain   string `json:"chain"`
	Handle  uint64 `json:"handle"`
	Verdict string `json:"verdict"`
	// Text is the rule as nft writes it. It is set for the rule that drops a packet, if
	// the program nft is installed.
	Text string `json:"text,omitempty"`
}

// IsIdle reports whether the step is about a chain of allocnet in which no rule matched.
func (s *Step) IsIdle() bool {
	return s.State == OK && s.Chain != nil && s.Chain.Policy && names.IsOwnTable(s.Chain.Table)
}

// request returns the step about the chains of hooks of the host that the probe passed.
func (f *tracer) request(hooks ...string) func(context.Context) error {
	return func(ctx context.Context) error { return f.chains(ctx, "", f.result.Host, probe.Request, hooks...) }
}

// requestInside is the step about the chains in the network namespace of the allocation.
func (f *tracer) requestInside(ctx context.Context) error {
	return f.chains(ctx, "inside ", f.result.Inside, probe.Request)
}

// answerInside is the step about the chains that the answer passed there.
func (f *tracer) answerInside(ctx context.Context) error {
	return f.chains(ctx, "inside ", f.result.Inside, probe.Answer)
}

// answerOnHost is the step about the chains that the answer passed on the host.
func (f *tracer) answerOnHost(ctx context.Context) error {
	return f.chains(ctx, "answer ", f.result.Host, probe.Answer)
}

// chains adds the chains that a packet passed at some hooks, or at all. The path ends at a
// chain that drops it.
func (f *tracer) chains(ctx context.Context, prefix string, passes []probe.Pass, kind probe.Kind, hooks ...string) error {
	for i := range passes {
		p := &passes[i]
		if p.Own || p.Kind != kind || len(hooks) > 0 && !slices.Contains(hooks, p.Hook) {
			continue
		}
		c := chainOf(p)
		f.add(prefix+p.Hook, OK, "", "%s", c)
		step := &f.path.Steps[len(f.path.Steps)-1]
		step.Chain = c
		if p.Verdict == "accept" {
			continue
		}
		step.State = Failed
		if c.Table == names.PolicyTable && prefix != "inside " {
			step.Found, step.Next = f.denied(ctx, c)
			return errEnds
		}
		step.Next = f.remedy(ctx, c, prefix == "inside ")
		return errEnds
	}
	return nil
}

func chainOf(p *probe.Pass) *Chain {
	c := &Chain{Family: p.Family, Table: p.Table, Name: p.Chain, Verdict: p.Verdict, Policy: p.Policy, Rules: []Rule{}}
	names := []string{p.Chain}
	for _, r := range p.Rules {
		c.Rules = append(c.Rules, Rule{Chain: r.Chain, Handle: r.Handle, Verdict: r.Verdict})
		names = append(names, r.Chain)
	}
	c.Tool = toolOf(p.Family, p.Table, names...)
	return c
}

// decider returns the rule that decided; nil if it was the policy.
func (c *Chain) decider() *Rule {
	if c.Policy || len(c.Rules) == 0 {
		return nil
	}
	return &c.Rules[len(c.Rules)-1]
}

// String returns the chain with its verdict, as text.
func (c *Chain) String() string {
	at := fmt.Sprintf("%s %s %s", c.Family, c.Table, c.Name)
	if c.Tool != "" && c.Tool != c.Table {
		at += " (" + c.Tool + ")"
	}
	text := at + ": " + c.Verdict
	switch r := c.decider(); {
	case r == nil:
		return text + " by its policy"
	case r.Chain == c.Name:
		return text + fmt.Sprintf(" by rule %d", r.Handle)
	default:
		return text + fmt.Sprintf(" by rule %d of %s", r.Handle, r.Chain)
	}
}

// remedy says what to do about a chain that does not accept the packet, and adds the text
// of the rule.
func (f *tracer) remedy(ctx context.Context, c *Chain, inside bool) string {
	where := ""
	if inside {
		where = "in the namespace of the allocation: "
	}
	r := c.decider()
	if c.Tool == own && !inside {
		why := "the firewall plugin of a network isolates its allocations (ingressPolicy)"
		switch c.Table {
		case names.Table:
		case names.PolicedTable:
			why = "another program has removed rules of a network policy, which allocnet repair restores"
		default:
			why = "127.0.0.0/8 is the host's own"
		}
		return fmt.Sprintf("the rule is allocnet's: %s; %s", why, c.listing(c.Name))
	}
	if r == nil {
		return where + "accept the packets with a rule of the chain: " + c.listing(c.Name)
	}
	if !inside {
		r.Text = ruleText(ctx, c, r)
	}
	if r.Text != "" {
		return fmt.Sprintf("change the rule %q, or accept the packets before it: %s", r.Text, c.listing(r.Chain))
	}
	return where + fmt.Sprintf("change the rule with handle %d: %s", r.Handle, c.listing(r.Chain))
}

// plainName matches the names that can be given to nft, through a shell as well. In its
// network namespace a workload can choose any.
var plainName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)

// shellWord returns a name as a word for a shell.
func shellWord(name string) string {
	if plainName.MatchString(name) {
		return name
	}
	return "'" + strings.ReplaceAll(name, "'", `'\''`) + "'"
}

// listing is the command that shows a chain of the table.
func (c *Chain) listing(chain string) string {
	if !plainName.MatchString(c.Table) || !plainName.MatchString(chain) {
		return "nft -a list ruleset"
	}
	return fmt.Sprintf("nft -a list chain %s %s %s", c.Family, c.Table, chain)
}

// ruleText returns a rule as nft writes it; "" if nft cannot be run, or cannot be given the
// names.
func ruleText(ctx context.Context, c *Chain, r *Rule) string {
	if !plainName.MatchString(c.Table) || !plainName.MatchString(r.Chain) {
		return ""
	}
	out, err := exec.CommandContext(ctx, "nft", "-a", "list", "chain", c.Family, c.Table, r.Chain).Output()
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(out)) {
		text, handle, _ := strings.Cut(line, " # handle ")
		if strings.TrimSpace(handle) == fmt.Sprint(r.Handle) {
			return strings.TrimSpace(text)
		}
	}
	return ""
}
