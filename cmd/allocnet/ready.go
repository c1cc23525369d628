package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

func newReady(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "ready",
		Short: "Tell whether setup can be expected to work",
		Long: `Tell whether setup can be expected to work: the networks are there, and their
plugins say so (CNI STATUS). Where the daemon runs, of all networks, and of the
daemon itself.`,
		Annotations:       exits("setup cannot be expected to work"),
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(c *cobra.Command, _ []string) error { return a.ready(c) },
	}
}

// errNotReady marks the answer no.
var errNotReady = errors.New("not ready")

func (a *app) ready(c *cobra.Command) error {
	conf, err := a.service()
	if err != nil {
		return err
	}
	done := a.progress("asking the networks")
	err = conf.Ready(c.Context())
	done()
	if _, broken := conf.Networks(); a.unasked(broken) == nil {
		a.warnSkipped(broken) // ready or not, somebody has to mend them
	}
	switch {
	case err != nil && c.Context().Err() != nil:
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", errNotReady, err)
	case a.flags.json:
		return a.out.json(map[string]bool{"ready": true})
	}
	a.out.printf("%s ready\n", a.out.paint(green, a.mark()))
	return nil
}
