package object

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// Address is an address of a link.
type Address struct {
	*net.IPNet
	Flags int // as rtnl.NoDAD
	// Shared: other links of the host have it, too: see rtnl.Batch.AddSharedAddress.
	Shared bool
	// AnyPrefix: another prefix length is right, too, as that of the address that the kernel gives a link.
	AnyPrefix bool
	// Beside: CHECK does not mind another prefix length, and the wanted address is added beside one with that.
	Beside bool
}

// Addresses are addresses of a link.
type Addresses struct {
	Link string
	List []Address
	// IPv6 are sysctls that are set before the link gets an IPv6 address. Their names are paths below /proc/sys.
	IPv6 []Sysctl
	// Detect waits until the kernel has found no duplicates of the addresses.
	Detect bool
	// Added is called after an address was added. If it fails, the address is deleted again. It may be nil.
	Added func(index int, address *net.IPNet) error
}

// Sysctl is a value of a file below /proc/sys.
type Sysctl struct{ Name, Value string }

// UsualMTU is the kernel's default for a veth, and SmallestMTU6 the smallest one of IPv6 (RFC 8200): the kernel disables IPv6 on
// links below it.
const (
	UsualMTU     = 1500
	SmallestMTU6 = 1280
)

// ErrSmallMTU: the MTU of a link is too small for IPv6.
var ErrSmallMTU = errors.New("the MTU is too small for IPv6")

// SmallMTU returns ErrSmallMTU if the kernel has disabled IPv6 on a link because of its MTU.
func SmallMTU(link *rtnl.LinkState) error {
	if link == nil || link.MTU >= SmallestMTU6 {
		return nil
	}
	return fmt.Errorf("%w: that of %q is %d, and the kernel disables IPv6 below %d (RFC 8200); change it: ip link set dev %s mtu %d",
		ErrSmallMTU, link.Name, link.MTU, SmallestMTU6, link.Name, UsualMTU)
}

// Compare implements Object.
func (a *Addresses) Compare(_ context.Context, v *View) ([]Difference, error) {
	index, ok, err := v.present(a.Link)
	if err != nil || !ok {
		return nil, err
	}
	var have []netlink.Addr
	if !v.made {
		if have, err = v.netns.Addresses(index); err != nil {
			return nil, err
		}
	}
	var v4, v6 []Difference
	for _, want := range a.List {
		var d Difference
		switch found := slices.IndexFunc(have, want.is); {
		case found < 0:
			d = Difference{Finding: a.missing(v, want), Put: want.put(index, have), Settle: a.added(v, index, want)}
			if want.Beside && slices.ContainsFunc(have, func(a netlink.Addr) bool { return a.IP.Equal(want.IP) }) {
				d.Finding = nil
			}
		case want.AnyPrefix && want.Flags&rtnl.NoDAD != 0 && have[found].Flags&unix.IFA_F_TENTATIVE != 0:
			// The kernel has added it itself, and looks for duplicates for up to two seconds.
			d = Difference{Put: want.put(index, have)}
		default:
			continue
		}
		if want.IP.To4() != nil {
			v4 = append(v4, d)
		} else {
			v6 = append(v6, d)
		}
	}
	if len(v6) == 0 {
		return v4, nil
	}
	if v6, err = a.withIPv6(v, v6); err == nil && a.Detect {
		v6[len(v6)-1].Settle = func(ctx context.Context) error { return awaitDAD(ctx, v.netns, index) }
	}
	return append(v4, v6...), err
}

// is reports whether an address of a link is the wanted one.
func (want *Address) is(have netlink.Addr) bool {
	return have.IP.Equal(want.IP) && (want.AnyPrefix || have.IPNet.String() == want.IPNet.String())
}

// put returns what adds the address. The same address with another prefix length, or one for whose duplicates the kernel looks,
// is in its way.
func (want Address) put(index int, have []netlink.Addr) func(*rtnl.Batch) {
	return func(b *rtnl.Batch) {
		for _, other := range have {
			if other.IP.Equal(want.IP) && !want.Beside {
				b.DeleteAddress(index, other.IPNet)
			}
		}
		if want.Shared {
			b.AddSharedAddress(index, want.IP)
		} else {
			b.AddAddress(index, want.IPNet, want.Flags)
		}
	}
}

// added returns what calls Added; nil if there is none.
func (a *Addresses) added(v *View, index int, want Address) func(context.Context) error {
	if a.Added == nil {
		return nil
	}
	return func(context.Context) error {
		err := a.Added(index, want.IPNet)
		if err == nil {
			return nil
		}
		var undo rtnl.Batch
		undo.DeleteAddress(index, want.IPNet)
		return errors.Join(err, v.netns.Apply(&undo))
	}
}

func (a *Addresses) missing(v *View, want Address) error {
	if v.Kernel != nil {
		return fmt.Errorf("interface %q of the host does not have the address %s", a.Link, want.IP)
	}
	return fmt.Errorf("interface %q does not have the address %s", a.Link, want.IPNet)
}

// withIPv6 completes the differences of IPv6 addresses that are missing: the link has to have IPv6. New links of the host
// have it, unless the host switches it off for new links, which the kernel tells.
func (a *Addresses) withIPv6(v *View, missing []Difference) ([]Difference, error) {
	if v.made && v.Kernel != nil {
		return missing, nil
	}
	enable := Difference{Do: a.setIPv6}
	if v.made {
		return append([]Difference{enable}, missing...), nil
	}
	link, err := v.link(a.Link)
	if err != nil || link == nil {
		return missing, err
	}
	if small := SmallMTU(link); small != nil {
		for i := range missing {
			missing[i] = Difference{Finding: missing[i].Finding}
		}
		return append([]Difference{{Finding: small}}, missing...), nil
	}
	if link.NoIPv6 {
		enable.Finding = fmt.Errorf("interface %q has IPv6 switched off: net.ipv6.conf.%s.disable_ipv6 is 1", a.Link, a.Link)
	}
	return append([]Difference{enable}, missing...), nil
}

func (a *Addresses) setIPv6() error {
	var errs []error
	for _, s := range a.IPv6 {
		errs = append(errs, rtnl.SetSysctl(s.Name, s.Value))
	}
	return errors.Join(errs...)
}

// Await waits until the kernel accepts packets for the addresses.
func (a *Addresses) Await(ctx context.Context, v *View) error {
	index, ok, err := v.present(a.Link)
	if err != nil || !ok {
		return err
	}
	ips := make([]net.IP, len(a.List))
	for i, want := range a.List {
		ips[i] = want.IP
	}
	return v.netns.AwaitReception(ctx, index, ips...)
}

// awaitPresent is Await for those of the addresses that the link has.
func (a *Addresses) awaitPresent(ctx context.Context, v *View) error {
	index, ok, err := v.present(a.Link)
	if err != nil || !ok {
		return err
	}
	have, err := v.netns.Addresses(index)
	if err != nil {
		return err
	}
	var ips []net.IP
	for _, want := range a.List {
		if slices.ContainsFunc(have, want.is) {
			ips = append(ips, want.IP)
		}
	}
	return v.netns.AwaitReception(ctx, index, ips...)
}

const (
	dadTime = 5 * time.Second
	dadPoll = 10 * time.Millisecond
)

// awaitDAD waits until duplicate address detection has finished for all addresses of the link.
func awaitDAD(ctx context.Context, n netns, index int) error {
	ctx, cancel := context.WithTimeout(ctx, dadTime)
	defer cancel()
	for {
		addresses, err := n.Addresses(index)
		if err != nil {
			return err
		}
		tentative := ""
		for _, a := range addresses {
			if a.Flags&unix.IFA_F_DADFAILED != 0 {
				return fmt.Errorf("address %s: duplicate address detected", a.IPNet)
			}
			if a.Flags&unix.IFA_F_TENTATIVE != 0 {
				tentative = a.IPNet.String()
			}
		}
		if tentative == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for duplicate address detection of %s: %w", tentative, ctx.Err())
		case <-time.After(dadPoll):
		}
	}
}
