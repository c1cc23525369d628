package confmanager

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/allocnet/allocnet/internal/state/conflist"
)

// State is what the manager knows. It is a value of its own: nobody changes it
// later, and nobody may change its slice.
type State struct {
	// Primary is the network that we delegate to, File where it came from ("" for
	// the embedded one), Since when its configuration was first seen. All are empty
	// until there is one, and stay when it goes away.
	Primary string
	File    string
	Since   time.Time

	// OwnFile is the path of our own file; Written is that it holds what it has to.
	OwnFile string
	Written bool

	// NotReady is why an ADD cannot work now; nil is ready.
	NotReady error

	// Problems are what somebody has to mend, ready or not: each names the file, the
	// place and what to do. errors.As finds a *conflist.FileError in those of a file
	// in ConfDir, or of ConfDir itself.
	Problems []error
}

// newState describes the moment. reasons are why the network is not ready; problems
// are none of these, for what cannot be watched will be seen in the end.
func (m *Manager) newState(broken []*conflist.FileError, problems []error, reasons ...error) State {
	s := State{OwnFile: m.own.path, Written: m.want != nil && m.own.kept}
	for _, p := range append(problems, m.contested()) {
		if p != nil {
			s.Problems = append(s.Problems, p)
		}
	}
	for _, b := range broken {
		if b.File != m.own.path {
			s.Problems = append(s.Problems, b)
		}
	}
	if m.active != nil {
		s.Primary, s.File, s.Since = m.active.Name, m.active.File, m.since
		reasons = append(reasons, m.o.Usable(m.active))
	}
	s.NotReady = errors.Join(reasons...)
	return s
}

// earlier reports the networks that runtimes take before ours.
func (m *Manager) earlier(networks []*conflist.Network) []error {
	var errs []error
	for _, n := range networks {
		if n.File != "" && n.File < m.own.path {
			errs = append(errs, &conflist.FileError{File: n.File, Err: fmt.Errorf(
				"sorts before %q, so runtimes use network %q without allocnet: rename the file so that it sorts after it",
				filepath.Base(m.own.path), n.Name)})
		}
	}
	if !m.begun { // nothing is looked at before
		return nil
	}
	for _, n := range m.dir.Ours() {
		if n.File < m.own.path {
			errs = append(errs, &conflist.FileError{File: n.File, Err: fmt.Errorf(
				"sorts before %q, so runtimes go by it, and nobody keeps it up to date: remove it, or rename it so that it sorts after that",
				filepath.Base(m.own.path))})
		}
	}
	return errs
}

func (s State) equal(t State) bool {
	return s.samePrimary(t) && s.Written == t.Written && text(s.NotReady) == text(t.NotReady) &&
		slices.Equal(texts(s.Problems), texts(t.Problems))
}

func (s State) samePrimary(t State) bool {
	return s.Primary == t.Primary && s.File == t.File && s.Since.Equal(t.Since)
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func texts(errs []error) []string {
	var ts []string
	for _, err := range errs {
		ts = append(ts, text(err))
	}
	return ts
}

// publish makes s the state, and tells of it if it is another one.
func (m *Manager) publish(s State, networks []*conflist.Network) {
	defer m.looked()
	s.Problems = append(s.Problems, m.earlier(networks)...)
	m.mu.Lock()
	old := m.state
	m.state, m.networks = s, networks
	m.mu.Unlock()
	if s.equal(old) {
		return
	}
	m.log(s, old)
	if m.o.OnChange != nil {
		m.o.OnChange(s)
	}
}

// log says each thing when it becomes true, not at every look at it.
func (m *Manager) log(s, old State) {
	if !s.samePrimary(old) {
		m.o.Logger.Info("primary network", "name", s.Primary, "file", s.File)
	}
	known := texts(old.Problems)
	for _, p := range s.Problems {
		if !slices.Contains(known, p.Error()) {
			m.o.Logger.Warn("network configuration", "error", p)
		}
	}
	if len(old.Problems) > 0 && len(s.Problems) == 0 {
		m.o.Logger.Info("network configuration: all problems are gone")
	}
	if text(s.NotReady) == text(old.NotReady) {
		return
	}
	if s.NotReady != nil {
		m.o.Logger.Warn("network is not ready", "reason", s.NotReady)
	} else {
		m.o.Logger.Info("network is ready", "name", s.Primary)
	}
}
