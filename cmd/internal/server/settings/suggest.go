package settings

import (
	"fmt"
	"slices"
	"strings"

	"github.com/agext/levenshtein"
)

// known returns a correction for an unknown name in a block; the block is "" for the top
// level.
func known(block, name string) string {
	for i := range table {
		if s := &table[i]; s.name == name && s.block != block {
			if s.block == "" {
				return fmt.Sprintf("%q belongs at the top level", name)
			}
			return fmt.Sprintf("%q belongs in the block %s", name, s.block)
		}
	}
	var here []string
	for i := range table {
		switch s := &table[i]; {
		case s.block == block:
			here = append(here, s.name)
		case block == "" && !slices.Contains(here, s.block):
			here = append(here, s.block)
		}
	}
	if near := nearest(name, here); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return "remove it, or write one of " + strings.Join(here, ", ")
}

// nearest returns the element that name may be a misspelling of, or "".
func nearest(name string, these []string) string {
	const slips = 2
	best, least := "", slips+1
	for _, t := range these {
		if d := levenshtein.Distance(strings.ToLower(name), strings.ToLower(t), nil); d < least {
			best, least = t, d
		}
	}
	return best
}
