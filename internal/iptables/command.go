package iptables

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"
)

// Command is a family's iptables, for rules with the layout of the reference plugins. When
// the context of a call ends, the program is killed. A Command is safe for concurrent use.
type Command struct {
	// Name is the name of the program.
	Name string

	path string
}

// Open finds a family's iptables in PATH. errors.Is finds exec.ErrNotFound if it is not
// installed.
func Open(f Family) (*Command, error) {
	p, err := installed(f.Program())
	if err != nil {
		return nil, err
	}
	return &Command{Name: f.Program(), path: p.path}, nil
}

// failure is the error of an iptables that ended with a status.
type failure struct {
	error
	status    int
	complaint string
}

func (f *failure) Unwrap() error { return f.error }

// The statuses of iptables.
const (
	statusRefused         = 1 // also that a chain or a rule does not exist
	statusResourceProblem = 4
)

// missing are complaints that a chain, a rule, a set or a table does not exist.
var missing = []string{
	"does a matching rule exist in that chain?", "No chain/target/match by that name", "No such file or directory", "does not exist",
}

// IsMissing reports whether iptables failed because a rule, or a chain, set or table in
// it, does not exist.
func IsMissing(err error) bool {
	var f *failure
	return errors.As(err, &f) && f.isMissing()
}

func (f *failure) isMissing() bool {
	return slices.ContainsFunc(missing, func(text string) bool { return strings.Contains(f.complaint, text) })
}

// IsBusy reports whether iptables failed because another program holds a resource.
func IsBusy(err error) bool {
	var f *failure
	return errors.As(err, &f) && !f.isMissing() && f.status == statusResourceProblem
}

// run runs iptables on a table.
func (c *Command) run(ctx context.Context, table string, args ...string) (string, error) {
	output, complaint, err := run(ctx, "", c.path, slices.Concat([]string{"-t", table}, args, []string{waitOption})...)
	if err == nil {
		return output, nil
	}
	err = advised(err, complaint)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		err = &failure{error: err, status: exit.ExitCode(), complaint: complaint}
	}
	return "", err
}

// holds runs iptables with a question, which it answers with its status.
func (c *Command) holds(ctx context.Context, table string, args ...string) (bool, error) {
	_, err := c.run(ctx, table, args...)
	var f *failure
	if errors.As(err, &f) && f.status == statusRefused {
		return false, nil
	}
	return err == nil, err
}

// List returns the chains and rules of a table, or of one chain, as iptables -S prints them.
func (c *Command) List(ctx context.Context, table string, chain ...string) ([]string, error) {
	output, err := c.run(ctx, table, append([]string{"-S"}, chain...)...)
	if err != nil {
		return nil, err
	}
	if output == "" {
		return nil, nil
	}
	return strings.Split(strings.TrimSuffix(output, "\n"), "\n"), nil
}

// ListChains returns the names of the chains of a table. iptables lists them before the
// rules.
func (c *Command) ListChains(ctx context.Context, table string) ([]string, error) {
	lines, err := c.List(ctx, table)
	var chains []string
	for _, line := range lines {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "-P" && fields[0] != "-N" {
			break
		}
		chains = append(chains, fields[1])
	}
	return chains, err
}

// Exists reports whether a chain has a rule.
func (c *Command) Exists(ctx context.Context, table, chain string, spec ...string) (bool, error) {
	return c.holds(ctx, table, append([]string{"-C", chain}, spec...)...)
}

// ChainExists reports whether a table has a chain. It asks for the first rule alone, which
// need not exist.
func (c *Command) ChainExists(ctx context.Context, table, chain string) (bool, error) {
	return c.holds(ctx, table, "-S", chain, "1")
}

// Prepend adds a rule before the other rules of a chain.
func (c *Command) Prepend(ctx context.Context, table, chain string, spec ...string) error {
	_, err := c.run(ctx, table, append([]string{"-I", chain, "1"}, spec...)...)
	return err
}

// Append adds a rule after the other rules of a chain.
func (c *Command) Append(ctx context.Context, table, chain string, spec ...string) error {
	_, err := c.run(ctx, table, append([]string{"-A", chain}, spec...)...)
	return err
}

// AppendUnique is Append, unless the chain has the rule.
func (c *Command) AppendUnique(ctx context.Context, table, chain string, spec ...string) error {
	if found, err := c.Exists(ctx, table, chain, spec...); err != nil || found {
		return err
	}
	return c.Append(ctx, table, chain, spec...)
}

// Delete deletes a rule. IsMissing reports whether the error means that there is none.
func (c *Command) Delete(ctx context.Context, table, chain string, spec ...string) error {
	_, err := c.run(ctx, table, append([]string{"-D", chain}, spec...)...)
	return err
}

// NewChain makes a chain, which must not exist.
func (c *Command) NewChain(ctx context.Context, table, chain string) error {
	_, err := c.run(ctx, table, "-N", chain)
	return err
}

// EnsureChain makes a chain, unless it exists or another process makes it in the
// meantime.
func (c *Command) EnsureChain(ctx context.Context, table, chain string) error {
	found, err := c.ChainExists(ctx, table, chain)
	if err != nil || found {
		return err
	}
	if err := c.NewChain(ctx, table, chain); err != nil {
		if found, foundErr := c.ChainExists(ctx, table, chain); foundErr == nil && found {
			return nil
		}
		return err
	}
	return nil
}

// ClearAndDeleteChain deletes a chain with its rules, if it exists. No other rule may lead
// to it.
func (c *Command) ClearAndDeleteChain(ctx context.Context, table, chain string) error {
	found, err := c.ChainExists(ctx, table, chain)
	if err != nil || !found {
		return err
	}
	if _, err = c.run(ctx, table, "-F", chain); err == nil {
		_, err = c.run(ctx, table, "-X", chain)
	}
	return err
}
