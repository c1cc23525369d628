package main

import (
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// completionConfigurator returns a Configurator for completion, which runs without prepare
// and must change nothing.
func (a *app) completionConfigurator() *configurator.Configurator {
	a.flags.logLevel = "off"
	if a.flags.fromEnvironment() != nil || a.flags.absolute() != nil {
		return nil
	}
	_ = a.flags.adopt() // as well as it can be
	if _, err := os.Stat(a.flags.stateDir); err != nil {
		return nil
	}
	conf, err := a.configurator()
	if err != nil {
		return nil
	}
	return conf
}

// completeIDs completes IDs of allocations that the command line does not have yet.
func (a *app) completeIDs(c *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	conf := a.completionConfigurator()
	if conf == nil || len(args) > 0 && c.Args != nil && c.Args(c, append(args, prefix)) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	records, _ := conf.List(c.Context())
	var ids []cobra.Completion
	for i := range records {
		r := &records[i]
		if strings.HasPrefix(r.ID, prefix) && !slices.Contains(args, r.ID) {
			ids = append(ids, cobra.CompletionWithDesc(r.ID, join([]string{string(r.Phase), networkNames(r), addressesOf(r)})))
		}
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}

// completeNetworks completes the names of the networks for --network. It reads the directory
// itself, because a Configurator would create the state directory.
func (a *app) completeNetworks(c *cobra.Command) {
	complete := func(_ *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if a.flags.fromEnvironment() != nil || a.flags.absolute() != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		_ = a.flags.adopt() // as well as it can be
		embedded, err := conflist.Embedded(conflist.EmbeddedOptions{StateDir: a.flags.stateDir})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		networks, _ := conflist.New(a.flags.confDir, embedded).Networks()
		var names []cobra.Completion
		for _, n := range networks {
			if strings.HasPrefix(n.Name, prefix) {
				names = append(names, cobra.CompletionWithDesc(n.Name, strings.Join(n.PluginTypes(), " ")))
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
	_ = c.RegisterFlagCompletionFunc("network", complete)
}
