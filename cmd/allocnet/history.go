package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/configurator"
)

func newHistory(a *app) *cobra.Command {
	var limit int
	c := &cobra.Command{
		Use:     "history [ID]",
		Aliases: []string{"logs"},
		Short:   "Show operations that have ended",
		Long: `Show the operations on an allocation, or the latest ones on all allocations, oldest
first: who did what and when, how long each step took, what failed, and what had to be
removed by force. A CHECK is shown only if it failed. On a terminal, the list of all
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
		err = a.out.json(entries)
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
		return a.out.json(entries)
	}
	if len(entries) == 0 {
		a.err.printf("no operation is in the journal\n")
		return nil
	}
	var rows [][]cell
	for i := range entries {
		e := &entries[i]
		result := cell{"ok", green}
		if e.Error != "" {
			result = cell{e.Kind + ": " + e.Error, red}
			if a.out.columns > 0 { // the texts would make a narrow column of many lines
				result.text = e.Kind
			}
		}
		rows = append(rows, []cell{
			{e.Time.Local().Format(time.DateTime), plain}, {e.Operation, plain}, {shortID(e.ID), plain},
			{tookText(e.Seconds), plain}, {e.Program, plain}, result,
		})
	}
	a.out.table([]string{"TIME", "OPERATION", "ID", "TOOK", "PROGRAM", "RESULT"}, rows)
	return nil
}

// printEntry prints an operation with its steps.
func (a *app) printEntry(e *configurator.HistoryEntry) {
	result := a.out.paint(green, "ok")
	if e.Error != "" {
		result = a.out.paint(red, e.Kind)
	}
	words := []string{e.Operation}
	for _, w := range []string{strings.Join(e.Networks, ","), string(e.Engine)} {
		if w != "" {
			words = append(words, w)
		}
	}
	a.out.printf("%s  %s %s in %s, by %s\n", a.out.paint(bold, e.Time.Local().Format("2006-01-02 15:04:05.000")),
		strings.Join(words, " "), result, tookText(e.Seconds), e.Program)
	for _, s := range e.Steps {
		a.out.printf("    %-10s %10s", s.Step, tookText(s.Seconds))
		switch {
		case s.Error == "":
			a.out.printf("\n")
		case s.Error == e.Error: // which follows
			a.out.printf("  %s\n", a.out.paint(red, "failed"))
		default:
			a.out.printf("  ")
			a.printFolded(27, red, s.Error)
		}
	}
	if e.Error != "" {
		a.out.printf("    %s ", a.out.paint(red, "error:"))
		a.printFolded(11, plain, e.Error)
	}
	for _, l := range e.Forced {
		a.out.printf("    %s %s\n", a.out.paint(yellow, "removed by force:"), l)
	}
}

// tookText returns a duration in seconds as a text.
func tookText(seconds float64) string {
	return time.Duration(seconds * float64(time.Second)).Round(10 * time.Microsecond).String()
}
