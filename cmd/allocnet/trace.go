package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/cmd/internal/trace"
	"github.com/allocnet/allocnet/configurator"
)

func newTrace(a *app) *cobra.Command {
	var from, link string
	c := &cobra.Command{
		Use:   "trace ID|PORT[/PROTOCOL]",
		Short: "Follow a host port to the process that answers",
		Long: `Follow each host port of an allocation, or one host port, step by step: the nftables
element that redirects it, processes of the host on the same port, what the tables of all
programs do to a probe and to its answer, connection tracking, the route and the links,
the interface and the process inside the network namespace, and the path of the answer.
It says where the path ends, and why.

The probe is one packet, a TCP SYN or a UDP datagram, that a temporary table of nftables
marks for tracing. Without --from, or if --from is an address of the host, the host
sends it: it passes the hook output. Otherwise it is injected as if it were received
from that client: it passes the hook prerouting. No process receives the probe: the
connection is reset before it is established, and the datagram is dropped before it
reaches the process. The answer does not leave the host; an ICMP error does, if the
kernel or a rule sends one. The kernel removes the table, and the tap for the injection,
also if this process is killed. Rules of legacy iptables and XDP programs are not
traced.

This process executes trace, even if the daemon runs. Nothing else is changed.`,
		Example: `  allocnet trace web-1
  allocnet trace 8080/tcp --from 192.0.2.7`,
		Annotations:       exits("a path ends before the process, or nothing is published"),
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeIDs,
		RunE:              func(c *cobra.Command, args []string) error { return a.trace(c.Context(), args[0], from, link) },
	}
	c.Flags().StringVar(&from, "from", "", "address of the client (default the host itself)")
	c.Flags().StringVar(&link, "link", "", "with --from, the link that receives its packets (default that of the route to it)")
	_ = c.RegisterFlagCompletionFunc("from", cobra.NoFileCompletions)
	_ = c.RegisterFlagCompletionFunc("link", cobra.NoFileCompletions)
	return c
}

// errUnpublished: the allocation has nothing to trace.
var errUnpublished = errors.New("the allocation has no host port")

// errEnds: a path ends before the process.
var errEnds = errors.New("a path ends before the process of the allocation")

// clientAddress checks the flags --from and --link.
func clientAddress(from, link string) (client netip.Addr, err error) {
	if from == "" && link != "" {
		return client, usagef("--link: needs --from, the address of the client")
	}
	if from == "" {
		return client, nil
	}
	if client, err = netip.ParseAddr(from); err != nil || client.Zone() != "" || client.IsUnspecified() {
		return client, usagef("--from %q: must be an address, like 192.0.2.7", from)
	}
	if client.IsLinkLocalUnicast() && client.Is6() {
		return client, usagef("--from %q: link-local addresses of IPv6 cannot be traced", from)
	}
	if link != "" {
		if _, err := net.InterfaceByName(link); err != nil {
			return client, usagef("--link %q: the host has no such link", link)
		}
	}
	return client.Unmap(), nil
}

// trace prints the paths of an allocation, or of one host port.
func (a *app) trace(ctx context.Context, what, from, link string) error {
	client, err := clientAddress(from, link)
	if err != nil {
		return err
	}
	conf, err := a.service()
	if err != nil {
		return err
	}
	targets, err := targetsOf(ctx, conf, what, client)
	if err != nil {
		return err
	}
	paths := []*trace.Path{}
	ends := 0
	for _, t := range targets {
		t.Link = link
		p, err := trace.Follow(ctx, t)
		if err != nil {
			return err
		}
		if paths = append(paths, p); !p.Reached {
			ends++
		}
	}
	if a.flags.json {
		err = a.out.JSON(paths)
	} else {
		for i, p := range paths {
			if i > 0 {
				a.out.Printf("\n")
			}
			a.printPath(p)
		}
		if ends == 0 {
			a.printReached(len(paths), from)
		}
	}
	if err == nil && ends > 0 {
		err = fmt.Errorf("trace %s: %w: %d of %d", what, errEnds, ends, len(paths))
	}
	return err
}

// protocols are the protocols of published ports.
var protocols = []string{"tcp", "udp", "sctp"}

// targetsOf returns the published ports that are to be followed.
func targetsOf(ctx context.Context, conf allocnet.Service, what string, from netip.Addr) ([]trace.Target, error) {
	text, protocol, _ := strings.Cut(what, "/")
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		id, err := wholeID(ctx, conf, what, isPrefix(minPrefix))
		if err != nil {
			return nil, err
		}
		r, err := conf.Get(ctx, id)
		if err != nil {
			return nil, notFound(ctx, conf, id, err)
		}
		targets := trace.Targets(r, from)
		if len(targets) == 0 {
			if from.IsValid() {
				return nil, fmt.Errorf("trace %s: %w in the address family of %s", id, errUnpublished, from)
			}
			return nil, fmt.Errorf("trace %s: %w", id, errUnpublished)
		}
		return targets, nil
	}
	if strings.Contains(what, "/") && !slices.Contains(protocols, protocol) {
		return nil, usagef("trace %s: unknown protocol %q, use one of %s", what, protocol, strings.Join(protocols, ", "))
	}
	records, err := conf.List(ctx)
	var targets []trace.Target
	for i := range records {
		targets = append(targets, trace.Targets(&records[i], from)...)
	}
	targets = slices.DeleteFunc(targets, func(t trace.Target) bool {
		return t.Mapping.HostPort != int(port) || t.Mapping.Protocol != cmp.Or(protocol, t.Mapping.Protocol)
	})
	if len(targets) == 0 {
		return nil, errors.Join(fmt.Errorf("trace %s: %w: no allocation has that host port", what, configurator.ErrNotFound), err)
	}
	return targets, nil
}

// printReached says that all paths reach their process, and for whom.
func (a *app) printReached(paths int, from string) {
	reach := "the path reaches the process"
	if paths > 1 {
		reach = fmt.Sprintf("all %d paths reach the process", paths)
	}
	if from == "" {
		reach += "; packets of clients pass other rules: add --from ADDRESS"
	}
	a.out.Printf("\n%s %s\n", a.out.Paint(term.Green, a.out.Mark()), reach)
}

func (a *app) printPath(p *trace.Path) {
	a.out.Printf("%s\n", a.out.Paint(term.Bold, fmt.Sprintf("%s %s -> %s of %s", p.Protocol, p.Host, p.To, p.ID)))
	styles := map[trace.State]term.Style{trace.OK: term.Green, trace.Note: term.Yellow, trace.Failed: term.Red}
	last := ""
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.IsIdle() {
			continue
		}
		name := s.Name
		if name == last && s.State == trace.OK {
			name = "" // another chain of the same hook
		}
		last = s.Name
		a.out.Printf("  %s %-18s ", a.out.Paint(styles[s.State], fmt.Sprintf("%-6s", s.State)), name)
		const indent = 28
		a.out.Folded(indent, term.Plain, s.Found)
		if s.Next != "" {
			a.out.Printf("%*s", indent, "")
			a.out.Folded(indent, term.Plain, "next: "+s.Next)
		}
	}
}
