package settings

import (
	"slices"
	"strings"
)

// Values returns all settings by key, each in the syntax of the file.
func (s Settings) Values() map[string]string {
	all := map[string]string{}
	for i := range table {
		all[table[i].key()] = quoted(table[i].in(&s))
	}
	return all
}

// Changes returns the keys of the settings that differ: those that a reload activates,
// and those that need a restart.
func (s *Settings) Changes(from *Settings) (live, restart []string) {
	for i := range table {
		t := &table[i]
		switch {
		case slices.Equal(t.in(s).get(), t.in(from).get()):
		case t.live:
			live = append(live, t.key())
		default:
			restart = append(restart, t.key())
		}
	}
	return live, restart
}

// Keep copies the settings that need a restart from running to s.
func (s *Settings) Keep(running *Settings) {
	for i := range table {
		if t := &table[i]; !t.live {
			_ = t.in(s).set(t.in(running).get()) // it was accepted before
		}
	}
}

// join returns a value in the syntax of a flag, or "" for a zero value.
func join(k kind, got []string) string {
	shown := strings.Join(got, ",")
	if k == boolean && shown == "false" || k == number && shown == "0" {
		return ""
	}
	return shown
}
