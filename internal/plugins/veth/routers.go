package veth

import (
	"errors"
	"fmt"
	"os"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// The source guard drops router advertisements. Without it, the host would take its default route and an
// address from those of a container, so a sysctl of the host's end makes the kernel ignore them, as with
// the reference plugins. A port of a bridge receives them, too, in frames to the multicast MACs that
// bridges do not forward.

func acceptRA(link string) string { return "net/ipv6/conf/" + link + "/accept_ra" }

// CheckRouters returns an error if the kernel accepts router advertisements that arrive over a link of
// the host. Without IPv6, as with an MTU below 1280, a link has no such sysctl and receives none.
func CheckRouters(link string) error {
	ignores, err := ignoresRouters(link)
	if err == nil && !ignores {
		err = fmt.Errorf("interface %q of the host accepts router advertisements from the container: net.ipv6.conf.%s.accept_ra is not 0", link, link)
	}
	return err
}

// IgnoreRouters makes the kernel ignore router advertisements that arrive over a link of the host.
func IgnoreRouters(link string) (changed bool, err error) {
	ignores, err := ignoresRouters(link)
	if err != nil || ignores {
		return false, err
	}
	return true, rtnl.SetSysctl(acceptRA(link), "0")
}

func ignoresRouters(link string) (bool, error) {
	value, err := rtnl.Sysctl(acceptRA(link))
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	return value == "0", err
}

// BringUp brings up the host's end of a veth that was created down, and that ignores routers before.
func BringUp(host *rtnl.Host, v *rtnl.Veth) error {
	if _, err := IgnoreRouters(v.Name); err != nil {
		return err
	}
	var up rtnl.Batch
	up.BringUp(v.Index)
	return host.Apply(&up)
}

// With addresses of IPAM, the container's end takes none from router advertisements, nor a default route: the source guard
// drops what it would send from them, so that connections to names with IPv6 addresses would hang.

// IgnoreRoutersInside makes the kernel ignore router advertisements that arrive over the container's end.
func IgnoreRoutersInside(s *rtnl.Sandbox, name string) error {
	return s.Do(func() error {
		err := rtnl.SetSysctl(acceptRA(name), "0")
		if errors.Is(err, os.ErrNotExist) { // without IPv6
			return nil
		}
		return err
	})
}

// CheckRoutersInside returns an error if the kernel accepts router advertisements that arrive over the container's end.
func CheckRoutersInside(s *rtnl.Sandbox, name string) error {
	ignores := false
	if err := s.Do(func() (err error) { ignores, err = ignoresRouters(name); return err }); err != nil || ignores {
		return err
	}
	return fmt.Errorf("interface %q accepts router advertisements, and the source guard drops what it sends from their addresses: net.ipv6.conf.%s.accept_ra is not 0", name, name)
}

// accepting are the sysctls of an interface that takes addresses from router advertisements: the kernel derives
// them from the MAC, as the source guard expects, and makes no temporary ones.
var accepting = []struct{ name, value string }{
	{"disable_ipv6", "0"}, {"accept_ra", "2"}, {"autoconf", "1"}, {"addr_gen_mode", "0"}, {"use_tempaddr", "0"},
}

// AcceptRoutersInside makes the kernel accept router advertisements that arrive over the container's end, and derive
// addresses from the MAC.
func AcceptRoutersInside(s *rtnl.Sandbox, name string) error {
	return s.Do(func() error {
		for _, sysctl := range accepting {
			if err := rtnl.SetSysctl("net/ipv6/conf/"+name+"/"+sysctl.name, sysctl.value); err != nil {
				return fmt.Errorf("accept router advertisements: %w", err)
			}
		}
		return nil
	})
}

// CheckAcceptedRouters returns an error if something that AcceptRoutersInside sets has another value.
func CheckAcceptedRouters(s *rtnl.Sandbox, name string) error {
	return s.Do(func() error {
		for _, sysctl := range accepting {
			value, err := rtnl.Sysctl("net/ipv6/conf/" + name + "/" + sysctl.name)
			if err != nil {
				return err
			}
			if value != sysctl.value {
				return fmt.Errorf("interface %q takes no addresses from router advertisements as acceptRA has it: net.ipv6.conf.%s.%s is %s instead of %s", name, name, sysctl.name, value, sysctl.value)
			}
		}
		return nil
	})
}
