package settings

import (
	"slices"
	"strings"
)

// Values are all settings by key, each as a text, a list of them, a number or a
// boolean is written.
func (s Settings) Values() map[string]string {
	all := map[string]string{}
	for i := range table {
		all[table[i].key()] = quoted(table[i].in(&s))
	}
	return all
}

// Changes tells what is different in s, by key: what a reload can put in force,
// and what needs a restart.
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

// Keep gives s the settings of running that need a restart.
func (s *Settings) Keep(running *Settings) {
	for i := range table {
		if t := &table[i]; !t.live {
			_ = t.in(s).set(t.in(running).get()) // it was accepted before
		}
	}
}

// join is a value as a flag shows it.
func join(k kind, got []string) string {
	shown := strings.Join(got, ",")
	if k == boolean && shown == "false" || k == number && shown == "0" {
		return ""
	}
	return shown
}
