package settings

import (
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// Problem returns err as a problem of a setting whose value was accepted by Load, with
// the place that set it: its flag, its variable, or its line in the file.
func (s Source) Problem(key string, err error) *Error {
	e := &Error{Origin: s.Path(), Key: key, Problem: strings.Join(strings.Fields(err.Error()), " ")}
	i := slices.IndexFunc(table, func(one setting) bool { return one.key() == key })
	if i < 0 {
		return e
	}
	t := &table[i]
	switch {
	case s.Flags.has(t):
		e.Origin = "flag --" + t.flag()
	case slices.ContainsFunc(s.Environ, func(entry string) bool {
		name, text, _ := strings.Cut(entry, "=")
		return name == t.variable() && text != ""
	}):
		e.Origin = "environment variable " + t.variable()
	default:
		e.Line = s.line(t)
	}
	return e
}

// has reports whether a setting is on the command line.
func (f *Flags) has(t *setting) bool {
	return f != nil && slices.ContainsFunc(f.given, func(one *flag) bool { return one.setting == t && one.texts != nil })
}

// line returns the line of a setting in the file; 0 if it is not there.
func (s Source) line(t *setting) int {
	data, err := contents(s.Path(), s.Wary)
	if err != nil {
		return 0
	}
	file, diagnostics := hclsyntax.ParseConfig(data, s.Path(), hcl.InitialPos)
	if diagnostics.HasErrors() {
		return 0
	}
	bodies := []*hclsyntax.Body{file.Body.(*hclsyntax.Body)}
	if t.block != "" {
		inner := bodies[0].Blocks
		bodies = nil
		for _, b := range inner {
			if b.Type == t.block {
				bodies = append(bodies, b.Body)
			}
		}
	}
	for _, body := range bodies {
		if a := body.Attributes[t.name]; a != nil {
			return a.NameRange.Start.Line
		}
	}
	return 0
}
