package veth

import (
	"errors"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// Forward enables forwarding on the host for the address families of a result, but not that of
// a link. The cache prevents repeated work.
func Forward(host *sdk.Host, r *types100.Result) error {
	v4, v6 := familiesOf(r)
	key := fmt.Sprint("forward ", v4, v6)
	return host.Cache.Unless(key, func() error { return host.Switches.Forward(v4, v6) })
}

// familiesOf reports which families the addresses of a result have.
func familiesOf(r *types100.Result) (v4, v6 bool) {
	for _, ip := range r.IPs {
		if ip.Address.IP.To4() != nil {
			v4 = true
		} else {
			v6 = true
		}
	}
	return v4, v6
}

// CheckForwarding returns an error for each sysctl because of which the host does not forward
// the packets of the addresses of a result. They arrive over the link with an index and a name.
func CheckForwarding(host *rtnl.Host, index int, name string, r *types100.Result) error {
	off, err := forwardingOff(host, index, r)
	errs := []error{err}
	if off.v4 {
		errs = append(errs, errors.New("the host does not forward IPv4 packets: net.ipv4.ip_forward is 0"))
	} else if off.link {
		errs = append(errs, fmt.Errorf("the host does not forward IPv4 packets from interface %q: net.ipv4.conf.%s.forwarding is 0", name, name))
	}
	if off.v6 {
		errs = append(errs, errors.New("the host does not forward IPv6 packets: net.ipv6.conf.all.forwarding is 0"))
	}
	return errors.Join(errs...)
}

// EnsureForwarding enables what CheckForwarding finds disabled.
func EnsureForwarding(host *sdk.Host, index int, name string, r *types100.Result) (changed bool, err error) {
	off, err := forwardingOff(host.Kernel, index, r)
	if err != nil || off == (switchesOff{}) {
		return false, err
	}
	if err := host.Switches.Forward(off.v4, off.v6); err != nil {
		return false, err
	}
	if !off.link { // the sysctl of all links may have set it
		return true, nil
	}
	if err := host.Switches.Record("net/ipv4/conf/"+name+"/forwarding", "1"); err != nil {
		return true, err
	}
	return true, host.Kernel.EnableForwardingFrom(index)
}

// switchesOff are the sysctls about forwarding: that of IPv4, that of a link, and that of IPv6.
type switchesOff struct{ v4, link, v6 bool }

// forwardingOff returns the sysctls that are 0, but should not be.
func forwardingOff(host *rtnl.Host, index int, r *types100.Result) (off switchesOff, err error) {
	v4, v6 := familiesOf(r)
	var errs [3]error
	if v4 {
		off.v4, errs[0] = disabled(host.Forwards(unix.AF_INET))
		off.link, errs[1] = disabled(host.ForwardsFrom(index))
	}
	if v6 {
		off.v6, errs[2] = disabled(host.Forwards(unix.AF_INET6))
	}
	return off, errors.Join(errs[:]...)
}

func disabled(on bool, err error) (bool, error) { return !on && err == nil, err }
