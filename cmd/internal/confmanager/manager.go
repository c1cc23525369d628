package confmanager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/allocnet/allocnet/internal/state/conflist"
)

// Manager keeps the own file in step with the directory while it runs. All its
// methods but Run are safe for concurrent use, and cost nothing.
type Manager struct {
	o   Options
	dir *conflist.Dir
	own ownFile

	begun   bool              // the readiness file was there once
	active  *conflist.Network // the primary network as last seen
	since   time.Time         // when active was first seen
	retired bool              // files that we wrote under other names
	want    []byte            // what the own file has to hold; nil until known
	wrote   []byte            // what was written last
	writes  []time.Time       // that undid what others had done to it, the last ones

	looked func() // ends the wait for the first look
	first  <-chan struct{}

	mu       sync.Mutex
	state    State
	networks []*conflist.Network

	// What tests replace.
	now   func() time.Time
	timer func(time.Duration) (<-chan time.Time, func() bool)
	watch func() (*fsnotify.Watcher, error)
}

// State is what was true at the last look.
func (m *Manager) State() State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

// firstPatience is how long Ready waits for the first look.
const firstPatience = 2 * time.Second

// Ready returns nil if a new allocation can be expected to get the primary
// network, else the reason, as State has it. Just before the first look there is no
// other reason than that: it is waited for.
func (m *Manager) Ready() error {
	patience := time.NewTimer(firstPatience)
	defer patience.Stop()
	select {
	case <-m.first:
	case <-patience.C:
	}
	return m.State().NotReady
}

// Networks returns the networks in force at the last look, by file name, the
// embedded one last: each as last read well, until its file is removed. Nobody may
// change them.
func (m *Manager) Networks() []*conflist.Network {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.networks
}

// Run follows the directory until ctx ends, which is no error. The own file stays
// as it is then. It may run again, but not twice at once.
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

// look brings everything up to date. Watches come first: what changes while the
// files are read is seen next time.
func (m *Manager) look(w *watch) {
	watching := w.follow(m.o)
	missing := m.readinessFile()
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

// maxTries bounds how often our file may be edited while the others are read.
const maxTries = 5

// read returns what the directory holds beside our own file. An edit of that file
// has to be undone first: with the primary's name in it, it would stand in for the
// primary. The error is that it could not be, and nothing is known.
func (m *Manager) read() (networks []*conflist.Network, broken []*conflist.FileError, err error) {
	own := func(n *conflist.Network) bool { return n.File == m.own.path }
	for range maxTries {
		_ = m.keep()
		networks, broken = m.dir.Networks()
		if !slices.ContainsFunc(networks, own) {
			return networks, broken, nil
		}
	}
	return m.Networks(), broken, fmt.Errorf("own file %q holds a network of somebody else: remove it, or let the own file have another name", m.own.path)
}

// readinessFile returns why the network is not ready by that file.
func (m *Manager) readinessFile() error {
	if m.o.ReadinessFile == "" {
		return nil
	}
	if _, err := os.Stat(m.o.ReadinessFile); err != nil {
		return fmt.Errorf("readiness file: %w: whoever provides the network has to create it", err)
	}
	return nil
}

// choose finds the primary network and with it what the own file has to hold. Its
// error is that there is no primary network.
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

// unreadable reports, at the start, that the network which was the primary one before
// cannot be read now, and would be it instead of n.
func (m *Manager) unreadable(n *conflist.Network, broken []*conflist.FileError) error {
	if m.active != nil || m.o.Primary != "" {
		return nil
	}
	data, _ := m.own.read()
	before := markOf(data)
	if before == nil || before.PrimaryFile == "" || before.PrimaryFile >= n.File {
		return nil
	}
	for _, b := range broken {
		if b.File == before.PrimaryFile {
			return fmt.Errorf("the primary network cannot be read since the start: %w; or remove the file, for network %q to be the primary one", b, n.Name)
		}
	}
	return nil
}

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
		return fmt.Errorf("primary network %q is gone: put it back: %w", m.active.Name, err)
	}
	return fmt.Errorf("no primary network: %w", err)
}

// keep sees to it that the own file holds what it has to.
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

// Two who write the same file do so about as often as a burst of events ends.
const (
	contestTime   = time.Minute
	contestWrites = 20
)

// contested reports that the own file was written again and again of late: somebody
// else wants it to be otherwise.
func (m *Manager) contested() error {
	m.writes = slices.DeleteFunc(m.writes, func(at time.Time) bool { return m.now().Sub(at) > contestTime })
	if len(m.writes) < contestWrites {
		return nil
	}
	return fmt.Errorf("own file %q was changed by another program, and written again, %d times or more within a minute: stop that program, maybe another allocnetd, or give the own file another name",
		m.own.path, contestWrites)
}

// retireFormer removes, once, our files of other names. Its errors are that it could
// not.
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
			errs = append(errs, fmt.Errorf("own file of before: %w: remove it, or runtimes may go by it", err))
		}
		if removed {
			m.o.Logger.Info("removed network configuration, which has another name now", "file", n.File, "now", m.own.path)
		}
	}
	m.retired = errs == nil
	return errs
}
