package object

import (
	"context"
	"errors"
	"fmt"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// Forwarding is that the host forwards the packets of address families that arrive over a link.
type Forwarding struct {
	Link   string
	V4, V6 bool
}

// Compare implements Object.
func (f *Forwarding) Compare(_ context.Context, v *View) ([]Difference, error) {
	index, ok, err := v.present(f.Link)
	if err != nil || !ok {
		return nil, err
	}
	on, err := v.Kernel.Forwarding(index, f.V4, f.V6)
	if err != nil || on.IPv4 && on.IPv4Link && on.IPv6 {
		return nil, err
	}
	var findings []error
	if !on.IPv4 {
		findings = append(findings, errors.New("the host does not forward IPv4 packets: net.ipv4.ip_forward is 0"))
	} else if !on.IPv4Link {
		findings = append(findings, fmt.Errorf("the host does not forward IPv4 packets from interface %q: net.ipv4.conf.%s.forwarding is 0", f.Link, f.Link))
	}
	if !on.IPv6 {
		findings = append(findings, errors.New("the host does not forward IPv6 packets: net.ipv6.conf.all.forwarding is 0"))
	}
	return []Difference{{Finding: errors.Join(findings...), Do: func() error { return f.enable(v, index, on) }}}, nil
}

// enable enables what is off. The sysctl of all links may have set that of the link, which is recorded all the same.
func (f *Forwarding) enable(v *View, index int, on rtnl.Forwarding) error {
	if err := v.Switches.Forward(!on.IPv4, !on.IPv6); err != nil {
		return err
	}
	if on.IPv4Link {
		return nil
	}
	if err := v.Switches.Record("net/ipv4/conf/"+f.Link+"/forwarding", "1"); err != nil {
		return err
	}
	return v.Kernel.EnableForwardingFrom(index)
}
