package bridge

import (
	"errors"
	"fmt"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/plugins/veth"
)

// checkSettings returns an error if another program has changed a port so that frames do not pass as the
// configuration says. A port that passes more or less than that, as an isolated one, may be wanted.
func (b *bridge) checkSettings(port rtnl.Port) error {
	switch {
	case port.Disabled:
		return errors.New("is disabled in the bridge")
	case b.HairpinMode && !port.Hairpin:
		return errors.New("is not in hairpin mode")
	case b.PortIsolation && !port.Isolated:
		return errors.New("is not isolated")
	}
	return nil
}

// restorePort makes the host's end of the veth a guarded port again, or one that ignores routers,
// attaches it to the bridge, restores its settings, and brings it up. It does not attach a port with VLANs, nor
// brings it up. The state of a port of a bridge with STP is left alone.
func (b *bridge) restorePort(c *sdk.CmdArgs) (changed bool, err error) {
	host, name := c.Host.Kernel, c.Owner(b.Name).Veth()
	port, err := host.Port(name)
	if err != nil {
		return false, err
	}
	br, err := host.Index(b.Bridge)
	if err != nil {
		return false, err
	}
	var changes rtnl.Batch
	attach := port.Master != br && !b.tags()
	if attach {
		changes.AttachPort(port.Index, br, b.HairpinMode, b.PortIsolation)
	}
	closed := false
	if !b.guardsSources() {
		if closed, err = veth.IgnoreRouters(name); err != nil {
			return false, fmt.Errorf("port %q of bridge %q: %w", name, b.Bridge, err)
		}
	}
	changed = b.guardPort(&changes, port, attach) || attach
	if port.Disabled {
		delay, err := host.ForwardDelay(b.Bridge)
		if err != nil {
			return false, err
		}
		port.Disabled = delay == 0
	}
	if port.Master == br && b.checkSettings(port) != nil {
		changed = true
		changes.RestorePort(port, b.HairpinMode, b.PortIsolation)
	}
	if !port.Up && !b.tags() {
		changed = true
		changes.BringUp(port.Index)
	}
	if !changed {
		return closed, nil
	}
	if err := host.Apply(&changes); err != nil {
		return closed, fmt.Errorf("port %q of bridge %q: %w", name, b.Bridge, err)
	}
	return true, nil
}
