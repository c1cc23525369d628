package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// baseline creates allocations with as few and as simple messages as the kernel
// allows: the minimum that any implementation must do. It uses no technique
// that an implementation could not use. It is safe for concurrent use.
type baseline struct {
	network *network
	bridge  int // index, or 0
	home    *os.File

	mu   sync.Mutex
	idle []*baselineSockets
}

// baselineSockets are sockets that one operation at a time uses.
type baselineSockets struct{ links, rules *socket }

// newBaseline creates the shared part of the network: the bridge, forwarding
// and the tables.
func newBaseline(ctx context.Context, n *network) (*baseline, error) {
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	f := &baseline{network: n, home: home}
	if err := f.prepare(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare the baseline's network: %w", err), f.close(ctx))
	}
	return f, nil
}

func (f *baseline) prepare(ctx context.Context) error {
	for _, s := range []string{"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"} {
		if err := os.WriteFile(s, []byte("1"), 0o644); err != nil {
			return err
		}
	}
	if err := makeTables(ctx, f.network); err != nil {
		return err
	}
	if f.network.kind != "bridge" {
		return nil
	}
	return f.makeBridge()
}

func (f *baseline) makeBridge() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = f.network.bridge()
	attrs.HardwareAddr = net.HardwareAddr{2, 0, 0, 0, 0, byte(f.network.number)}
	br := &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(br); err != nil {
		return fmt.Errorf("make bridge %q: %w", attrs.Name, err)
	}
	l, err := netlink.LinkByName(attrs.Name)
	if err != nil {
		return fmt.Errorf("find bridge %q: %w", attrs.Name, err)
	}
	f.bridge = l.Attrs().Index
	sockets, err := f.take()
	if err != nil {
		return err
	}
	defer f.give(sockets)
	messages := []*message{upMessage(f.bridge)}
	for _, s := range f.network.families() {
		gateway := s.gateway()
		messages = append(messages, addrMessage(f.bridge, netip.PrefixFrom(gateway, s.subnet.Bits()), 0))
	}
	return sockets.links.do(messages...)
}

// close removes the shared part of the network.
func (f *baseline) close(ctx context.Context) error {
	var errs []error
	for _, s := range f.idle {
		errs = append(errs, s.links.close(), s.rules.close())
	}
	f.idle = nil
	if f.bridge != 0 {
		errs = append(errs, netlink.LinkDel(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Index: f.bridge}}))
	}
	return errors.Join(append(errs, dropTables(ctx, f.network), f.home.Close())...)
}

// take returns sockets for one operation: those that an earlier operation
// returned with give, or new ones.
func (f *baseline) take() (*baselineSockets, error) {
	f.mu.Lock()
	if last := len(f.idle) - 1; last >= 0 {
		s := f.idle[last]
		f.idle = f.idle[:last]
		f.mu.Unlock()
		return s, nil
	}
	f.mu.Unlock()
	links, err := openSocket(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	rules, err := openSocket(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, errors.Join(err, links.close())
	}
	return &baselineSockets{links, rules}, nil
}

func (f *baseline) give(s *baselineSockets) {
	f.mu.Lock()
	f.idle = append(f.idle, s)
	f.mu.Unlock()
}

func (f *baseline) name() string { return baselineName }

func (f *baseline) linkName(s *slot) string { return fmt.Sprintf("baseline%d", s.index) }

// add creates the allocation of a slot.
func (f *baseline) add(_ context.Context, s *slot) error {
	sockets, err := f.take()
	if err != nil {
		return err
	}
	defer f.give(sockets)
	host, err := f.attach(sockets.links, s)
	if err != nil {
		return fmt.Errorf("baseline: attach %q: %w", s.id, err)
	}
	if f.network.kind == "ptp" {
		if err := sockets.links.do(f.hostMessages(s, host)...); err != nil {
			return fmt.Errorf("baseline: configure the host's end of %q: %w", s.id, err)
		}
	}
	if err := sockets.change(unix.NFT_MSG_NEWSETELEM, f.elements(s)); err != nil {
		return fmt.Errorf("baseline: add the elements of %q: %w", s.id, err)
	}
	return nil
}

// attach creates the veth and configures its end in the sandbox.
func (f *baseline) attach(links *socket, s *slot) (host int, err error) {
	sandbox, err := os.Open(s.netns)
	if err != nil {
		return 0, err
	}
	defer sandbox.Close()
	pair := veth{
		name: f.linkName(s), mac: s.mac(1), peer: "eth0", peerMAC: s.mac(2),
		master: f.bridge, sandbox: int(sandbox.Fd()),
	}
	if err := links.do(pair.create()); err != nil {
		return 0, err
	}
	// The peer is still down, so the link has no carrier yet and these messages
	// are in time.
	bridged := f.network.kind == "bridge"
	if err := links.do(portMessage(pair.name, bridged, f.network.dual && !bridged)); err != nil {
		return 0, err
	}
	inside, err := openSocketIn(int(sandbox.Fd()), int(f.home.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return 0, err
	}
	index, host, err := inside.link(pair.peer)
	if err == nil {
		err = inside.do(f.sandboxMessages(s, index)...)
	}
	return host, errors.Join(err, inside.close())
}

const loopbackIndex = 1

// sandboxMessages configure the links in the sandbox. With ptp, all traffic
// passes the gateway, also within the subnet.
func (f *baseline) sandboxMessages(s *slot, index int) []*message {
	messages := []*message{upMessage(loopbackIndex), upMessage(index)}
	for _, n := range f.network.families() {
		a, gateway := n.address(s.index), n.gateway()
		p := netip.PrefixFrom(a, n.subnet.Bits())
		if f.network.kind == "bridge" {
			messages = append(messages, addrMessage(index, p, 0))
		} else {
			near := route{index: index, scope: unix.RT_SCOPE_LINK, to: n.host(gateway), source: a}
			rest := route{index: index, to: n.subnet, gateway: gateway, source: a}
			messages = append(messages, addrMessage(index, p, unix.IFA_F_NOPREFIXROUTE), near.message(), rest.message())
		}
		out := route{index: index, to: n.all(), gateway: gateway}
		messages = append(messages, out.message())
	}
	return messages
}

// hostMessages configure the host's end of a ptp link, which is up already.
func (f *baseline) hostMessages(s *slot, index int) []*message {
	var messages []*message
	for _, n := range f.network.families() {
		gateway := n.gateway()
		to := route{index: index, scope: unix.RT_SCOPE_HOST, to: n.host(n.address(s.index))}
		messages = append(messages, addrMessage(index, n.host(gateway), 0), to.message())
	}
	return messages
}

func (f *baseline) elements(slots ...*slot) []elements {
	var all []elements
	for _, s := range slots {
		for _, n := range f.network.families() {
			all = append(all, allocationElements(n.address(s.index), s.hostPort(), containerPort)...)
		}
	}
	return all
}

// change adds or removes elements in one transaction.
func (s *baselineSockets) change(kind int, changes []elements) error {
	messages, last := transaction(kind, changes)
	return s.rules.exchange(messages, last, nil)
}

// del removes the allocation of a slot.
func (f *baseline) del(_ context.Context, s *slot) error {
	sockets, err := f.take()
	if err != nil {
		return err
	}
	defer f.give(sockets)
	if err := sockets.change(unix.NFT_MSG_DELSETELEM, f.elements(s)); err != nil {
		return fmt.Errorf("baseline: remove the elements of %q: %w", s.id, err)
	}
	if err := sockets.links.do(delLinkMessage(f.linkName(s))); err != nil {
		return fmt.Errorf("baseline: delete the link of %q: %w", s.id, err)
	}
	return nil
}

// batchGroup is the interface group of links that are deleted together.
const batchGroup = 0x62656e

// delBatch removes the allocations of slots together. A batch has a few hundred
// at most.
func (f *baseline) delBatch(slots []*slot) error {
	sockets, err := f.take()
	if err != nil {
		return err
	}
	defer f.give(sockets)
	if err := sockets.change(unix.NFT_MSG_DELSETELEM, f.elements(slots...)); err != nil {
		return fmt.Errorf("baseline: remove the elements of %d allocations: %w", len(slots), err)
	}
	var messages []*message
	for _, s := range slots {
		messages = append(messages, groupMessage(f.linkName(s), batchGroup))
	}
	if err := sockets.links.do(append(messages, delGroupMessage(batchGroup))...); err != nil {
		return fmt.Errorf("baseline: delete %d links: %w", len(slots), err)
	}
	return nil
}
