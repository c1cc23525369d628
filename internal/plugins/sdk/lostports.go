package sdk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
)

// maxNamedPorts bounds the attachments that a warning names.
const maxNamedPorts = 16

// releaseLostPorts takes the bridge ports of plugin binaries that have lost their elements out of the
// source guard, which would drop all their frames. Only the next ADD of the attachment can
// restore the elements.
//
// ADD adds the elements before it makes the port, so a port without elements has lost them. An ADD that finds
// them lost at its end moves its port to another group, adds them again, and restores the group. An ADD can do
// so while ports are released: so they are compared again afterwards.
func releaseLostPorts(ctx context.Context, kernel *rtnl.Host, rules *ruleset.Ruleset, log Logger) error {
	ports, err := kernel.LinksOfGroup(names.DropInPortGroup)
	if err != nil || len(ports) == 0 {
		return err
	}
	complete, err := rules.PortsWithMAC(ctx)
	if err != nil {
		return err
	}
	lost := slices.DeleteFunc(ports, func(l rtnl.GroupedLink) bool { return complete[l.Name] })
	if len(lost) == 0 {
		return nil
	}
	err = moveLinks(kernel, lost, names.ReleasedPortGroup)
	complete, listErr := rules.PortsWithMAC(ctx)
	if listErr != nil {
		return errors.Join(err, listErr)
	}
	var restored, released []rtnl.GroupedLink
	for _, l := range lost {
		if complete[l.Name] {
			restored = append(restored, l)
		} else {
			released = append(released, l)
		}
	}
	if len(released) > 0 {
		log.Warn("another program removed the rules of the source guard: containers of plugin binaries keep their connectivity, but may send from any address until they are restarted",
			"attachments", len(released), "ports", describe(released))
	}
	return errors.Join(err, moveLinks(kernel, restored, names.DropInPortGroup))
}

// moveLinks puts links into a group. Those that do not exist any more are ignored.
func moveLinks(kernel *rtnl.Host, links []rtnl.GroupedLink, group uint32) error {
	var errs []error
	for _, l := range links {
		var b rtnl.Batch
		b.SetGroup(l.Index, group)
		if err := kernel.Apply(&b); err != nil && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("bridge port %q: %w", l.Name, err))
		}
	}
	return errors.Join(errs...)
}

func describe(links []rtnl.GroupedLink) string {
	texts := make([]string, min(len(links), maxNamedPorts))
	for i := range texts {
		texts[i] = links[i].Name + " of " + links[i].Alias
	}
	return strings.Join(texts, ", ")
}
