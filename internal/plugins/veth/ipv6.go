package veth

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// ErrSmallMTU: the MTU of a link is too small for IPv6.
var ErrSmallMTU = errors.New("the MTU is too small for IPv6")

// CheckMTU returns ErrSmallMTU if the kernel has disabled IPv6 on a link of the host because of its
// MTU, and a result has IPv6 addresses. It is for a link on which something is missing.
func CheckMTU(host *rtnl.Host, link string, r *types100.Result) error {
	if !HasIPv6(r) {
		return nil
	}
	found, err := host.Link(link)
	if err != nil || found.Attrs().MTU >= smallestIP6 {
		return nil
	}
	return fmt.Errorf("%w: that of %q is %d, and the kernel disables IPv6 below %d (RFC 8200); change it: ip link set dev %s mtu %d",
		ErrSmallMTU, link, found.Attrs().MTU, smallestIP6, link, UsualMTU)
}

// WithIPv6 calls restore, which restores addresses and routes of a result on a link of the host. If
// it is not permitted because another program has disabled IPv6 on the link, WithIPv6 enables
// it and calls restore again: the kernel has removed all addresses and routes. If the kernel has
// disabled IPv6 because of the MTU, WithIPv6 restores the rest, and returns ErrSmallMTU.
func WithIPv6(host *rtnl.Host, link string, r *types100.Result, restore func(*types100.Result) (bool, error)) (changed bool, err error) {
	changed, err = restore(r)
	if err == nil || !HasIPv6(r) {
		return changed, err
	}
	if mtuErr := CheckMTU(host, link, r); mtuErr != nil {
		rest, restErr := restore(onlyIPv4(r))
		return changed || rest, errors.Join(mtuErr, cmp.Or(restErr, err))
	}
	if !errors.Is(err, unix.EACCES) {
		return changed, err
	}
	if sysctlErr := rtnl.SetSysctl(fmt.Sprintf("net/ipv6/conf/%s/disable_ipv6", link), "0"); sysctlErr != nil {
		return changed, errors.Join(err, sysctlErr)
	}
	_, err = restore(r)
	return true, err
}

// onlyIPv4 returns a result without its IPv6 addresses.
func onlyIPv4(r *types100.Result) *types100.Result {
	part := *r
	part.IPs = slices.DeleteFunc(slices.Clone(r.IPs), func(ip *types100.IPConfig) bool { return ip.Address.IP.To4() == nil })
	return &part
}

// SkipDAD makes an address of a link of the host usable for whose duplicates the kernel still looks:
// another ADD has brought the link up before the one that created it switched that off, or the kernel
// has enabled IPv6 on the link again. The kernel's address may have another prefix length.
func SkipDAD(host *rtnl.Host, index int, want *net.IPNet) error {
	list, err := host.Addresses(index)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(list, func(a netlink.Addr) bool { return a.IP.Equal(want.IP) && a.Flags&unix.IFA_F_TENTATIVE != 0 })
	if i < 0 {
		return nil
	}
	link := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}
	if err := host.AddrDel(link, &netlink.Addr{IPNet: list[i].IPNet}); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("remove address %s: %w", list[i].IPNet, err)
	}
	_, err = host.EnsureAddress(index, want, rtnl.NoDAD)
	return err
}
