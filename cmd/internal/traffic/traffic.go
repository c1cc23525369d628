// Package traffic reads what allocations have received and sent: for the daemon, which
// serves it, and for the command line without a daemon. Nothing is added to a packet's
// way: the counters are those that the kernel has for every link, and those of the rules
// of network policies.
package traffic

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/internal/netlink/conntrack"
	"github.com/allocnet/allocnet/internal/netlink/netfilter"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
)

// Options configure Collect.
type Options struct {
	Service interface {
		List(context.Context) ([]allocnet.Record, error)
	}
	Links *rtnl.Host
	Conns *conntrack.Conn
	// Rules are read for the packets that policies have dropped; nil for none.
	Rules *ruleset.Ruleset
	// MaxConnections is the number of tracked connections of the host beyond which they
	// are not counted for each allocation; default 32768, which take some 0.1 s.
	MaxConnections int
}

const defaultMaxConnections = 32768

// Collect reads the counters of all allocations: the links in one listing, and the
// connections in one per address family. What cannot be read is in the Problems.
func Collect(ctx context.Context, o Options) *client.HostTraffic {
	t := &client.HostTraffic{Time: time.Now(), Allocations: []client.AllocationTraffic{}, Problems: []string{}}
	records, err := o.Service.List(ctx)
	problem(t, err)
	counters, err := o.Links.Statistics()
	problem(t, err)
	denied, err := o.denied(ctx)
	problem(t, err)
	for i := range records {
		if records[i].Status == nil || records[i].Acknowledged {
			continue
		}
		t.Allocations = append(t.Allocations, client.AllocationTraffic{
			ID: records[i].ID, Interfaces: o.interfaces(&records[i], counters, denied),
		})
	}
	problem(t, o.count(ctx, records, t.Allocations))
	return t
}

func problem(t *client.HostTraffic, err error) {
	if err != nil {
		t.Problems = append(t.Problems, strings.Join(strings.Fields(err.Error()), " "))
	}
}

// interfaces returns the traffic of the interfaces of an allocation. The host's end of a
// veth is found by its name in the result of the network: both plugins that make a veth
// let its name begin so.
func (o *Options) interfaces(r *allocnet.Record, counters map[int]rtnl.Counters, denied map[string]ruleset.Dropped) []client.InterfaceTraffic {
	list := []client.InterfaceTraffic{}
	for _, n := range r.Networks {
		var inside, veths []string
		for _, i := range r.Status.Interfaces {
			switch {
			case i.Network != n.Network:
			case i.Sandbox != "":
				inside = append(inside, i.Name)
			case strings.HasPrefix(i.Name, "veth"):
				veths = append(veths, i.Name)
			}
		}
		for i := range min(len(inside), len(veths)) {
			index, err := o.Links.Index(veths[i])
			if err != nil {
				continue // it is being removed, or another program has removed it
			}
			c, d := counters[index], denied[veths[i]]
			list = append(list, client.InterfaceTraffic{
				Network: n.Network, Interface: inside[i],
				Received: client.Counters{Packets: c.TxPackets, Bytes: c.TxBytes, Dropped: c.TxDropped, Denied: d.Ingress.Packets},
				Sent:     client.Counters{Packets: c.RxPackets, Bytes: c.RxBytes, Dropped: c.RxDropped, Denied: d.Egress.Packets},
			})
		}
	}
	return list
}

// denied returns what policies have dropped, by the name of the host's end of the veth.
func (o *Options) denied(ctx context.Context) (map[string]ruleset.Dropped, error) {
	if o.Rules == nil {
		return nil, nil
	}
	list, err := o.Rules.Dropped(ctx)
	if netfilter.IsUnsupported(err) {
		return nil, nil
	}
	byVeth := map[string]ruleset.Dropped{}
	for _, d := range list {
		byVeth[d.Owner.Veth()] = d
	}
	return byVeth, err
}

// count sets the Connections of the allocations, unless the host has too many.
func (o *Options) count(ctx context.Context, records []allocnet.Record, to []client.AllocationTraffic) error {
	most := o.MaxConnections
	if most == 0 {
		most = defaultMaxConnections
	}
	entries, _, err := conntrack.Fill()
	switch {
	case errors.Is(err, fs.ErrNotExist): // this kernel tracks none
		return nil
	case err != nil:
		return err
	case entries > most:
		return fmt.Errorf("the kernel tracks %d connections: more than %d are not counted for each allocation", entries, most)
	}
	counts, families := addressesOf(records)
	for family := range families {
		err = errors.Join(err, o.Conns.List(ctx, family, func(e conntrack.Entry) {
			for _, c := range [2]*int{counts[e.Source], counts[e.Answers]} {
				if c != nil {
					*c++
				}
			}
			if counts[e.Source] != nil && counts[e.Source] == counts[e.Answers] {
				*counts[e.Source]-- // of an allocation with itself
			}
		}))
	}
	if err != nil && !errors.Is(err, unix.EINTR) { // entries come and go all the time
		return err
	}
	byID := map[string]*int{}
	for i := range records {
		for _, a := range addresses(&records[i]) {
			byID[records[i].ID] = counts[a]
		}
	}
	for i := range to {
		if to[i].Connections = byID[to[i].ID]; to[i].Connections == nil {
			to[i].Connections = new(int)
		}
	}
	return nil
}

// addressesOf returns a counter for each address, which the addresses of an allocation
// share, and the families of the addresses.
func addressesOf(records []allocnet.Record) (counts map[netip.Addr]*int, families map[uint8]bool) {
	counts, families = map[netip.Addr]*int{}, map[uint8]bool{}
	for i := range records {
		n := new(int)
		for _, a := range addresses(&records[i]) {
			counts[a] = n
			if a.Is4() {
				families[unix.AF_INET] = true
			} else {
				families[unix.AF_INET6] = true
			}
		}
	}
	return counts, families
}

// addresses returns the addresses inside an allocation.
func addresses(r *allocnet.Record) (all []netip.Addr) {
	if r.Status == nil {
		return nil
	}
	for _, i := range r.Status.Interfaces {
		for _, a := range i.Addresses {
			if p, err := netip.ParsePrefix(a.Address); err == nil && i.Sandbox != "" {
				all = append(all, p.Addr())
			}
		}
	}
	return all
}
