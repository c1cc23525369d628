package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/cmd/internal/trace"
	"github.com/allocnet/allocnet/configurator"
)

func newTrace(a *app) *cobra.Command {
	var from string
	c := &cobra.Command{
		Use:   "trace ID|PORT[/PROTOCOL]",
		Short: "Follow a host port to the process that answers",
		Long: `Follow each host port of an allocation, or one host port, step by step: the nftables
element that redirects it, processes of the host on the same port, the route and the
links, the interface and the process inside of the network namespace, the way back.
For TCP, a connection is opened at the end. It says where the path ends, and why.

Nothing is changed. This process does it itself, also if the daemon runs.`,
		Example: `  allocnet trace web-1
  allocnet trace 8080/tcp --from 192.0.2.7`,
		Annotations:       exits("a path ends before the process, or nothing is published"),
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeIDs,
		RunE:              func(c *cobra.Command, args []string) error { return a.trace(c.Context(), args[0], from) },
	}
	c.Flags().StringVar(&from, "from", "", "address of a client, for the way back (default the host itself)")
	_ = c.RegisterFlagCompletionFunc("from", cobra.NoFileCompletions)
	return c
}

// errEnds: a path ends before the process.
var errEnds = errors.New("a path ends before the process of the allocation")

// trace prints the paths of an allocation, or of one host port.
func (a *app) trace(ctx context.Context, what, from string) error {
	var client netip.Addr
	if from != "" {
		var err error
		if client, err = netip.ParseAddr(from); err != nil {
			return usagef("--from %q: must be an address, like 192.0.2.7", from)
		}
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
		p, err := trace.Follow(ctx, t)
		if err != nil {
			return err
		}
		if paths = append(paths, p); !p.Reached {
			ends++
		}
	}
	if a.flags.json {
		err = a.out.json(paths)
	} else {
		for i, p := range paths {
			if i > 0 {
				a.out.printf("\n")
			}
			a.printPath(p)
		}
	}
	if err == nil && ends > 0 {
		err = fmt.Errorf("trace %s: %w: %d of %d", what, errEnds, ends, len(paths))
	}
	return err
}

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
			return nil, fmt.Errorf("trace %s: %w: it has no host ports of that address family", id, configurator.ErrNotFound)
		}
		return targets, nil
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

func (a *app) printPath(p *trace.Path) {
	a.out.printf("%s\n", a.out.paint(bold, fmt.Sprintf("%s %s -> %s of %s", p.Protocol, p.Host, p.To, p.ID)))
	styles := map[trace.State]style{trace.OK: green, trace.Note: yellow, trace.Failed: red}
	for _, s := range p.Steps {
		a.out.printf("  %s %-19s %s\n", a.out.paint(styles[s.State], fmt.Sprintf("%-6s", s.State)), s.Name, s.Found)
		if s.Next != "" {
			a.out.printf("  %6s %-19s next: %s\n", "", "", s.Next)
		}
	}
}
