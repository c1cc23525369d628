package object

import (
	"context"
	"fmt"
	"strings"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// BridgePort is that a link is a port of a bridge. A port that is isolated, or in hairpin mode, although it is not to be, may be
// wanted by the administrator.
type BridgePort struct {
	Link, Bridge      string
	Hairpin, Isolated bool
	// Guarded: it is in a group for which the source guard of bridges has rules, and all of its frames pass these.
	Guarded bool
	// Tagged: it has VLANs, without which it is neither attached again nor brought up.
	Tagged bool
}

// Compare implements Object.
func (p *BridgePort) Compare(_ context.Context, v *View) (list []Difference, err error) {
	have, err := v.link(p.Link)
	if err != nil || have == nil {
		return nil, err
	}
	bridge, ok, err := v.present(p.Bridge)
	if err != nil || !ok {
		return nil, err
	}
	index := have.Index
	differs := func(put func(*rtnl.Batch), format string, args ...any) {
		list = append(list, Difference{Finding: fmt.Errorf(format, args...), Put: put})
	}
	attached := have.Master == bridge
	if !attached {
		put := func(b *rtnl.Batch) { b.AttachPort(index, bridge, p.Hairpin, p.Isolated) }
		if p.Tagged {
			put = nil
		}
		differs(put, "interface %q is not a port of the bridge", p.Link)
	}
	if p.Guarded {
		list = append(list, p.compareGuard(have, attached)...)
	}
	if attached {
		settings, err := p.compareSettings(v, have)
		return append(list, settings...), err
	}
	return list, nil
}

func (p *BridgePort) compareGuard(have *rtnl.LinkState, attached bool) (list []Difference) {
	differs := func(put func(*rtnl.Batch), format string, args ...any) {
		list = append(list, Difference{Finding: fmt.Errorf(format, args...), Put: put})
	}
	guard := func(b *rtnl.Batch) { b.SetGroup(have.Index, names.GuardedPortGroup) }
	switch {
	case have.Group == names.ReleasedPortGroup:
		differs(guard, "the source guard of port %q has ended, because another program removed its rules: frames from the container may have any source until the attachment is removed and added again, as by a restart of the container", p.Link)
	case !names.IsGuardedPort(have.Group):
		differs(guard, "port %q is in group %d instead of %d, so frames from the container may have any source", p.Link, have.Group, names.GuardedPortGroup)
	}
	if !have.Hooked || !attached {
		differs(func(b *rtnl.Batch) { b.HookPort(have.Index) },
			"port %q does not have the group_fwd_mask of the source guard, so frames to some multicast addresses may have any source", p.Link)
	}
	return list
}

// compareSettings tells of settings with which frames do not pass, or go astray. The state of a port of a bridge with STP is
// that of STP.
func (p *BridgePort) compareSettings(v *View, have *rtnl.LinkState) (list []Difference, err error) {
	wrong := ""
	switch {
	case have.Disabled:
		wrong = "is disabled in the bridge"
	case p.Hairpin && !have.Hairpin:
		wrong = "is not in hairpin mode"
	case p.Isolated && !have.Isolated:
		wrong = "is not isolated"
	case len(have.Unusual) > 0:
		wrong = "has " + strings.Join(have.Unusual, ", ")
	default:
		return nil, nil
	}
	restored := *have
	if have.Disabled {
		delay, err := v.Kernel.ForwardDelay(p.Bridge)
		if err != nil {
			return nil, err
		}
		restored.Disabled = delay == 0
	}
	d := Difference{Finding: fmt.Errorf("port %q of bridge %q %s", p.Link, p.Bridge, wrong)}
	if restored.Disabled || p.Hairpin && !have.Hairpin || p.Isolated && !have.Isolated || len(have.Unusual) > 0 {
		d.Put = func(b *rtnl.Batch) { b.RestorePort(&restored, p.Hairpin, p.Isolated) }
	}
	return []Difference{d}, nil
}
