package cleanup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/retry"
)

// linkFinder finds the host's ends of the allocation's interfaces: veths, and the ifbs
// of the bandwidth plugin. It never removes other links: bridges are shared, and
// devices belong to the host.
type linkFinder struct {
	*search
	found []hostLink
}

type hostLink struct {
	netlink.Link
	network string
}

func (l hostLink) leftover() Leftover {
	return Leftover{Kind: KindLink, Network: l.network, Object: l.Attrs().Name}
}

func (f *linkFinder) find(ctx context.Context) ([]Leftover, error) {
	var errs []error
	f.found = nil
	for _, a := range f.attachments {
		errs = append(errs, f.findNamed(a), f.findOwned(a), f.findIfb(a))
	}
	if f.mayBeRenamed() {
		errs = append(errs, f.findAllOwned())
	}
	errs = append(errs, f.findPeers())
	var list []Leftover
	for _, l := range f.found {
		list = append(list, l.leftover())
	}
	return list, errors.Join(errs...)
}

// findNamed finds the links on the host that the result lists.
func (f *linkFinder) findNamed(a *attachment) error {
	if a.result == nil {
		return nil
	}
	var errs []error
	for _, i := range a.result.Interfaces {
		if i.Sandbox != "" {
			continue
		}
		errs = append(errs, f.add(i.Name, a.Network, func(link netlink.Link) bool {
			// With another MAC, it is a new link of another owner.
			mac := link.Attrs().HardwareAddr.String()
			return (link.Type() == "veth" || link.Type() == "ifb") && (i.Mac == "" || strings.EqualFold(i.Mac, mac)) && !a.isOfVLAN(link)
		}))
	}
	return errors.Join(errs...)
}

// isOfVLAN reports whether a link of the result has the gateways' addresses of a VLAN of the bridge: a veth with
// both ends on the host, which the plugins bridge name after the bridge. All attachments of that VLAN use it.
func (a *attachment) isOfVLAN(link netlink.Link) bool {
	return link.Type() == "veth" && link.Attrs().NetNsID < 0 && slices.ContainsFunc(a.result.Interfaces, func(i *current.Interface) bool {
		return i.Sandbox == "" && strings.HasPrefix(link.Attrs().Name, i.Name+".")
	})
}

// findIfb finds the link of the bandwidth plugin by its name.
func (f *linkFinder) findIfb(a *attachment) error {
	return f.add(names.Ifb(a.Network, f.target.ID), a.Network, func(link netlink.Link) bool {
		return link.Type() == "ifb"
	})
}

// add adds a link by its name, if it exists and ours returns true.
func (f *linkFinder) add(name, network string, ours func(netlink.Link) bool) error {
	link, err := rtnl.LinkByName(name)
	switch {
	case rtnl.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("look up link %q: %w", name, err)
	case ours(link):
		f.addLink(link, network)
	}
	return nil
}

// addLink adds a link, unless it was added before.
func (f *linkFinder) addLink(link netlink.Link, network string) {
	if !slices.ContainsFunc(f.found, func(l hostLink) bool { return l.Attrs().Index == link.Attrs().Index }) {
		f.found = append(f.found, hostLink{Link: link, network: network})
	}
}

// findPeers finds the peers of the interfaces in the sandbox, for attachments whose
// result is unknown.
func (f *linkFinder) findPeers() error {
	if f.target.Netns == "" || !slices.ContainsFunc(f.attachments, func(a *attachment) bool { return a.result == nil }) {
		return nil
	}
	sandbox, err := openNetns(f.target.Netns)
	if err != nil || !sandbox.IsOpen() {
		return err
	}
	defer sandbox.Close()
	handle, err := netlink.NewHandleAt(sandbox, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("enter network namespace %q: %w", f.target.Netns, err)
	}
	defer handle.Close()
	var errs []error
	for _, a := range f.attachments {
		if a.result == nil {
			errs = append(errs, f.findPeer(sandbox, handle, a))
		}
	}
	return errors.Join(errs...)
}

// openNetns opens a network namespace. It returns a closed handle if the path does not
// exist, is not a namespace, or leads to the host's own namespace.
func openNetns(path string) (netns.NsHandle, error) {
	none := netns.None()
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); errors.Is(err, fs.ErrNotExist) || err == nil && stat.Type != unix.NSFS_MAGIC {
		return none, nil
	}
	sandbox, err := netns.GetFromPath(path)
	if errors.Is(err, fs.ErrNotExist) {
		return none, nil
	}
	if err != nil {
		return none, fmt.Errorf("open network namespace %q: %w", path, err)
	}
	host, err := netns.Get()
	if err != nil {
		sandbox.Close()
		return none, fmt.Errorf("open own network namespace: %w", err)
	}
	defer host.Close()
	if sandbox.Equal(host) {
		sandbox.Close()
		return none, nil
	}
	return sandbox, nil
}

// findPeer finds the host's link whose peer is the interface of an attachment.
// Interface indexes are unique only within a namespace, so it verifies that both links
// refer to each other, and that the host's names no other owner.
func (f *linkFinder) findPeer(sandbox netns.NsHandle, inside *netlink.Handle, a *attachment) error {
	inner, err := inside.LinkByName(a.IfName)
	if rtnl.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up link %q in %q: %w", a.IfName, f.target.Netns, err)
	}
	if inner.Type() != "veth" {
		return nil
	}
	outer, err := netlink.LinkByIndex(inner.Attrs().ParentIndex)
	if rtnl.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up peer of link %q in %q: %w", a.IfName, f.target.Netns, err)
	}
	id, err := netlink.GetNetNsIdByFd(int(sandbox))
	if err != nil {
		return fmt.Errorf("identify network namespace %q: %w", f.target.Netns, err)
	}
	attrs := outer.Attrs()
	if owner, named := names.ParseOwner(attrs.Alias); named && !f.isOwner(owner) {
		return nil // the path leads to another allocation's namespace
	}
	if outer.Type() == "veth" && attrs.ParentIndex == inner.Attrs().Index && attrs.NetNsID == id {
		f.addLink(outer, a.Network)
	}
	return nil
}

func (f *linkFinder) remove(ctx context.Context) ([]Leftover, error) {
	var (
		list []Leftover
		errs []error
	)
	for _, l := range f.found {
		err := retry.Do(ctx, func() error { return netlink.LinkDel(l) })
		switch {
		case err == nil:
			list = append(list, l.leftover())
		case !rtnl.IsNotFound(err):
			errs = append(errs, fmt.Errorf("delete link %q: %w", l.Attrs().Name, err))
		}
	}
	return list, errors.Join(errs...)
}
