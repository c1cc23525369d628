package iptables

import (
	"errors"
	"fmt"
	"os/exec"
)

// AdminChain is the admin chain, in the filter table of both families, of networks for
// which allocnet accepts packets to published ports. The reference firewall plugin
// accepts packets from an allocation and the answers to them, and leaves all others to
// its admin chain. The plugin also makes the chain, and jumps to it before its own
// rules.
const AdminChain = "ALLOCNET-ADMIN"

// AllowPublished accepts redirected connections to a bridge, and only those, in both
// families. On a host whose FORWARD policy is to drop, they would not pass otherwise.
// AllowPublished is idempotent, and one rule serves all allocations.
func AllowPublished(bridge string) error {
	return eachFamily(func(c *Command) error {
		found, err := c.Exists(filterTable, AdminChain, publishedRule(bridge)...)
		if err == nil && found {
			return nil
		}
		if err := c.EnsureChain(filterTable, AdminChain); err != nil {
			return fmt.Errorf("%s: make chain %s: %w", c.Name, AdminChain, err)
		}
		if err := c.AppendUnique(filterTable, AdminChain, publishedRule(bridge)...); err != nil {
			return fmt.Errorf("%s: accept connections to published ports of bridge %q: %w", c.Name, bridge, err)
		}
		return nil
	})
}

// CheckPublished returns ErrMissing if a rule that AllowPublished makes is missing.
func CheckPublished(bridge string) error {
	return eachFamily(func(c *Command) error {
		found, err := c.Exists(filterTable, AdminChain, publishedRule(bridge)...)
		if err != nil || !found {
			return errors.Join(fmt.Errorf("%s chain %s: published ports of bridge %q: %w", c.Name, AdminChain, bridge, ErrMissing), err)
		}
		return nil
	})
}

func publishedRule(bridge string) []string {
	return []string{"-o", bridge, "-m", "conntrack", "--ctstate", "DNAT", "-j", "ACCEPT"}
}

// eachFamily calls act for both families. If a program is not installed, nothing has to
// be accepted: the firewall plugin reports the missing program itself, and the policy
// was not made by another program.
func eachFamily(act func(*Command) error) error {
	var errs []error
	for _, f := range []Family{IPv4, IPv6} {
		c, err := Open(f)
		if errors.Is(err, exec.ErrNotFound) {
			continue
		}
		if err == nil {
			err = act(c)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
