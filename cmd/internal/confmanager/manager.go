package confmanager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/allocnet/allocnet/cmd/internal/readiness"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// Manager updates its own file according to the directory while it runs. All methods
// except Run are safe for concurrent use.
type Manager struct {
	o   Options
	dir *conflist.Dir
	own ownFile

	begun   bool              // the readiness file has existed once
	active  *conflist.Network // the primary network as last seen
	since   time.Time         // when active was first seen
	retired bool              // own files with former names have been removed
	want    []byte            // the content for the own file; nil until known
	wrote   []byte            // the content written last
	writes  []time.Time       // recent times at which changes by others were undone

	looked func() // signals the end of the first look
	first  <-chan struct{}

	mu       sync.Mutex
	state    State
	networks []*conflist.Network

	// Replaced by tests.
	now   func() time.Time
	timer func(time.Duration) (<-chan time.Time, func() bool)
	watch func() (*fsnotify.Watcher, error)
}

// State returns the state at the last look.
func (m *Manager) State() State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

// firstTimeout is the longest time that Ready waits for the first look.
const firstTimeout = 2 * time.Second

// Ready returns nil if a new allocation can be expected to get the primary network, and
// otherwise the reason in State. It waits for the first look.
func (m *Manager) Ready() error {
	timeout := time.NewTimer(firstTimeout)
	defer timeout.Stop()
	select {
	case <-m.first:
	case <-timeout.C:
	}
	return m.State().NotReady
}

// Networks returns the active networks at the last look, by file name, the embedded one
// last. Each has the last valid content of its file until the file is removed. The caller
// must not change them.
func (m *Manager) Networks() []*conflist.Network {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.networks
}

// Run manages the directory until ctx ends and then returns nil. It leaves the own file
// unchanged. Calls must not overlap.
func (m *Manager) Run(ctx context.Context) error {
	w := newWatch(m.watch, m.own.isTemp)
	defer w.close()
	m.own.removeTemps()
	for ctx.Err() == nil {
		m.look(w)
		m.wait(ctx, w.changed)
	}
	return nil
}

// look reads everything and updates the own file. It sets the watches first, so that changes
// during the reading cause another look.
func (m *Manager) look(w *watch) {
	watching := w.follow(m.o)
	missing := readiness.CheckFile(m.o.ReadinessFile)
	if missing == nil {
		m.begun = true
	}
	if !m.begun {
		m.publish(m.newState(nil, []error{watching}, missing), nil)
		return
	}
	networks, broken, err := m.read()
	if err == nil {
		err = m.choose(networks, broken)
	}
	if m.o.OnRead != nil {
		m.o.OnRead()
	}
	err = errors.Join(err, m.keep())
	m.publish(m.newState(broken, append(m.retireFormer(), watching), missing, err), networks)
}

// maxTries is the number of attempts if the own file is edited while the others are
// read.
const maxTries = 5

// read returns the networks of the directory without the own file. It first undoes
// edits of the own file, which could use the primary network's name. It returns an
// error if that fails.
func (m *Manager) read() (networks []*conflist.Network, broken []*conflist.FileError, err error) {
	own := func(n *conflist.Network) bool { return n.File == m.own.path }
	for range maxTries {
		_ = m.keep()
		networks, broken = m.dir.Networks()
		if !slices.ContainsFunc(networks, own) {
			return networks, broken, nil
		}
	}
	return m.Networks(), broken, fmt.Errorf("own file %q has the network of another program: remove it or choose another name for the own file", m.own.path)
}

// choose selects the primary network and sets the content for the own file. It returns an
// error if there is no primary network.
func (m *Manager) choose(networks []*conflist.Network, broken []*conflist.FileError) error {
	i := slices.IndexFunc(networks, func(n *conflist.Network) bool {
		return m.o.Primary == n.Name || m.o.Primary == "" && n.File != ""
	})
	if i < 0 {
		return m.absent()
	}
	n := networks[i]
	if err := m.unreadable(n, broken); err != nil {
		return err
	}
	if m.active != nil && m.active.File == n.File && string(m.active.Bytes) == string(n.Bytes) {
		return nil
	}
	data, err := m.conflist(n)
	if err != nil {
		return err
	}
	m.active, m.since, m.want = n, m.now(), data
	return nil
}

// unreadable returns an error at the start if the file of the former primary network is
// invalid and that network would be chosen instead of n.
func (m *Manager) unreadable(n *conflist.Network, broken []*conflist.FileError) error {
	if m.active != nil || m.o.Primary != "" {
		return nil
	}
	data, _ := m.own.read()
	before := noteOf(data)
	if before == nil || before.PrimaryFile == "" || before.PrimaryFile >= n.File {
		return nil
	}
	for _, b := range broken {
		if b.File == before.PrimaryFile {
			return fmt.Errorf("the primary network has been unreadable since the start: %w; or remove the file to make network %q the primary one", b, n.Name)
		}
	}
	return nil
}

// absent returns the error for a missing primary network: the configured one, or else
// the last active one.
func (m *Manager) absent() error {
	name := m.o.Primary
	if name == "" && m.active != nil {
		name = m.active.Name
	}
	_, err := m.dir.Lookup(name)
	if err == nil {
		return errors.New("the primary network has just appeared: try again")
	}
	if m.active != nil {
		return fmt.Errorf("primary network %q is gone: restore its file: %w", m.active.Name, err)
	}
	return fmt.Errorf("no primary network: %w", err)
}

// keep writes the own file if its content differs.
func (m *Manager) keep() error {
	if m.want == nil {
		return nil
	}
	written, err := m.own.keep(m.want)
	if written {
		if string(m.wrote) == string(m.want) {
			m.writes = append(m.writes, m.now())
		}
		m.wrote = m.want
		m.o.Logger.Info("wrote network configuration", "file", m.own.path, "delegate", m.active.Name)
	}
	return err
}

// Two programs that write the same file do so about once per burst of events.
const (
	contestTime   = time.Minute
	contestWrites = 20
)

// contested returns an error if another program has repeatedly changed the own file of
// late.
func (m *Manager) contested() error {
	m.writes = slices.DeleteFunc(m.writes, func(at time.Time) bool { return m.now().Sub(at) > contestTime })
	if len(m.writes) < contestWrites {
		return nil
	}
	return fmt.Errorf("own file %q was changed by another program and rewritten %d times or more within a minute: stop that program, maybe another allocnetd, or choose another name for the own file",
		m.own.path, contestWrites)
}

// retireFormer removes own files with former names, once. It returns an error for each
// file that it could not remove.
func (m *Manager) retireFormer() (errs []error) {
	if m.retired || m.o.Owner == "" || !m.own.kept {
		return nil
	}
	for _, n := range m.dir.Ours() {
		if n.File == m.own.path {
			continue
		}
		removed, err := retire(n.File, m.o.Owner)
		if err != nil {
			errs = append(errs, fmt.Errorf("former own file: %w: remove it, because runtimes may use it", err))
		}
		if removed {
			m.o.Logger.Info("removed the network configuration under its former name", "file", n.File, "now", m.own.path)
		}
	}
	m.retired = errs == nil
	return errs
}
