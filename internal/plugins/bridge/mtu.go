package bridge

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// The kernel gives a bridge the smallest MTU of its ports until another program sets one. With a larger one, packets of the
// host are lost that are too large for a port; with one below 1280, the kernel disables IPv6 on the bridge.

// mtuError: another program has set the MTU of a bridge.
type mtuError struct {
	bridge   string
	is, want int
}

func (e *mtuError) Error() string {
	return fmt.Sprintf("bridge %q has the MTU %d, not the smallest one of its ports, %d", e.bridge, e.is, e.want)
}

// checkMTU returns an *mtuError if another program has set the MTU of a bridge that an ADD has created. port is that of
// a port; 0 if it is not known. Only if the bridge has another one, the kernel walks all links for its ports.
func checkMTU(h *sdk.Host, br *netlink.Bridge, port int) error {
	if port == 0 || port == br.MTU {
		return nil
	}
	return h.Cache.Unless(fmt.Sprintf("MTU %d of bridge %d", br.MTU, br.Index), func() error {
		smallest, err := h.Kernel.SmallestPortMTU(br.Index)
		if err == nil && smallest != 0 && smallest != br.MTU {
			err = &mtuError{br.Name, br.MTU, smallest}
		}
		return err
	})
}

// restoreMTU restores what checkMTU checks.
func restoreMTU(h *sdk.Host, br *netlink.Bridge, port int) (changed bool, err error) {
	var wrong *mtuError
	if err := checkMTU(h, br, port); !errors.As(err, &wrong) {
		return false, err
	}
	var changes rtnl.Batch
	changes.SetMTU(br.Index, wrong.want)
	if err := h.Kernel.Apply(&changes); err != nil {
		return false, fmt.Errorf("bridge %q: %w", br.Name, err)
	}
	setSysctls(br.Name)
	return true, nil
}
