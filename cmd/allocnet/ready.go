package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/configurator"
)

func newReady(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "ready",
		Short: "Check whether setup can be expected to work",
		Long: `Check whether setup can be expected to work: the networks exist, the native plugins
accept their configurations, and the plugins are ready (CNI STATUS). If the daemon is running, it checks itself and all of its networks;
those of --network must be among them.`,
		Annotations:       exits("setup cannot be expected to work"),
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(c *cobra.Command, _ []string) error { return a.ready(c) },
	}
}

// errNotReady is in the error if the host is not ready.
var errNotReady = errors.New("not ready")

// missing returns ErrUnknownNetwork for networks of --network that the daemon does not have,
// because the daemon does not get the flag. A Configurator checks them itself.
func (a *app) missing(conf allocnet.Service, networks []configurator.Network) error {
	if !asksDaemon(conf) {
		return nil
	}
	var errs []error
	for _, name := range a.flags.networks {
		if name != "" && !slices.ContainsFunc(networks, func(n configurator.Network) bool { return n.Name == name }) {
			errs = append(errs, fmt.Errorf("%w: network %q: the daemon has no valid configuration of this name", configurator.ErrUnknownNetwork, name))
		}
	}
	return errors.Join(errs...)
}

// ready prints whether an ADD can be expected to succeed.
func (a *app) ready(c *cobra.Command) error {
	conf, err := a.service()
	if err != nil {
		return err
	}
	done := a.progress("checking the networks")
	err = conf.Ready(c.Context())
	done()
	var networks []configurator.Network
	var broken []*configurator.NetworkError
	if !errors.Is(err, client.ErrNoAnswer) { // another question would only wait as well
		networks, broken = conf.Networks(c.Context())
	}
	if a.unasked(broken) == nil && !errors.Is(err, client.ErrNoAnswer) {
		a.warnSkipped(broken) // also if the host is ready: the files need a repair
		err = errors.Join(a.missing(conf, networks), err)
	}
	switch {
	case err != nil && c.Context().Err() != nil:
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", errNotReady, err)
	case a.flags.json:
		return a.out.JSON(map[string]bool{"ready": true})
	}
	a.out.Printf("%s ready\n", a.out.Paint(term.Green, a.out.Mark()))
	return nil
}
