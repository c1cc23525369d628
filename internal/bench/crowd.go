package bench

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/portmap"
)

// crowd adds and removes other mappings beside the measured one.
type crowd struct {
	mappings         int
	slow             bool
	gather, disperse func(context.Context) error
}

const (
	crowdSize = 100   // allocations that share the mappings
	crowdPort = 30000 // first of their host ports
)

// crowdOf returns the crowd of a system. slots[0] is the measured allocation.
func (b *bench) crowdOf(sys system, slots []*slot) *crowd {
	n := b.size.mappingsOf(sys.name())
	switch s := sys.(type) {
	case *baseline:
		change := func(kind int) func(context.Context) error {
			return func(context.Context) error { return s.changeCrowd(kind, n) }
		}
		return &crowd{mappings: n, gather: change(unix.NFT_MSG_NEWSETELEM), disperse: change(unix.NFT_MSG_DELSETELEM)}
	case *configured:
		if sys.name() == execName {
			return iptablesCrowd(n)
		}
		return allocationsCrowd(s, slots[1:1+crowdSize], n)
	}
	return nil
}

// changeCrowd adds or removes n elements of the baseline's map of ports.
func (f *baseline) changeCrowd(kind, n int) error {
	sockets, err := f.take()
	if err != nil {
		return err
	}
	defer f.give(sockets)
	to := append(netip.MustParseAddr("10.255.0.1").AsSlice(), portField(containerPort)...)
	var all []element
	for port := range n / 2 {
		for _, protocol := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			all = append(all, element{key: portKey(protocol, uint16(crowdPort+port)), value: to})
		}
	}
	for part := range slices.Chunk(all, 500) {
		if err := sockets.change(kind, []elements{{unix.NFPROTO_IPV4, "ports", part}}); err != nil {
			return err
		}
	}
	return nil
}

// allocationsCrowd returns a crowd of allocations with many ports each, every
// port for both protocols.
func allocationsCrowd(c *configured, slots []*slot, n int) *crowd {
	each := n / 2 / len(slots)
	return &crowd{
		mappings: n,
		gather: func(ctx context.Context) error {
			return atOnce(8, slots, func(s *slot) error {
				a := configurator.Allocation{ID: s.id, Netns: s.netns}
				for i := range each {
					port := crowdPort + (s.index-slots[0].index)*each + i
					a.Ports = append(a.Ports, portmap.Port{Label: fmt.Sprintf("p%d", i), Value: port, To: containerPort})
				}
				return c.setup(ctx, a)
			})
		},
		disperse: func(ctx context.Context) error {
			return atOnce(len(slots), slots, func(s *slot) error { return c.del(ctx, s) })
		},
	}
}

// iptablesCrowd returns a crowd of rules like those of the portmap plugin. They
// precede the rules of the measured allocation, as if that had come last.
func iptablesCrowd(n int) *crowd {
	var before []byte
	return &crowd{
		mappings: n, slow: true,
		gather: func(ctx context.Context) (err error) {
			if before, err = exec.CommandContext(ctx, "iptables-save", "-t", "nat").Output(); err != nil {
				return fmt.Errorf("run iptables-save: %w", err)
			}
			if restore(ctx, iptablesRules(0, n/2), "--noflush") == nil {
				return nil
			}
			for i := 0; i < n/2 && err == nil; i += rulesAtOnce {
				err = restore(ctx, iptablesRules(i, min(i+rulesAtOnce, n/2)), "--noflush")
			}
			return err
		},
		disperse: func(ctx context.Context) error { return restore(ctx, before) },
	}
}

func restore(ctx context.Context, rules []byte, args ...string) error {
	c := exec.CommandContext(ctx, "iptables-restore", args...)
	c.Stdin = bytes.NewReader(rules)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("run iptables-restore: %w: %s", err, out)
	}
	return nil
}

// rulesAtOnce is the number of allocations whose rules fit into the send buffer of a
// socket. Only root of the real host may enlarge it, which iptables-restore needs to add
// all rules in one transaction.
const rulesAtOnce = 40

// iptablesRules returns a chain and two jumps to it for each allocation of a range.
func iptablesRules(from, to int) []byte {
	var chains, rules strings.Builder
	for i := from; i < to; i++ {
		chain, port := fmt.Sprintf("CNI-DN-%021d", i), crowdPort+i
		fmt.Fprintf(&chains, ":%s - [0:0]\n", chain)
		for _, protocol := range []string{"tcp", "udp"} {
			fmt.Fprintf(&rules, "-I CNI-HOSTPORT-DNAT 1 -p %s -m comment --comment \"dnat name: \\\"crowd\\\" id: \\\"%d\\\"\" -m multiport --destination-ports %d -j %s\n", protocol, i, port, chain)
			match := fmt.Sprintf("-A %s -p %s --dport %d", chain, protocol, port)
			fmt.Fprintf(&rules, "%s -s 10.255.0.0/16 -j CNI-HOSTPORT-SETMARK\n", match)
			fmt.Fprintf(&rules, "%s -s 127.0.0.1 -j CNI-HOSTPORT-SETMARK\n", match)
			fmt.Fprintf(&rules, "%s -j DNAT --to-destination 10.255.0.1:%d\n", match, containerPort)
		}
	}
	return []byte("*nat\n" + chains.String() + rules.String() + "COMMIT\n")
}
