package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// allocation is one of the two allocations of the demo.
type allocation struct {
	id       string
	hostPort int
	ns       *sandbox.Sandbox
	status   *configurator.Status
}

// addresses returns the addresses inside the sandbox.
func (a *allocation) addresses() []string {
	if a.status.AddressIPv6 == "" || a.status.AddressIPv6 == a.status.Address {
		return []string{a.status.Address}
	}
	return []string{a.status.Address, a.status.AddressIPv6}
}

func (d *demo) makeSandbox(ctx context.Context, a *allocation) error {
	return d.steps.do(ctx, "make sandbox "+a.id, func(context.Context) (string, error) {
		var err error
		if a.ns, err = sandbox.Create(a.id); err != nil {
			return "", err
		}
		d.steps.later("destroy sandbox "+a.id, func(context.Context) (string, error) {
			return "", a.ns.Destroy()
		})
		return a.ns.Path(), nil
	})
}

func (d *demo) setUp(ctx context.Context, a *allocation) error {
	d.steps.later("tear down "+a.id, func(ctx context.Context) (string, error) {
		start := time.Now()
		err := d.conf.Teardown(ctx, configurator.Allocation{ID: a.id, Wait: true})
		d.summary.Teardowns = append(d.summary.Teardowns, time.Since(start))
		return "links, rules, addresses", err
	})
	return d.steps.do(ctx, "set up "+a.id, func(ctx context.Context) (string, error) {
		start := time.Now()
		status, err := d.conf.Setup(ctx, configurator.Allocation{
			ID: a.id, Netns: a.ns.Path(),
			Ports: []portmap.Port{{Label: "http", Value: a.hostPort, To: serverPort, Protocols: []string{"tcp"}}},
		})
		if err != nil {
			return "", err
		}
		a.status = status
		d.summary.Setups = append(d.summary.Setups, time.Since(start))
		return fmt.Sprintf("%s %s, host port %d -> %d",
			status.InterfaceName, strings.Join(a.addresses(), " and "), a.hostPort, serverPort), nil
	})
}

// settleTime is longer than duplicate address detection takes.
const settleTime = 10 * time.Second

// settle waits until duplicate address detection has finished for all IPv6
// addresses, which are unusable before. This includes the link-local addresses,
// which neighbour discovery needs.
func (d *demo) settle(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		waiting, err := d.tentative()
		if err != nil {
			return "", err
		}
		if len(waiting) == 0 {
			return "no duplicate address detection is under way", nil
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("wait for addresses %s: %w", strings.Join(waiting, ", "), ctx.Err())
		case <-tick.C:
		}
	}
}

// tentative lists the tentative addresses of the host and of the sandboxes.
func (d *demo) tentative() ([]string, error) {
	var waiting []string
	look := func() error {
		list, err := retry.List(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, unix.AF_INET6) })
		if err != nil {
			return fmt.Errorf("list addresses: %w", err)
		}
		for _, a := range list {
			if a.Flags&unix.IFA_F_TENTATIVE != 0 {
				waiting = append(waiting, a.IP.String())
			}
		}
		return nil
	}
	errs := []error{look()}
	for _, a := range d.allocs {
		errs = append(errs, a.ns.Do(look))
	}
	return waiting, errors.Join(errs...)
}
