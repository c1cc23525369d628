package iptables

import (
	"errors"
	"fmt"
	"os/exec"
)

// AdminChain is the admin chain of networks that leave it to allocnet to accept
// packets to published ports, in the filter table of both families. The reference
// firewall plugin accepts what comes from an allocation and the answers to it, and
// leaves everything else to its admin chain. It makes the chain as well, and jumps
// to it before its own rules.
const AdminChain = "ALLOCNET-ADMIN"

// AllowPublished accepts connections that were redirected to a bridge, and only
// those, in both families: on a host whose FORWARD policy drops they would not pass.
// It is idempotent, and one rule serves all allocations.
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

// eachFamily acts on both families. Where a program is not installed there is
// nothing to accept: the firewall plugin reports that itself, and no other program
// made the policy.
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
