package veth

import (
	"errors"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// WithIPv6 calls restore, which restores addresses and routes of a result on a link of the host. If
// it is not permitted because another program has disabled IPv6 on the link, WithIPv6 enables
// it and calls restore again: the kernel has removed all addresses and routes.
func WithIPv6(link string, r *types100.Result, restore func() (bool, error)) (changed bool, err error) {
	changed, err = restore()
	if !errors.Is(err, unix.EACCES) || !HasIPv6(r) {
		return changed, err
	}
	if sysctlErr := rtnl.SetSysctl(fmt.Sprintf("net/ipv6/conf/%s/disable_ipv6", link), "0"); sysctlErr != nil {
		return changed, errors.Join(err, sysctlErr)
	}
	_, err = restore()
	return true, err
}
