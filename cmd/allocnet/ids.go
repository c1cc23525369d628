package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/configurator"
)

// shownID is the number of digits of a runtime's ID that lists show; such IDs have 64.
// Commands that change something require at least as many digits, because a shorter
// prefix may soon match another container.
const shownID = 12

// minPrefix is the number of digits of a runtime's ID that read-only commands require.
const minPrefix = 4

// runtimeID splits the ID of an attachment into the runtime's ID, which consists of
// hexadecimal digits, and the interface.
func runtimeID(id string) (digits, rest string, ok bool) {
	end := strings.IndexFunc(id, func(r rune) bool { return !strings.ContainsRune("0123456789abcdef", r) })
	if end < 0 {
		end = len(id)
	}
	return id[:end], id[end:], end >= 32
}

// shortID returns the form of an ID that lists show and all commands accept.
func shortID(id string) string {
	digits, rest, ok := runtimeID(id)
	if !ok {
		return id
	}
	return digits[:shownID] + rest
}

// A shortForm reports whether a text is a short form of an ID. Only IDs of runtimes
// have short forms.
type shortForm func(short, id string) bool

// isPrefix returns a shortForm that accepts at least the given number of first digits, with
// or without the interface.
func isPrefix(least int) shortForm {
	return func(short, id string) bool {
		digits, rest, ok := runtimeID(id)
		if !ok {
			return false
		}
		first := strings.TrimSuffix(short, rest)
		return len(first) >= least && strings.HasPrefix(digits, first) || len(short) > len(digits) && strings.HasPrefix(id, short)
	}
}

// wholeID returns the ID of a short form. Any other text stays unchanged.
func wholeID(ctx context.Context, conf allocnet.Service, short string, is shortForm) (string, error) {
	if _, err := conf.Get(ctx, short); !errors.Is(err, configurator.ErrNotFound) {
		return short, nil
	}
	switch found := standingFor(short, recordsFor(ctx, conf, short), is); len(found) {
	case 0:
		return short, nil
	case 1:
		return found[0], nil
	default:
		return "", ambiguous(short, found)
	}
}

// recordsFor returns the readable records to which a short form may refer; none for an ID
// that is not a runtime's.
func recordsFor(ctx context.Context, conf allocnet.Service, short string) []configurator.Record {
	if digits, _, _ := runtimeID(short); digits == "" {
		return nil
	}
	records, _ := conf.List(ctx)
	return records
}

// standingFor returns the IDs that match a short form.
func standingFor(short string, records []configurator.Record, is shortForm) (found []string) {
	for _, r := range records {
		if is(short, r.ID) {
			found = append(found, r.ID)
		}
	}
	return found
}

func ambiguous(short string, found []string) error {
	return stepError{usagef("ID %q: matches %d allocations: %s", short, len(found), strings.Join(found, ", ")), suggestion(found)}
}

// suggestion joins IDs in their short forms, or in full if the short forms are equal.
func suggestion(found []string) string {
	var shown []string
	for _, id := range found {
		if slices.Contains(shown, shortID(id)) {
			shown = found
			break
		}
		shown = append(shown, shortID(id))
	}
	if len(shown) == 1 {
		return "type " + shown[0]
	}
	return "type one of " + someOf(shown)
}

// notFound adds to ErrNotFound the allocations for which the ID may be too short.
func notFound(ctx context.Context, conf allocnet.Service, id string, err error) error {
	if !errors.Is(err, configurator.ErrNotFound) {
		return err
	}
	if _, getErr := conf.Get(ctx, id); getErr == nil { // it is not the ID that was not found
		step := "`allocnet inspect %s` shows its phase and its interfaces"
		if netnsMissing(err) {
			step = "its network namespace is gone: `allocnet teardown %s` removes what is left on the host"
		}
		return stepError{err, fmt.Sprintf(step, id)}
	}
	if found := standingFor(id, recordsFor(ctx, conf, id), isPrefix(1)); len(found) > 0 {
		return stepError{err, fmt.Sprintf("%q is too short for %s: %s", id, term.Plural(len(found), "ID"), suggestion(found))}
	}
	records, _ := conf.List(ctx)
	if found := standingFor(id, records, isName); len(found) > 0 {
		return stepError{err, fmt.Sprintf("a runtime's ID can have more parts than the container's name: %s", suggestion(found))}
	}
	return err
}

// isName reports whether the ID of an attachment is that of a container with the given
// name. ctr puts the namespace of containerd before it, as in "default-web.eth0". It is a
// shortForm for suggestions only.
func isName(name, id string) bool {
	container := strings.TrimSuffix(id, filepath.Ext(id))
	return name != "" && (container == name || strings.HasSuffix(container, "-"+name))
}

// warnOfShort warns that an ID without a record was not taken as a prefix of other IDs.
func (a *app) warnOfShort(ctx context.Context, conf allocnet.Service, id string) {
	if _, err := conf.Get(ctx, id); !errors.Is(err, configurator.ErrNotFound) {
		return
	}
	if found := standingFor(id, recordsFor(ctx, conf, id), isPrefix(minPrefix)); len(found) > 0 {
		a.warn("no allocation has the ID %q, which is too short for %s: %s", id, term.Plural(len(found), "other"), suggestion(found))
	}
}

// naturally compares texts in natural order: numbers in them by value.
func naturally(a, b string) int {
	whole := strings.Compare(a, b)
	for a != "" && b != "" {
		if x, y := number(a), number(b); x != "" && y != "" {
			a, b = a[len(x):], b[len(y):]
			x, y = strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
			if len(x) != len(y) {
				return len(x) - len(y)
			}
			if c := strings.Compare(x, y); c != 0 {
				return c
			}
			continue
		}
		if a[0] != b[0] {
			return int(a[0]) - int(b[0])
		}
		a, b = a[1:], b[1:]
	}
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return whole
}

// number returns the decimal digits at the beginning of a text.
func number(text string) string {
	return text[:len(text)-len(strings.TrimLeft(text, "0123456789"))]
}

// filter is the condition of --filter.
type filter struct{ networks, states, labels []string }

// knownStates are the states of allocations that ls shows.
var knownStates = []string{string(allocnet.PhaseAdding), string(allocnet.PhaseReady), string(allocnet.PhaseDeleting), "gone"}

func parseFilter(texts []string) (f filter, err error) {
	for _, text := range texts {
		key, value, _ := strings.Cut(text, "=")
		switch {
		case value == "":
			return f, usagef("--filter %q: must be network=NAME, state=STATE or label=KEY[=VALUE]", text)
		case key == "network":
			f.networks = append(f.networks, value)
		case key == "label":
			f.labels = append(f.labels, value)
		case key == "state" && !slices.Contains(knownStates, value):
			return f, usagef("--filter %q: unknown state, use one of %s", text, strings.Join(knownStates, ", "))
		case key == "state":
			f.states = append(f.states, value)
		default:
			return f, usagef("--filter %q: unknown key %s, use network=NAME, state=STATE or label=KEY[=VALUE]", text, key)
		}
	}
	return f, nil
}

// passes reports whether an allocation has one of the networks, one of the states and all of
// the labels; an empty list matches any.
func (f filter) passes(r *configurator.Record) bool {
	matches := func(wanted []string, has func(string) bool) bool {
		for _, w := range wanted {
			if has(w) {
				return true
			}
		}
		return len(wanted) == 0
	}
	for _, label := range f.labels {
		key, value, exact := strings.Cut(label, "=")
		if is, ok := r.Labels[key]; !ok || exact && is != value {
			return false
		}
	}
	return matches(f.networks, func(n string) bool { return has(r, n) }) &&
		matches(f.states, func(s string) bool { return s == string(r.Phase) && !r.NetnsGone || s == "gone" && r.NetnsGone })
}
