package main

import (
	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/configurator"
)

func newAttach(a *app) *cobra.Command {
	var o configurator.AttachOptions
	c := &cobra.Command{
		Use:   "attach ID NETWORK",
		Short: "Add a network to an allocation while it runs",
		Long: `Add a network to an allocation that is set up: an interface in its network
namespace, with addresses and routes. The other networks stay as they are. All
plugins of the network must be native.

With --revision, nothing is changed if the allocation has another revision than
the one that setup, inspect or an earlier change printed with --json.`,
		Example: `  allocnet attach web storage
  allocnet attach web storage --interface data0`,
		Annotations:       map[string]string{namedBy: "networks"},
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: a.completeAfterID(a.otherNetworks),
		RunE: func(c *cobra.Command, args []string) error {
			return a.reattach(c, args[0], func(s allocnet.Service, id string) (*configurator.Status, error) {
				return s.Attach(c.Context(), id, args[1], o)
			})
		},
	}
	c.Flags().StringVar(&o.Interface, "interface", "", "name of the new interface (default the lowest number that is free, as eth1)")
	c.Flags().StringVar(&o.Revision, "revision", "", "revision that the allocation must have")
	return c
}

func newDetach(a *app) *cobra.Command {
	var revision string
	c := &cobra.Command{
		Use:   "detach ID INTERFACE",
		Short: "Remove a network of an allocation while it runs",
		Long: `Remove a network of an allocation that is set up, with its interface. The first
network of an allocation, and one that publishes its host ports, cannot be removed.`,
		Example:           `  allocnet detach web eth1`,
		Annotations:       map[string]string{namedBy: "networks"},
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: a.completeAfterID(addedInterfaces),
		RunE: func(c *cobra.Command, args []string) error {
			return a.reattach(c, args[0], func(s allocnet.Service, id string) (*configurator.Status, error) {
				return s.Detach(c.Context(), id, args[1], revision)
			})
		},
	}
	c.Flags().StringVar(&revision, "revision", "", "revision that the allocation must have")
	return c
}

// reattach changes the networks of an allocation, and prints them.
func (a *app) reattach(c *cobra.Command, id string, change func(allocnet.Service, string) (*configurator.Status, error)) error {
	return a.change(c, id, change, func(status *configurator.Status) {
		a.out.Printf("\n")
		a.printInterfaces(status)
	})
}
