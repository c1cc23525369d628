package doctor

import (
	"context"
	"fmt"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
)

// lostGuards reports bridge ports of plugin binaries without a source guard, because another program removed
// its rules.
func lostGuards(ctx context.Context) (findings []Finding, err error) {
	kernel := rtnl.OpenHost()
	defer kernel.Close()
	lost, err := kernel.LinksOfGroup(names.ReleasedPortGroup)
	if err != nil {
		return nil, err
	}
	guarded, err := kernel.LinksOfGroup(names.DropInPortGroup)
	if err != nil {
		return nil, err
	}
	if len(guarded) > 0 {
		var complete map[string]bool
		if err := ruleset.Lend(func(r *ruleset.Ruleset) (err error) {
			complete, err = r.PortsWithMAC(ctx)
			return err
		}); err != nil {
			return nil, err
		}
		for _, l := range guarded {
			if !complete[l.Name] {
				lost = append(lost, l)
			}
		}
	}
	for _, l := range lost {
		container := l.Alias
		if owner, ok := names.ParseOwner(l.Alias); ok {
			container = fmt.Sprintf("container %q (network %q)", owner.ID, owner.Network)
		}
		findings = append(findings, find("guard-lost", l.Name, fmt.Sprintf("bridge port %s of %s has lost its rules: another program has flushed them", l.Name, container),
			"restart the container (its runtime calls DEL and ADD), and configure that program to flush its own tables only"))
	}
	return findings, nil
}
