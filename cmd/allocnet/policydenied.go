package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/netpolicy"
	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/policy"
)

func newPolicyDenied(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "denied [ID]",
		Short: "List the flows that network policies have denied",
		Long: `List the flows of one or all allocations whose packets network policies have dropped
within the last five minutes, those with the most packets first. Each flow is shown with
the rule that denies it now. If there were too many flows, the number of packets whose
flows are not listed is shown. The daemon also publishes the flows as events. Nothing is
changed.`,
		Example: `  allocnet policy denied
  allocnet policy denied web --json | jq '.flows[0].rule'`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeIDs,
		RunE:              func(c *cobra.Command, args []string) error { return a.denied(c.Context(), args) },
	}
}

// denied prints the flows that policies have dropped, of the allocation in args or of all.
func (a *app) denied(ctx context.Context, args []string) error {
	d, err := a.readDenied(ctx)
	if err != nil {
		return fmt.Errorf("read the flows that network policies have denied: %w", err)
	}
	if len(args) > 0 {
		conf, err := a.service()
		if err != nil {
			return err
		}
		id, err := wholeID(ctx, conf, args[0], isPrefix(minPrefix))
		if err != nil {
			return err
		}
		if _, err := conf.Get(ctx, id); err != nil {
			return notFound(ctx, conf, id, err)
		}
		d.Flows = slices.DeleteFunc(d.Flows, func(f client.DeniedFlow) bool { return f.ID != id })
		d.Unlisted = slices.DeleteFunc(d.Unlisted, func(u client.UnlistedDenials) bool { return u.ID != id })
	}
	if a.flags.json {
		return a.out.JSON(d)
	}
	a.printDenied(d)
	return nil
}

// readDenied reads the flows from the daemon, or in this process if no daemon runs.
func (a *app) readDenied(ctx context.Context) (*client.HostDenials, error) {
	daemon, err := a.daemon()
	if err != nil {
		return nil, err
	}
	if daemon != nil {
		return daemon.Denials(ctx)
	}
	conf, err := a.configurator()
	if err != nil {
		return nil, err
	}
	rules, err := netpolicy.OpenRules()
	if err != nil {
		return nil, err
	}
	reader := &netpolicy.Reader{Service: conf}
	if rules != nil {
		defer rules.Close()
		reader.Rules = rules
	}
	return reader.Denials(ctx), nil
}

func (a *app) printDenied(d *client.HostDenials) {
	if len(d.Flows)+len(d.Problems)+len(d.Unlisted)+d.Omitted == 0 {
		a.err.Printf("no flow was denied in the last five minutes\n")
	} else if len(d.Flows) > 0 {
		rows := make([][]term.Cell, len(d.Flows))
		for i := range d.Flows {
			f := &d.Flows[i]
			rows[i] = term.Cells(shortID(f.ID), f.Direction, peerOf(f), serviceOf(f), fmt.Sprint(f.Packets), ruleOf(f), policyOf(f))
		}
		a.out.Table([]string{"ID", "DIRECTION", "PEER", "SERVICE", "PACKETS", "RULE", "POLICY OF"}, rows)
	}
	if d.Omitted > 0 {
		a.out.Printf("and %s of other allocations or with fewer packets\n", term.Plural(d.Omitted, "more flow"))
	}
	for _, u := range d.Unlisted {
		a.out.Printf("%s %s: the list was full; the flows of %s are not listed\n", shortID(u.ID), u.Direction, term.Plural(int(u.Packets), "denied packet"))
	}
	for _, p := range d.Problems {
		a.warn("%s", p)
	}
}

func peerOf(f *client.DeniedFlow) string {
	if f.PeerID != "" {
		return fmt.Sprintf("%s (%s)", f.Peer, shortID(f.PeerID))
	}
	return f.Peer
}

// serviceOf returns the service of a flow in the notation of policies.
func serviceOf(f *client.DeniedFlow) string {
	if _, err := policy.ParseFlow(f.Protocol + "/1"); err != nil {
		return "protocol " + f.Protocol
	}
	return fmt.Sprintf("%s/%d", f.Protocol, f.Port)
}

// ruleOf returns the rule of a flow, which no policy may deny any more.
func ruleOf(f *client.DeniedFlow) string { return cmp.Or(f.Rule, "(changed since)") }

func policyOf(f *client.DeniedFlow) string {
	switch {
	case f.Rule == "":
		return ""
	case f.Network != "":
		return "network " + f.Network
	}
	return "allocation " + shortID(f.ID)
}
