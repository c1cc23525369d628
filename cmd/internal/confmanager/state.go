package confmanager

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/allocnet/allocnet/internal/state/conflist"
)

// State is a snapshot of the manager's state. The caller must not change its slice.
type State struct {
	// Primary is the network that allocnet delegates to, File its file ("" for the
	// embedded one) and Since the time when its configuration was first seen. They are
	// empty until there is a primary network, and stay when it is removed.
	Primary string
	File    string
	Since   time.Time

	// OwnFile is the path of the own file; Written reports whether it is up to date.
	OwnFile string
	Written bool

	// NotReady is why an ADD cannot succeed now, or nil.
	NotReady error

	// Problems need a repair by the administrator, whether the network is ready or not:
	// each names the file, the position and the correction. errors.As finds a
	// *conflist.FileError in problems of ConfDir and of files in it.
	Problems []error
}

// newState returns the current State. Problems with watches do not affect readiness, because
// changes are seen later without them.
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

// earlier returns a problem for each network that runtimes use before the manager's.
func (m *Manager) earlier(networks []*conflist.Network) []error {
	var errs []error
	for _, n := range networks {
		if n.File != "" && n.File < m.own.path {
			errs = append(errs, &conflist.FileError{File: n.File, Err: fmt.Errorf(
				"sorts before %q, so runtimes use network %q without allocnet: rename the file so that it sorts after it",
				filepath.Base(m.own.path), n.Name)})
		}
	}
	if !m.begun { // before that nothing is read
		return nil
	}
	for _, n := range m.dir.Ours() {
		if n.File < m.own.path {
			errs = append(errs, &conflist.FileError{File: n.File, Err: fmt.Errorf(
				"sorts before %q, so runtimes use it, and no manager updates it: remove it, or rename it so that it sorts after that",
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

// publish sets the state. If it has changed, publish logs it and calls OnChange.
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

// log logs only changes of the state.
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
