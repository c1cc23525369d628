package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/configurator"
)

// noBandwidth is the value of --bandwidth that ends all limits.
const noBandwidth = "none"

func newSet(a *app) *cobra.Command {
	var revision, limits, policyText string
	var labels []string
	var allowReserved bool
	c := &cobra.Command{
		Use:   "set ID",
		Short: "Change labels, bandwidth and policy of an allocation while it runs",
		Long: `Change labels, limits of bandwidth and the network policy of an allocation that is set
up, in one change. What is not named stays as it is.

--bandwidth is written as for setup and replaces all limits: a direction that is not
named has none afterwards, and "none" removes the limits of both. An existing
limit is changed in place, without interruption. The native plugin bandwidth must have
set the limits.

--policy replaces the policy, and "none" removes it: see ` + "`allocnet policy --help`" + `.
Connections that the new policy denies end.

With --revision, nothing is changed if the allocation has another revision than
the one that setup, inspect or an earlier change printed with --json.`,
		Example: `  allocnet set web --label tier=front --label canary-
  allocnet set web --bandwidth ingress=100M,egress=10M
  allocnet set web --bandwidth none
  allocnet set web --policy web.json
  allocnet set web --policy egress-only,no-private`,
		Annotations:       map[string]string{namedBy: "inspect"},
		Args:              oneID,
		ValidArgsFunction: a.completeIDs,
		RunE: func(c *cobra.Command, args []string) error {
			change := configurator.Change{Revision: revision, AllowReservedLabels: allowReserved}
			var err error
			if change.Labels, err = parseLabels(labels); err != nil {
				return err
			}
			if c.Flags().Changed("policy") {
				if change.Policy, err = a.readPolicy("--policy", policyText); err != nil {
					return err
				}
			}
			if c.Flags().Changed("bandwidth") {
				if change.Bandwidth, err = parseNewBandwidth(limits); err != nil {
					return usagef("--bandwidth: %w", err)
				}
			}
			return a.change(c, args[0], func(s allocnet.Service, id string) (*configurator.Status, error) {
				return s.Update(c.Context(), id, change)
			}, func(*configurator.Status) {})
		},
	}
	c.Flags().StringArrayVarP(&labels, "label", "l", nil, "KEY=VALUE sets a label, KEY- removes it; may be repeated")
	reservedFlag(c, &allowReserved)
	c.Flags().StringVar(&limits, "bandwidth", "", "limits in bits per second: ingress=RATE[:BURST],egress=RATE[:BURST], or none")
	c.Flags().StringVar(&revision, "revision", "", "revision that the allocation must have")
	policyFlag(c, &policyText, "network policy in place of the present one: FILE, -, PRESET[,PRESET...] or none")
	c.MarkFlagsOneRequired("label", "bandwidth", "policy")
	for _, name := range []string{"label", "bandwidth"} {
		_ = c.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
	return c
}

// reservedFlag adds the flag that permits labels of namespaces.
func reservedFlag(c *cobra.Command, allow *bool) {
	c.Flags().BoolVar(allow, "allow-reserved-labels", false, "permit labels of namespaces, which allocnet policy translate --json prints")
}

// parseNewBandwidth is parseBandwidth, with the zero value for no limits.
func parseNewBandwidth(text string) (*configurator.Bandwidth, error) {
	if text == noBandwidth {
		return &configurator.Bandwidth{}, nil
	}
	return parseBandwidth(text)
}

// parseLabels reads labels with their values, and those to be removed, which end in a hyphen.
func parseLabels(texts []string) (map[string]*string, error) {
	labels := map[string]*string{}
	for _, text := range texts {
		key, value, set := strings.Cut(text, "=")
		removed, remove := strings.CutSuffix(text, "-")
		switch {
		case set:
			labels[key] = &value
		case remove:
			labels[removed] = nil
		default:
			return nil, usagef("--label %q: must be KEY=VALUE, or KEY- to remove the label", text)
		}
	}
	return labels, nil
}
