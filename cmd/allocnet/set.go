package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/configurator"
)

func newSet(a *app) *cobra.Command {
	var revision string
	var labels []string
	c := &cobra.Command{
		Use:   "set ID",
		Short: "Change labels of an allocation while it runs",
		Long: `Change labels of an allocation that is set up. The others stay as they are.

With --revision, nothing is changed if the allocation has another revision than
the one that setup, inspect or an earlier change printed with --json.`,
		Example:           `  allocnet set web --label tier=front --label canary-`,
		Args:              oneID,
		ValidArgsFunction: a.completeIDs,
		RunE: func(c *cobra.Command, args []string) error {
			change := configurator.Change{Revision: revision}
			var err error
			if change.Labels, err = parseLabels(labels); err != nil {
				return err
			}
			return a.change(c, args[0], func(s allocnet.Service, id string) (*configurator.Status, error) {
				return s.Update(c.Context(), id, change)
			}, func(*configurator.Status) {})
		},
	}
	c.Flags().StringArrayVarP(&labels, "label", "l", nil, "KEY=VALUE sets a label, KEY- removes it; may be repeated")
	c.Flags().StringVar(&revision, "revision", "", "revision that the allocation must have")
	_ = c.MarkFlagRequired("label")
	_ = c.RegisterFlagCompletionFunc("label", cobra.NoFileCompletions)
	return c
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
