package main

import (
	"context"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
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

// completeAfterID completes the ID of an allocation, and then values that it has.
func (a *app) completeAfterID(values func(*configurator.Record) []cobra.Completion) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return a.completeIDs(c, args, prefix)
		}
		if c.Args != nil && c.Args(c, append(args, prefix)) != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.completeValues(values)(c, args, prefix)
	}
}

// completeValues completes values of the allocation that the first argument names, without those
// that the other arguments have already.
func (a *app) completeValues(values func(*configurator.Record) []cobra.Completion) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		var list []cobra.Completion
		if r := a.completedRecord(c.Context(), args); r != nil {
			list = values(r)
		}
		return slices.DeleteFunc(withPrefix(prefix, list), func(v cobra.Completion) bool {
			value, _, _ := strings.Cut(v, "\t")
			return slices.Contains(args[1:], value)
		}), cobra.ShellCompDirectiveNoFileComp
	}
}

// completedRecord returns the record of the allocation that the first argument names, or nil.
func (a *app) completedRecord(ctx context.Context, args []string) *configurator.Record {
	conf := a.completionConfigurator()
	if conf == nil || len(args) == 0 {
		return nil
	}
	id, err := wholeID(ctx, conf, args[0], isPrefix(shownID))
	if err != nil {
		return nil
	}
	r, err := conf.Get(ctx, id)
	if err != nil {
		return nil
	}
	return r
}

// nothing completes no value.
func nothing(*configurator.Record) []cobra.Completion { return nil }

// otherNetworks returns the networks that an allocation does not have.
func (a *app) otherNetworks(r *configurator.Record) []cobra.Completion {
	return slices.DeleteFunc(a.networkCompletions(), func(n cobra.Completion) bool {
		name, _, _ := strings.Cut(n, "\t")
		return has(r, name)
	})
}

// addedInterfaces returns the interfaces of an allocation that detach may remove.
func addedInterfaces(r *configurator.Record) (list []cobra.Completion) {
	for _, n := range r.Networks {
		if n.Interface != rtnl.LoopbackName {
			list = append(list, cobra.CompletionWithDesc(n.Interface, n.Network))
		}
	}
	return list[min(1, len(list)):] // without the first network
}

// hostPorts returns the host ports of an allocation, as unpublish takes them.
func hostPorts(r *configurator.Record) (list []cobra.Completion) {
	for _, i := range portItems(r.Ports) {
		from, to := i.ends()
		list = append(list, cobra.CompletionWithDesc(from+"/"+i.protocols, join([]string{"to port " + to, i.Label})))
	}
	return list
}

// completeNetworkNames completes the names of the networks.
func (a *app) completeNetworkNames(_ *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return withPrefix(prefix, a.networkCompletions()), cobra.ShellCompDirectiveNoFileComp
}

// networkCompletions returns the names of the networks. It reads the directory itself, because
// a Configurator would create the state directory.
func (a *app) networkCompletions() (names []cobra.Completion) {
	if a.flags.fromEnvironment() != nil || a.flags.absolute() != nil {
		return nil
	}
	_ = a.flags.adopt() // as well as it can be
	embedded, err := conflist.Embedded(conflist.EmbeddedOptions{StateDir: a.flags.stateDir})
	if err != nil {
		return nil
	}
	networks, _ := conflist.New(a.flags.confDir, embedded).Networks()
	for _, n := range networks {
		names = append(names, cobra.CompletionWithDesc(n.Name, strings.Join(n.PluginTypes(), " ")))
	}
	return names
}

// completeFilter completes the keys of ls --filter, and the values that are known.
func (a *app) completeFilter(_ *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	key, _, found := strings.Cut(prefix, "=")
	if !found {
		keys := []cobra.Completion{"network=", "state=", "label="}
		return withPrefix(prefix, keys), cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
	}
	var list []cobra.Completion
	switch key {
	case "network":
		list = a.networkCompletions()
	case "state":
		list = slices.Clone(knownStates)
	}
	for i := range list {
		list[i] = key + "=" + list[i]
	}
	return withPrefix(prefix, list), cobra.ShellCompDirectiveNoFileComp
}

// withPrefix returns the completions that begin with a prefix.
func withPrefix(prefix string, list []cobra.Completion) []cobra.Completion {
	return slices.DeleteFunc(list, func(c cobra.Completion) bool { return !strings.HasPrefix(c, prefix) })
}
