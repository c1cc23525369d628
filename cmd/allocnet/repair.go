package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/wire"
)

func newRepair(a *app) *cobra.Command {
	var scope string
	c := &cobra.Command{
		Use:   "repair",
		Short: "Restore what another program removed from the host",
		Long: `Restore, for every allocation, what another program removed from the host: rules, a
bridge's addresses, sysctls. Run it after ` + "`nft flush ruleset`" + ` or a reload of the
firewall; it can be run at any time.

The interfaces, addresses and connections of allocations stay as they are. What
cannot be restored is reported as broken and must be set up again: interfaces, and
what plugin binaries made for an allocation that ` + "`allocnet ls`" + ` shows.

Attachments that a runtime made with the drop-in plugins (` + "`allocnet plugins install`" + `)
have no record: they are neither restored nor reported. Nomad's jobs with mode =
"bridge" are such attachments; Nomad replaces them at the next restart of its client.`,
		Example: `  allocnet repair
  nft -f /etc/nftables.conf && allocnet repair
  allocnet repair --json | jq -r '.broken[]'`,
		Annotations:       exits("an allocation is broken and must be set up again"),
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(c *cobra.Command, _ []string) error { return a.repair(c, scope) },
	}
	scopeFlag(c, &scope, "only allocations of this scope (default: all scopes)")
	return c
}

// scopeFlag adds --scope to a command that works on many allocations.
func scopeFlag(c *cobra.Command, scope *string, usage string) {
	c.Flags().StringVar(scope, "scope", "", usage)
	_ = c.RegisterFlagCompletionFunc("scope", cobra.NoFileCompletions)
}

// repairReport is the library's report with the reasons for broken allocations.
type repairReport struct {
	configurator.RepairReport
	Reasons map[string]string `json:"reasons"` // by ID
}

// errBroken marks the error of a repair for its hint.
var errBroken = errors.New("broken")

// brokenError replaces errors that the report shows with their allocations.
type brokenError struct {
	count int
	cause error
}

func (e *brokenError) Error() string { return term.Plural(e.count, "allocation") + " broken" }
func (e *brokenError) Unwrap() error { return e.cause }

// repair also prints the report if an allocation is broken.
func (a *app) repair(c *cobra.Command, scope string) error {
	conf, err := a.service()
	if err != nil {
		return err
	}
	done := a.progress("checking all allocations")
	report, err := conf.RepairScope(c.Context(), configurator.Scope{Name: scope})
	done()
	if report == nil {
		return err
	}
	full, err := newRepairReport(report, err)
	if a.flags.json {
		return errors.Join(err, a.out.JSON(full))
	}
	a.printRepair(full, err == nil)
	return err
}

// newRepairReport assigns the joined errors to their allocations. It returns the errors
// that belong to none.
func newRepairReport(r *configurator.RepairReport, err error) (*repairReport, error) {
	full := &repairReport{RepairReport: *r, Reasons: map[string]string{}}
	var causes, others []error
	for _, e := range wire.Each(err) {
		var about *configurator.AllocationError
		if !errors.As(e, &about) {
			others = append(others, e)
			continue
		}
		full.Reasons[about.ID] = strings.TrimPrefix(message(e), fmt.Sprintf("allocation %q: ", about.ID))
		causes = append(causes, e)
	}
	if len(causes) > 0 {
		others = append([]error{&brokenError{len(causes), errors.Join(causes...)}}, others...)
	}
	return full, errors.Join(others...)
}

// printRepair prints the report, as a success only if all allocations could be checked and
// none is broken.
func (a *app) printRepair(r *repairReport, sound bool) {
	mark := ""
	if sound {
		mark = a.out.Paint(term.Green, a.out.Mark()) + " "
	}
	a.out.Printf("%shealthy %d, repaired %d, broken %d\n", mark, len(r.Healthy), len(r.Repaired), len(r.Broken))
	for _, id := range r.Repaired {
		a.out.Printf("  %s %s\n", a.out.Paint(term.Green, "repaired"), id)
	}
	for _, id := range r.Broken {
		a.out.Printf("  %s   %s", a.out.Paint(term.Red, "broken"), a.out.Paint(term.Bold, id))
		if reason := r.Reasons[id]; reason != "" {
			a.out.Printf(": %s", term.Indent(reason, "    ")[4:])
		}
		a.out.Printf("\n")
	}
}
