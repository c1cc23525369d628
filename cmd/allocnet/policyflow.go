package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/cmd/internal/netpolicy"
	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/policy"
)

func newPolicyExplain(a *app) *cobra.Command {
	var to, from string
	c := &cobra.Command{
		Use:   "explain ID (--to PEER | --from PEER) SERVICE",
		Short: "Show which rules decide on a connection",
		Long: `Show which rules decide on a connection of an allocation: those of the policies of its
network and of the allocation, and, if the other end is an allocation as well, those of
its policies. A connection needs the permission of all of them. The labels and policies
are those that the allocations have now. No packet is sent and nothing is changed.

PEER is an address, the ID of an allocation, or host. SERVICE is written as in a policy:
tcp/443, udp/53, or icmp/8. For a connection from outside to a host port, give the
client's address and the port of the allocation. host stands for every address of the
host, those of the allocation's gateways first: presets such as no-private allow these,
and deny others, at which for example a name server of the host listens.

On a bridge, an allocation with a policy sends and receives no packet with an IPv6
link-local, multicast or broadcast address, whatever the rules are: the rule shown is
then "bridge: no link-local" or "bridge: no multicast or broadcast".`,
		Example: `  allocnet policy explain web --to 10.0.0.7 tcp/443
  allocnet policy explain db --from web tcp/5432`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: a.completeAfterID(nothing),
		RunE: func(c *cobra.Command, args []string) error {
			return a.explain(c.Context(), args[0], to, from, args[1])
		},
	}
	c.Flags().StringVar(&to, "to", "", "the other end, for a connection from the allocation")
	c.Flags().StringVar(&from, "from", "", "the other end, for a connection to the allocation")
	c.MarkFlagsOneRequired("to", "from")
	c.MarkFlagsMutuallyExclusive("to", "from")
	for _, name := range []string{"to", "from"} {
		_ = c.RegisterFlagCompletionFunc(name, a.completePeers)
	}
	return c
}

func (a *app) completePeers(c *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	list, directive := a.completeIDs(c, nil, prefix)
	if strings.HasPrefix("host", prefix) {
		list = append(list, "host")
	}
	return list, directive
}

// explanation is the decision on a connection over one pair of addresses.
type explanation struct {
	From    netip.Addr         `json:"from"`
	To      netip.Addr         `json:"to"`
	Service string             `json:"service"`
	Verdict policy.Verdict     `json:"verdict"`
	Reasons []netpolicy.Reason `json:"reasons"`
	mine    netip.Addr         // the end that was asked about
}

// decidedAs reports whether the decisions on another address of the other end are the same.
func (e *explanation) decidedAs(other *explanation) bool {
	return e.mine == other.mine && slices.Equal(e.Reasons, other.Reasons)
}

// explain prints which rules decide on a connection.
func (a *app) explain(ctx context.Context, id, to, from, service string) error {
	flow, err := policy.ParseFlow(service)
	if err != nil {
		return usagef("%w", err)
	}
	conf, err := a.service()
	if err != nil {
		return err
	}
	own, err := recordOf(ctx, conf, id)
	if err != nil {
		return err
	}
	records, err := conf.List(ctx)
	if err != nil {
		return err
	}
	host, err := netpolicy.New(records)
	if err != nil {
		return err
	}
	peers, err := peersOf(ctx, conf, host, own, to+from)
	if err != nil {
		return err
	}
	list := []explanation{}
	for _, mine := range addressList(own) {
		for _, peer := range peers {
			if peer.Is4() != mine.Is4() || !ofFamily(flow.Protocol, mine) {
				continue
			}
			e := explanation{From: mine, To: peer, Service: flow.String(), Verdict: policy.Allow, mine: mine}
			if from != "" {
				e.From, e.To = peer, mine
			}
			reasons, err := host.Explain(e.From, e.To, flow)
			switch {
			case errors.Is(err, netpolicy.ErrUndecided):
				return err
			case err != nil:
				return usagef("%w", err)
			}
			e.Reasons = append([]netpolicy.Reason{}, reasons...)
			if netpolicy.Denial(e.Reasons) != nil {
				e.Verdict = policy.Deny
			}
			list = append(list, e)
		}
	}
	if len(list) == 0 {
		return usagef("%s: %s has no address of the same family as %s", service, own.ID, to+from)
	}
	return a.printExplanations(host, list)
}

// ofFamily reports whether a protocol exists in the family of an address.
func ofFamily(protocol uint8, of netip.Addr) bool {
	switch policy.ProtocolName(protocol) {
	case "icmp":
		return of.Is4()
	case "icmpv6":
		return of.Is6()
	}
	return true
}

func recordOf(ctx context.Context, conf allocnet.Service, id string) (*configurator.Record, error) {
	id, err := wholeID(ctx, conf, id, isPrefix(minPrefix))
	if err != nil {
		return nil, err
	}
	r, err := conf.Get(ctx, id)
	if err != nil {
		return nil, notFound(ctx, conf, id, err)
	}
	if len(addressList(r)) == 0 {
		return nil, fmt.Errorf("explain: allocation %q has no address", id)
	}
	return r, nil
}

// addressList returns the addresses inside of an allocation.
func addressList(r *configurator.Record) (list []netip.Addr) {
	if r.Status == nil {
		return nil
	}
	for _, i := range r.Status.Interfaces {
		for _, a := range i.Addresses {
			p, err := netip.ParsePrefix(a.Address)
			if err != nil || i.Sandbox == "" || slices.Contains(list, p.Addr().Unmap()) { // a virtual machine has the same
				continue
			}
			list = append(list, p.Addr().Unmap())
		}
	}
	return list
}

// peersOf returns the addresses of a peer. Those of the host begin with the gateways of the allocation.
func peersOf(ctx context.Context, conf allocnet.Service, host *netpolicy.Host, of *configurator.Record, peer string) ([]netip.Addr, error) {
	if addr, err := netip.ParseAddr(peer); err == nil && addr.Zone() == "" {
		return []netip.Addr{addr.Unmap()}, nil
	}
	if _, err := netip.ParsePrefix(peer); peer == "" || peer == "world" || peer == "metadata" || err == nil || strings.ContainsAny(peer, ":%") {
		return nil, usagef("%q is not a peer: give an address without zone, the ID of an allocation, or host", peer)
	}
	if peer != "host" {
		r, err := recordOf(ctx, conf, peer)
		if err != nil {
			return nil, err
		}
		return addressList(r), nil
	}
	all := host.Addresses()
	var list []netip.Addr
	for _, i := range of.Status.Interfaces {
		for _, a := range i.Addresses {
			gateway, err := netip.ParseAddr(a.Gateway)
			if err == nil && slices.Contains(all, gateway.Unmap()) && !slices.Contains(list, gateway.Unmap()) {
				list = append(list, gateway.Unmap())
			}
		}
	}
	for _, addr := range all {
		if !slices.Contains(list, addr) {
			list = append(list, addr)
		}
	}
	return list, nil
}

func (a *app) printExplanations(host *netpolicy.Host, list []explanation) error {
	if a.flags.json {
		return a.out.JSON(list)
	}
	for i, e := range list {
		if i > 0 && !e.decidedAs(&list[i-1]) {
			a.out.Printf("\n")
		}
		verdict := a.out.Paint(term.Green, "allowed")
		if denial := netpolicy.Denial(e.Reasons); denial != nil {
			verdict = fmt.Sprintf("%s by %s of %s", a.out.Paint(term.Red, "denied"), denial.Rule, denial.Policy())
		}
		a.out.Printf("%s -> %s, %s: %s\n", host.Describe(e.From), host.Describe(e.To), e.Service, verdict)
		if i+1 < len(list) && e.decidedAs(&list[i+1]) {
			continue // the reasons follow once
		}
		if len(e.Reasons) == 0 {
			a.out.Printf("no policy applies\n")
			continue
		}
		rows := make([][]term.Cell, len(e.Reasons))
		for i, r := range e.Reasons {
			rows[i] = []term.Cell{{Text: r.Policy(), Style: term.Plain}, {Text: r.Direction + " of " + r.Allocation, Style: term.Plain}, verdictCell(r.Verdict), {Text: r.Rule, Style: term.Plain}}
		}
		a.out.Table([]string{"POLICY OF", "DIRECTION", "VERDICT", "RULE"}, rows)
	}
	return nil
}
