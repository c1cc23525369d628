package configurator

import (
	"fmt"
	"strings"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// requirePrivileges returns ErrUnprivileged if the process lacks the capabilities for
// ADD and for the DEL of the roll-back.
func (c *Configurator) requirePrivileges() error {
	missing, err := rtnl.MissingPrivileges()
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: this process lacks %s: run it as root, or grant it these capabilities",
			ErrUnprivileged, strings.Join(missing, " and "))
	}
	if c.ownsHost.Load() {
		return nil
	}
	owns, err := rtnl.OwnsHost()
	if err == nil && !owns {
		err = fmt.Errorf("%w: CAP_NET_ADMIN is not effective in the network namespace of the host, which belongs to another "+
			"user namespace: run it there, or in a network namespace of its own", ErrUnprivileged)
	}
	c.ownsHost.Store(owns)
	return err
}
