// Package forward lets connections to published ports pass a host whose FORWARD
// policy drops, as on hosts with Docker or a hardened firewall. The reference
// firewall plugin accepts what comes from an allocation and the answers to it,
// and leaves everything else to its admin chain; this is that chain's content
// for the networks that name Chain as theirs.
package forward

import (
	"errors"
	"fmt"
	"os/exec"
	"sync"

	"github.com/coreos/go-iptables/iptables"
)

// Chain is the admin chain, in the filter table of both families. The firewall
// plugin creates it, too, and jumps to it before its own rules.
const Chain = "ALLOCNET-ADMIN"

// ErrShut: the rule of a bridge is missing.
var ErrShut = errors.New("published ports are not let through")

const table = "filter"

// Open lets connections that were redirected to a bridge, and only those, pass
// in both families. It is idempotent, and made once for all allocations.
func Open(bridge string) error {
	return each(func(name string, ipt *iptables.IPTables) error {
		found, err := ipt.Exists(table, Chain, rule(bridge)...)
		if err == nil && found {
			return nil
		}
		if err := makeChain(ipt); err != nil {
			return fmt.Errorf("%s: make chain %s: %w", name, Chain, err)
		}
		if err := ipt.AppendUnique(table, Chain, rule(bridge)...); err != nil {
			return fmt.Errorf("%s: let published ports through to bridge %q: %w", name, bridge, err)
		}
		return nil
	})
}

// Check looks whether Open is still in force: ErrShut if not.
func Check(bridge string) error {
	return each(func(name string, ipt *iptables.IPTables) error {
		found, err := ipt.Exists(table, Chain, rule(bridge)...)
		if err != nil || !found {
			return errors.Join(fmt.Errorf("%s chain %s: bridge %q: %w", name, Chain, bridge, ErrShut), err)
		}
		return nil
	})
}

func rule(bridge string) []string {
	return []string{"-o", bridge, "-m", "conntrack", "--ctstate", "DNAT", "-j", "ACCEPT"}
}

// makeChain makes the chain, unless it is there or appears meanwhile.
func makeChain(ipt *iptables.IPTables) error {
	found, err := ipt.ChainExists(table, Chain)
	if err != nil || found {
		return err
	}
	if err := ipt.NewChain(table, Chain); err != nil {
		if found, foundErr := ipt.ChainExists(table, Chain); foundErr == nil && found {
			return nil
		}
		return err
	}
	return nil
}

// each acts on both families. Where a program is not installed there is nothing
// to open: the firewall plugin says so itself, and nobody else made the policy.
func each(act func(name string, ipt *iptables.IPTables) error) error {
	var errs []error
	for name, family := range families {
		if _, err := exec.LookPath(name); err != nil {
			continue
		}
		ipt, err := open(name, family)
		if err == nil {
			err = act(name, ipt)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// families are the programs and what they stand for.
var families = map[string]iptables.Protocol{"iptables": iptables.ProtocolIPv4, "ip6tables": iptables.ProtocolIPv6}

// opened keeps what was opened: go-iptables asks for the version every time.
var opened sync.Map

func open(name string, family iptables.Protocol) (*iptables.IPTables, error) {
	if ipt, ok := opened.Load(name); ok {
		return ipt.(*iptables.IPTables), nil
	}
	ipt, err := iptables.New(iptables.IPFamily(family))
	if err == nil {
		opened.Store(name, ipt)
	}
	return ipt, err
}
