package iptables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
)

// AdminChain is the admin chain, in the filter table of both families, of networks for
// which allocnet accepts packets to published ports. The reference firewall plugin
// accepts packets from an allocation and the answers to them, and leaves all others to
// its admin chain. The plugin also makes the chain, and jumps to it before its own
// rules.
const AdminChain = "ALLOCNET-ADMIN"

// Destination selects the packets to the allocations of a network. One of its fields
// is set.
type Destination struct {
	Bridge string       // packets that leave the host through this bridge, of both families
	Subnet netip.Prefix // packets to these addresses
}

// String returns the bridge or the subnet, as text for errors.
func (d Destination) String() string {
	if d.Bridge != "" {
		return fmt.Sprintf("bridge %q", d.Bridge)
	}
	return "subnet " + d.Subnet.String()
}

// families returns the families of the packets.
func (d Destination) families() []Family {
	switch {
	case d.Bridge != "":
		return []Family{IPv4, IPv6}
	case d.Subnet.Addr().Is4():
		return []Family{IPv4}
	}
	return []Family{IPv6}
}

// published returns the rule that accepts redirected connections.
func (d Destination) published() []string {
	match := []string{"-o", d.Bridge}
	if d.Bridge == "" {
		match = []string{"-d", d.Subnet.String()}
	}
	return append(match, "-m", "conntrack", "--ctstate", "DNAT", "-j", "ACCEPT")
}

// AllowPublished accepts redirected connections to a destination, and only those. On a
// host whose FORWARD policy is to drop, they would not pass otherwise. AllowPublished
// is idempotent, and one rule serves all allocations of the destination.
func AllowPublished(ctx context.Context, d Destination) error {
	return d.eachFamily(func(c *Command) error {
		found, err := c.Exists(ctx, filterTable, AdminChain, d.published()...)
		if err == nil && found {
			return nil
		}
		if err := c.EnsureChain(ctx, filterTable, AdminChain); err != nil {
			return fmt.Errorf("%s: make chain %s: %w", c.Name, AdminChain, err)
		}
		if err := c.AppendUnique(ctx, filterTable, AdminChain, d.published()...); err != nil {
			return fmt.Errorf("%s: accept connections to published ports of %s: %w", c.Name, d, err)
		}
		return nil
	})
}

// CheckPublished returns ErrMissing if a rule that AllowPublished makes is missing.
func CheckPublished(ctx context.Context, d Destination) error {
	return d.eachFamily(func(c *Command) error {
		found, err := c.Exists(ctx, filterTable, AdminChain, d.published()...)
		switch {
		case err != nil:
			return fmt.Errorf("%s chain %s: look for published ports of %s: %w", c.Name, AdminChain, d, err)
		case !found:
			return fmt.Errorf("%s chain %s: published ports of %s: %w", c.Name, AdminChain, d, ErrMissing)
		}
		return nil
	})
}

// eachFamily calls act for the destination's families. If a program is not installed, nothing has to
// be accepted: the firewall plugin reports the missing program itself, and the policy
// was not made by another program.
func (d Destination) eachFamily(act func(*Command) error) error {
	var errs []error
	for _, f := range d.families() {
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
