package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/configurator"
)

func newHistory(a *app) *cobra.Command {
	var limit int
	c := &cobra.Command{
		Use:     "history [ID]",
		Aliases: []string{"logs"},
		Short:   "Show operations that have ended",
		Long: `Show the operations on an allocation, or the latest ones on all allocations, oldest
first: who did what and when, how long each step took, what failed, why something was
restored, and what had to be removed by force. A CHECK is shown only if it failed. On a terminal, the list of all
allocations shows the kind of an error; its text is in the history of the allocation.

The daemon, this program and the CNI plugin append to the same journal below the state
directory, so the allocation may be torn down already. The journal has a maximum size
(setting history.size); the oldest operations are dropped.`,
		Example: `  allocnet history web-1
  allocnet history --limit 1000 --json | jq '.[] | select(.error)'`,
		Annotations:       exits("the journal has no operation on this ID"),
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeIDs,
		RunE: func(c *cobra.Command, args []string) error {
			if limit < 1 {
				return usagef("--limit %d: must be at least 1", limit)
			}
			if len(args) == 0 {
				return a.historyOfAll(c.Context(), limit)
			}
			return a.history(c.Context(), args[0], limit)
		},
	}
	c.Flags().IntVarP(&limit, "limit", "n", 50, "maximum number of operations, the latest")
	return c
}

// history prints the operations on one allocation.
func (a *app) history(ctx context.Context, id string, limit int) error {
	a.id = id
	conf, err := a.service()
	if err != nil {
		return err
	}
	entries, err := conf.History(ctx, configurator.HistoryQuery{ID: id, Limit: limit})
	if err == nil && len(entries) == 0 {
		entries, err = historyOfShort(ctx, conf, id, limit)
	}
	if err != nil {
		return err
	}
	if a.flags.json {
		err = a.out.JSON(entries)
	} else {
		for i := range entries {
			a.printEntry(&entries[i])
		}
	}
	if err == nil && len(entries) == 0 {
		err = fmt.Errorf("history: %w: no operation on %q is in the journal", configurator.ErrNotFound, id)
	}
	return err
}

// historyOfShort returns the operations on the allocation with a short form of an ID. The
// allocation may have no record any more.
func historyOfShort(ctx context.Context, conf allocnet.Service, short string, limit int) ([]configurator.HistoryEntry, error) {
	all, err := conf.History(ctx, configurator.HistoryQuery{})
	if err != nil {
		return nil, err
	}
	var ids []string
	of := slices.DeleteFunc(all, func(e configurator.HistoryEntry) bool { return !isPrefix(minPrefix)(short, e.ID) })
	for _, e := range of {
		if !slices.Contains(ids, e.ID) {
			ids = append(ids, e.ID)
		}
	}
	if len(ids) > 1 {
		return nil, usagef("%q is the beginning of several IDs: %s", short, strings.Join(ids, ", "))
	}
	return of[max(0, len(of)-limit):], nil
}

// historyOfAll prints the latest operations.
func (a *app) historyOfAll(ctx context.Context, limit int) error {
	conf, err := a.service()
	if err != nil {
		return err
	}
	entries, err := conf.History(ctx, configurator.HistoryQuery{Limit: limit})
	if err != nil {
		return err
	}
	if a.flags.json {
		return a.out.JSON(entries)
	}
	if len(entries) == 0 {
		a.err.Printf("no operation is in the journal\n")
		return nil
	}
	var rows [][]term.Cell
	for i := range entries {
		e := &entries[i]
		result := term.Cell{Text: "ok", Style: term.Green}
		if e.Error != "" {
			result = term.Cell{Text: e.Kind + ": " + e.Error, Style: term.Red}
			if a.out.Columns > 0 { // the texts would make a narrow column of many lines
				result.Text = e.Kind
			}
		}
		rows = append(rows, []term.Cell{
			{Text: e.Time.Local().Format(time.DateTime), Style: term.Plain}, {Text: e.Operation, Style: term.Plain}, {Text: shortID(e.ID), Style: term.Plain},
			{Text: tookText(e.Seconds), Style: term.Plain}, {Text: e.Program, Style: term.Plain}, result,
		})
	}
	a.out.Table([]string{"TIME", "OPERATION", "ID", "TOOK", "PROGRAM", "RESULT"}, rows)
	return nil
}

// printEntry prints an operation with its steps.
func (a *app) printEntry(e *configurator.HistoryEntry) {
	result := a.out.Paint(term.Green, "ok")
	if e.Error != "" {
		result = a.out.Paint(term.Red, e.Kind)
	}
	words := []string{e.Operation}
	for _, w := range []string{strings.Join(e.Networks, ","), string(e.Engine)} {
		if w != "" {
			words = append(words, w)
		}
	}
	a.out.Printf("%s  %s %s in %s, by %s\n", a.out.Paint(term.Bold, e.Time.Local().Format("2006-01-02 15:04:05.000")),
		strings.Join(words, " "), result, tookText(e.Seconds), e.Program)
	if e.Cause != "" {
		a.out.Printf("    cause: ")
		a.out.Folded(11, term.Plain, e.Cause)
	}
	for _, s := range e.Steps {
		a.out.Printf("    %-10s %10s", s.Step, tookText(s.Seconds))
		switch {
		case s.Error == "":
			a.out.Printf("\n")
		case s.Error == e.Error: // which follows
			a.out.Printf("  %s\n", a.out.Paint(term.Red, "failed"))
		default:
			a.out.Printf("  ")
			a.out.Folded(27, term.Red, s.Error)
		}
	}
	if e.Error != "" {
		a.out.Printf("    %s ", a.out.Paint(term.Red, "error:"))
		a.out.Folded(11, term.Plain, e.Error)
	}
	for _, l := range e.Forced {
		a.out.Printf("    %s %s\n", a.out.Paint(term.Yellow, "removed by force:"), l)
	}
}

// tookText returns a duration in seconds as a text.
func tookText(seconds float64) string {
	return time.Duration(seconds * float64(time.Second)).Round(10 * time.Microsecond).String()
}
