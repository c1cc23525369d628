package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/portmap"
)

const changeNotes = `The others stay as they are, and so do their connections. All changes
of a command take effect in one transaction.

With --revision, nothing is changed if the allocation has another revision than
the one that setup, inspect or an earlier change printed with --json.`

func newPublish(a *app) *cobra.Command {
	var revision string
	var gone []string
	c := &cobra.Command{
		Use:   "publish ID PORT...",
		Short: "Publish host ports while an allocation runs (unpublish ends it)",
		Long: `Publish host ports of an allocation that is set up. A PORT is written as for
setup: [label=][hostIP:]hostPort[-endPort][:containerPort[-endPort]][/protocol[+protocol...]].
A port without a protocol is published for tcp and udp. With hostPort 0, each call
picks another free host port.
` + changeNotes,
		Example: `  allocnet publish web 8443:443/tcp
  allocnet publish web 8080:81/tcp --unpublish 8080/tcp`,
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: a.completeAfterID(nothing),
		RunE:              func(c *cobra.Command, args []string) error { return a.update(c, args[0], revision, args[1:], gone) },
	}
	c.Flags().StringArrayVar(&gone, "unpublish", nil, "host port to unpublish in the same transaction; may be repeated")
	c.Flags().StringVar(&revision, "revision", "", "revision that the allocation must have")
	_ = c.RegisterFlagCompletionFunc("unpublish", a.completeValues(hostPorts))
	return c
}

func newUnpublish(a *app) *cobra.Command {
	var revision string
	c := &cobra.Command{
		Use:   "unpublish ID PORT...",
		Short: "Unpublish host ports of an allocation while it runs",
		Long: `Unpublish host ports of an allocation that is set up, and end the connections to them.
A PORT is [hostIP:]hostPort[-endPort][/protocol[+protocol...]]; without a host IP, it is
unpublished on every address, and without a protocol, for every protocol.
` + changeNotes,
		Example:           `  allocnet unpublish web 8443/tcp`,
		Annotations:       map[string]string{namedBy: "publish"},
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: a.completeAfterID(hostPorts),
		RunE:              func(c *cobra.Command, args []string) error { return a.update(c, args[0], revision, nil, args[1:]) },
	}
	c.Flags().StringVar(&revision, "revision", "", "revision that the allocation must have")
	return c
}

// update publishes and unpublishes host ports of an allocation.
func (a *app) update(c *cobra.Command, id, revision string, publish, unpublish []string) error {
	change := configurator.Change{Revision: revision}
	var err error
	if change.Publish, err = parsePorts(publish); err != nil {
		return usagef("%w", err)
	}
	if change.Unpublish, err = parsePorts(unpublish); err != nil {
		return usagef("port to unpublish: %w; an example is 8443/tcp", errors.Unwrap(err)) // not the example of Parse
	}
	a.showStatus()
	return a.change(c, id, func(s allocnet.Service, id string) (*configurator.Status, error) {
		return s.Update(c.Context(), id, change)
	}, func(status *configurator.Status) {
		a.printPorts(status.Ports)
		a.printWarnings(status.Warnings)
	})
}

// change changes an allocation, and prints its status.
func (a *app) change(c *cobra.Command, id string, change func(allocnet.Service, string) (*configurator.Status, error), print func(*configurator.Status)) error {
	conf, err := a.service()
	if err != nil {
		return err
	}
	if id, err = wholeID(c.Context(), conf, id, isPrefix(shownID)); err != nil {
		return err
	}
	before, err := conf.Get(c.Context(), id)
	if err != nil {
		return notFound(c.Context(), conf, id, err)
	}
	status, err := change(conf, id)
	if err != nil {
		return unservedChange(c.Name(), id, notFound(c.Context(), conf, id, err))
	}
	if a.flags.json {
		return a.out.JSON(status)
	}
	result := "changed"
	if status.Revision == before.Revision {
		result = "as it was before"
	}
	a.out.Printf("%s %s is %s\n", a.out.Paint(term.Green, a.out.Mark()), a.out.Paint(term.Bold, id), result)
	print(status)
	return nil
}

func parsePorts(texts []string) (ports []portmap.Port, err error) {
	for _, text := range texts {
		port, err := portmap.Parse(text)
		if err != nil {
			return nil, err
		}
		ports = append(ports, port)
	}
	return ports, nil
}
