package main

import (
	"errors"
	"strings"

	"github.com/allocnet/allocnet/configurator"
)

// shownID is how much lists show of an ID of a runtime, which is 64 digits long.
const shownID = 12

// minPrefix is how much of such an ID stands for it.
const minPrefix = 4

// runtimeID cuts the ID that a runtime gave, all hexadecimal digits, from what comes
// after it, the interface of one attachment.
func runtimeID(id string) (digits, rest string, ok bool) {
	end := strings.IndexFunc(id, func(r rune) bool { return !strings.ContainsRune("0123456789abcdef", r) })
	if end < 0 {
		end = len(id)
	}
	return id[:end], id[end:], end >= 32
}

// shortID is what lists show of an ID. Commands accept it.
func shortID(id string) string {
	digits, rest, ok := runtimeID(id)
	if !ok {
		return id
	}
	return digits[:shownID] + rest
}

// standsFor reports whether a short form is that of an ID: the first digits, with or
// without what comes after them. Of an ID that people gave, nothing less than all
// stands for it: a repeated teardown of web must not be one of web-2.
func standsFor(short, id string) bool {
	digits, rest, ok := runtimeID(id)
	if !ok || len(short) < minPrefix {
		return false
	}
	return strings.HasPrefix(id, short) ||
		rest != "" && strings.HasSuffix(short, rest) && len(short)-len(rest) >= minPrefix && strings.HasPrefix(digits, strings.TrimSuffix(short, rest))
}

// wholeID is the ID that a short form stands for; what stands for none stays as it is.
func wholeID(conf service, short string) (string, error) {
	if _, err := conf.Get(short); !errors.Is(err, configurator.ErrNotFound) {
		return short, nil
	}
	records, _ := conf.List() // what cannot be read has no short form
	switch found := standingFor(short, records); len(found) {
	case 0:
		return short, nil
	case 1:
		return found[0], nil
	default:
		return "", ambiguous(short, found)
	}
}

// standingFor are the IDs that a short form can stand for.
func standingFor(short string, records []configurator.Record) (found []string) {
	for _, r := range records {
		if standsFor(short, r.ID) {
			found = append(found, r.ID)
		}
	}
	return found
}

func ambiguous(short string, found []string) error {
	return usagef("ID %q: stands for %d allocations: %s", short, len(found), strings.Join(found, ", "))
}

// liveIDs are the IDs that others stand for. One that stands for several attachments of
// one container stands for all of them.
func liveIDs(conf service, given []string) ([]string, error) {
	var live []string
	var records []configurator.Record
	for _, id := range given {
		if _, err := conf.Get(id); !errors.Is(err, configurator.ErrNotFound) {
			live = append(live, id)
			continue
		}
		if records == nil {
			records, _ = conf.List() // what cannot be read has no short form
		}
		found := standingFor(id, records)
		for _, one := range found {
			if container(one) != container(found[0]) {
				return nil, ambiguous(id, found)
			}
		}
		if len(found) == 0 {
			found = []string{id}
		}
		live = append(live, found...)
	}
	return live, nil
}

// container is the ID of a runtime without what comes after it.
func container(id string) string {
	digits, _, _ := runtimeID(id)
	return digits
}

// naturally compares texts as people do: numbers in them by their value.
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

// number is what a text begins with of decimal digits.
func number(text string) string {
	return text[:len(text)-len(strings.TrimLeft(text, "0123456789"))]
}

// filter is what --filter wants of allocations.
type filter struct{ networks, states []string }

func parseFilter(texts []string) (f filter, err error) {
	for _, text := range texts {
		key, value, _ := strings.Cut(text, "=")
		switch {
		case value == "":
			return f, usagef("--filter %q: must be network=NAME or state=STATE", text)
		case key == "network":
			f.networks = append(f.networks, value)
		case key == "state":
			f.states = append(f.states, value)
		default:
			return f, usagef("--filter %q: there is network=NAME and state=STATE, and no %s", text, key)
		}
	}
	return f, nil
}

// passes reports whether an allocation has one of the networks and is in one of the
// states; none means any.
func (f filter) passes(r *configurator.Record) bool {
	matches := func(wanted []string, has func(string) bool) bool {
		for _, w := range wanted {
			if has(w) {
				return true
			}
		}
		return len(wanted) == 0
	}
	return matches(f.networks, func(n string) bool { return has(r, n) }) &&
		matches(f.states, func(s string) bool { return s == string(r.Phase) && !r.NetnsGone || s == "gone" && r.NetnsGone })
}
