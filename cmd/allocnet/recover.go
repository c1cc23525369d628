package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/configurator"
)

func newRecover(a *app) *cobra.Command {
	var scope string
	c := &cobra.Command{
		Use:   "recover",
		Short: "Remove unfinished allocations",
		Long: `Remove allocations whose setup or teardown was interrupted or is incomplete. The
daemon does so when it starts; without it, the next setup, teardown or gc of the
allocation does. Allocations that are set up stay as they are. The command waits for
running operations.`,
		Example: `  allocnet recover
  allocnet recover --scope my-scheduler --json`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(c *cobra.Command, _ []string) error { return a.recover(c, scope) },
	}
	scopeFlag(c, &scope, "only allocations of this scope (default: all scopes)")
	return c
}

// recover also prints the removed allocations if others could not be removed.
func (a *app) recover(c *cobra.Command, scope string) error {
	conf, err := a.service()
	if err != nil {
		return err
	}
	done := a.progress("removing unfinished allocations")
	report, err := conf.RecoverScope(c.Context(), configurator.Scope{Name: scope})
	done()
	if report == nil {
		return err
	}
	if a.flags.json {
		return errors.Join(err, a.out.JSON(report))
	}
	if err == nil || len(report.Removed) > 0 {
		a.out.Printf("removed %s\n", term.Plural(len(report.Removed), "unfinished allocation"))
	}
	for _, id := range report.Removed {
		a.out.Printf("  %s %s\n", a.out.Paint(term.Red, "-"), id)
	}
	return err
}
