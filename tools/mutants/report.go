package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

var kinds = []string{kindCondition, kindCall, kindBoundary, kindInt, kindString}

func loadOutcomes(work string) ([]*outcome, error) {
	var outcomes []*outcome
	err := readJSON(filepath.Join(work, "outcomes.json"), &outcomes)
	slices.SortFunc(outcomes, func(a, b *outcome) int {
		return cmp.Or(cmp.Compare(a.State, b.State), cmp.Compare(a.Site.File, b.Site.File), cmp.Compare(a.Site.Line, b.Site.Line))
	})
	return outcomes, err
}

// reportStep prints the share of the mutants that tests found, and the others.
func reportStep(c *config, _ []string) error {
	outcomes, err := loadOutcomes(c.work)
	if err != nil {
		return err
	}
	fmt.Println("| kind | mutants | found | survived | not reached | found |")
	fmt.Println("|---|---|---|---|---|---|")
	for _, kind := range append(kinds, "all") {
		n := map[string]int{}
		for _, o := range outcomes {
			if kind == "all" || o.Site.Kind == kind {
				n["all"]++
				n[o.State]++
			}
		}
		fmt.Printf("| %s | %d | %d | %d | %d | %.1f%% |\n", kind, n["all"], n[stateKilled], n[stateSurvived], n[stateNotReached],
			100*float64(n[stateKilled])/float64(max(1, n["all"])))
	}
	fmt.Println()
	for _, o := range outcomes {
		if o.State != stateKilled {
			fmt.Printf("- %d %s:%d %s %s `%s` in `%s` (%d of %d tests ran)\n", o.Site.ID, o.Site.File, o.Site.Line, o.Site.Kind, o.State,
				short(o.Site.Text), short(o.Site.Source), o.Run, o.Reached)
		}
	}
	return nil
}

func short(s string) string {
	if len(s) > 90 {
		s = s[:90] + "..."
	}
	return strings.ReplaceAll(s, "`", "'")
}

// compareStep prints the mutants whose state differs.
func compareStep(c *config, dirs []string) error {
	if len(dirs) != 2 {
		return fmt.Errorf("compare: name two work directories")
	}
	before, err := loadOutcomes(dirs[0])
	if err != nil {
		return err
	}
	after, err := loadOutcomes(dirs[1])
	if err != nil {
		return err
	}
	now := map[int]*outcome{}
	for _, o := range after {
		now[o.Site.ID] = o
	}
	both, found := 0, [2]int{}
	for _, o := range before {
		n := now[o.Site.ID]
		if n == nil {
			fmt.Printf("gone: %d %s:%d %s (was %s)\n", o.Site.ID, o.Site.File, o.Site.Line, o.Site.Kind, o.State)
			continue
		}
		both++
		for i, state := range []string{o.State, n.State} {
			if state == stateKilled {
				found[i]++
			}
		}
		if o.State != n.State {
			fmt.Printf("%s -> %s: %d %s:%d %s `%s` (before: %s)\n", o.State, n.State, o.Site.ID, n.Site.File, n.Site.Line, n.Site.Kind,
				short(n.Site.Text), o.By)
		}
	}
	fmt.Printf("of %d mutants in both trees, tests found %d before and %d after\n", both, found[0], found[1])
	return nil
}
