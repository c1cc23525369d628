package object

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// IgnoresRouters is that the kernel ignores router advertisements that arrive over a link. On the host, those of a container
// would give it a default route and an address; a port of a bridge receives them, too, in frames to the multicast MACs that
// bridges do not forward. In a container with addresses of IPAM, the source guard drops what it would send from the addresses
// of a router, so that connections to names with IPv6 addresses would hang. Without IPv6, as with an MTU below 1280, a link
// receives none.
type IgnoresRouters struct{ Link string }

func acceptRA(link string) string { return "net/ipv6/conf/" + link + "/accept_ra" }

// Compare implements Object.
func (i *IgnoresRouters) Compare(_ context.Context, v *View) (list []Difference, err error) {
	ignore := func() error {
		err := rtnl.SetSysctl(acceptRA(i.Link), "0")
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	if v.made {
		return []Difference{{Do: ignore}}, nil
	}
	err = v.netns.Do(func() error {
		value, err := rtnl.Sysctl(acceptRA(i.Link))
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err == nil && value != "0" {
			list = []Difference{{Finding: i.accepts(v), Do: ignore}}
		}
		return err
	})
	return list, err
}

func (i *IgnoresRouters) accepts(v *View) error {
	if v.Kernel == nil {
		return fmt.Errorf("interface %q accepts router advertisements, and the source guard drops what it sends from their addresses: net.ipv6.conf.%s.accept_ra is not 0", i.Link, i.Link)
	}
	return fmt.Errorf("interface %q of the host accepts router advertisements from the container: net.ipv6.conf.%s.accept_ra is not 0", i.Link, i.Link)
}

// AcceptsRouters is that an interface takes addresses from router advertisements, and derives them from its MAC, as the source
// guard expects.
type AcceptsRouters struct{ Link string }

// accepting are the sysctls of such an interface. It makes no temporary addresses.
var accepting = []Sysctl{
	{"disable_ipv6", "0"}, {"accept_ra", "2"}, {"autoconf", "1"}, {"addr_gen_mode", "0"}, {"use_tempaddr", "0"},
}

// Compare implements Object.
func (a *AcceptsRouters) Compare(_ context.Context, v *View) (list []Difference, err error) {
	conf := "net/ipv6/conf/" + a.Link + "/"
	for _, sysctl := range accepting {
		set := func() error {
			if err := rtnl.SetSysctl(conf+sysctl.Name, sysctl.Value); err != nil {
				return fmt.Errorf("accept router advertisements: %w", err)
			}
			return nil
		}
		if v.made {
			list = append(list, Difference{Do: set})
			continue
		}
		value := ""
		err := v.netns.Do(func() (err error) {
			value, err = rtnl.Sysctl(conf + sysctl.Name)
			return err
		})
		if err != nil {
			return nil, err
		}
		if value != sysctl.Value {
			list = append(list, Difference{
				Finding: fmt.Errorf("interface %q takes no addresses from router advertisements as acceptRA has it: net.ipv6.conf.%s.%s is %s instead of %s",
					a.Link, a.Link, sysctl.Name, value, sysctl.Value),
				Do: set,
			})
		}
	}
	return list, nil
}
