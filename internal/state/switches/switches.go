// Package switches enables forwarding on the host, records what that changes below /proc/sys, and sets it back.
package switches

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/flock"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/smallfile"
)

// The switches that make the host forward packets. The kernel sets those of all links with them.
const (
	forward4 = "net/ipv4/ip_forward"
	forward6 = "net/ipv6/conf/all/forwarding"
)

// followers are the switches of each link, and of all and default, that enabling changes: the kernel those of
// forwarding and redirects, and Store accept_ra. See ip-sysctl.rst of the kernel.
var followers = []string{
	"net/ipv4/conf/*/forwarding", "net/ipv4/conf/*/accept_redirects",
	"net/ipv6/conf/*/forwarding", "net/ipv6/conf/*/accept_ra",
}

// Store is the record of a state directory. It is safe for concurrent use, also by several processes. A nil Store
// records nothing.
type Store struct {
	path string
	mu   sync.Mutex
}

// In returns the record in a state directory, which need not exist.
func In(stateDir string) *Store { return &Store{path: filepath.Join(stateDir, "switches.json")} }

// Switch is a switch that was changed. Its name is a path below /proc/sys.
type Switch struct {
	Name   string `json:"name"`
	Before string `json:"before"`
	After  string `json:"after"`
}

// Forward makes the host forward packets of the given families. Links that accept router advertisements go on
// with it: without that, the kernel would delete the routes that they have learnt, among them default routes. What
// changes is recorded before.
func (s *Store) Forward(v4, v6 bool) error {
	off4, err4 := isOff(forward4, v4)
	off6, err6 := isOff(forward6, v6)
	if err := errors.Join(err4, err6); err != nil || !off4 && !off6 {
		return err
	}
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	before, err := values()
	if err != nil {
		return err
	}
	if err := s.note(before, func(name string) string { return foreseen(name, before[name], off4, off6) }); err != nil {
		return err
	}
	if err := enable(before, off4, off6); err != nil {
		return err
	}
	after, err := values()
	if err != nil {
		return err
	}
	return s.note(before, func(name string) string { return after[name] })
}

// isOff reports whether a switch is wanted and off.
func isOff(name string, wanted bool) (bool, error) {
	if !wanted {
		return false, nil
	}
	value, err := rtnl.Sysctl(name)
	return value == "0", err
}

// enable enables forwarding of the families. The routers of links stay routers of the host.
func enable(before map[string]string, v4, v6 bool) error {
	if v6 {
		for name, value := range before {
			if learns(name, value) {
				if err := rtnl.SetSysctl(name, "2"); err != nil && !errors.Is(err, fs.ErrNotExist) { // the link may be gone
					return fmt.Errorf("keep the routes of router advertisements: %w", err)
				}
			}
		}
		if err := rtnl.SetSysctl(forward6, "1"); err != nil {
			return err
		}
	}
	if v4 {
		return rtnl.SetSysctl(forward4, "1")
	}
	return nil
}

// learns reports whether a switch makes a link accept router advertisements as long as it does not forward, unless the
// link leads to a container.
func learns(name, value string) bool {
	link := filepath.Base(filepath.Dir(name))
	return strings.HasPrefix(name, "net/ipv6/") && filepath.Base(name) == "accept_ra" && value == "1" &&
		!slices.Contains([]string{"all", "default", "lo"}, link) && !strings.HasPrefix(link, names.VethPrefix)
}

// foreseen returns the value that a switch is going to have, as far as that matters after a crash.
func foreseen(name, value string, v4, v6 bool) string {
	switch {
	case name == forward4 && v4, name == forward6 && v6:
		return "1"
	case v6 && learns(name, value):
		return "2"
	}
	return value
}

// values returns the switches that enabling may change.
func values() (map[string]string, error) {
	names := []string{forward4, forward6}
	for _, pattern := range followers {
		found, err := filepath.Glob(filepath.Join("/proc/sys", pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range found {
			names = append(names, strings.TrimPrefix(path, "/proc/sys/"))
		}
	}
	all := make(map[string]string, len(names))
	for _, name := range names {
		value, err := rtnl.Sysctl(name)
		if errors.Is(err, fs.ErrNotExist) { // the link is gone, or the kernel has no IPv6
			continue
		}
		if err != nil {
			return nil, err
		}
		all[name] = value
	}
	return all, nil
}

// note records the switches whose value is not that of before, and those that setting back would change. What was recorded
// earlier stays.
func (s *Store) note(before map[string]string, after func(name string) string) error {
	if s == nil {
		return nil
	}
	list, err := s.read()
	if err != nil {
		return err
	}
	known := make(map[string]int, len(list))
	for i, c := range list {
		known[c.Name] = i
	}
	for name, was := range before {
		is := after(name)
		i, recorded := known[name]
		switch {
		case is == "" || is == was && !resets(name, was):
		case recorded:
			list[i].After = is
		default:
			list = append(list, Switch{name, was, is})
		}
	}
	if len(list) == 0 {
		return nil
	}
	slices.SortFunc(list, func(a, b Switch) int { return strings.Compare(a.Name, b.Name) })
	data, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return smallfile.ReplaceOwn(s.path, s.path+".new", data)
}

// resets reports whether the kernel changes a switch when it stops to forward, though it did not when it began.
func resets(name, value string) bool {
	return name == "net/ipv4/conf/all/accept_redirects" || filepath.Base(name) == "forwarding" && value == "1"
}

// Record records that a switch of a link is going to have a value, unless it has it.
func (s *Store) Record(name, value string) error {
	if s == nil {
		return nil
	}
	was, err := rtnl.Sysctl(name)
	if err != nil || was == value {
		return err
	}
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	return s.note(map[string]string{name: was}, func(string) string { return value })
}

// maxSize bounds the record in bytes: some switches for each link of a host.
const maxSize = 16 << 20

func (s *Store) read() (list []Switch, err error) {
	data, err := smallfile.ReadOwn(s.path, maxSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("record of changed switches: %s: %w", s.path, err)
	}
	return list, nil
}

// Pending reports whether switches were changed and not set back.
func (s *Store) Pending() bool {
	_, err := os.Lstat(s.path)
	return !errors.Is(err, fs.ErrNotExist)
}

// Changed returns the switches that were changed and not set back.
func (s *Store) Changed() ([]Switch, error) { return s.read() }

// SetBack sets the recorded switches back to what they were, unless another program has changed them meanwhile, if
// idle returns true. It does not lose what idle has not seen: if idle returns false afterwards, SetBack
// enables forwarding again.
func (s *Store) SetBack(idle func() (bool, error)) error {
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	list, err := s.read()
	if err != nil || len(list) == 0 {
		return err
	}
	if is, err := idle(); err != nil || !is {
		return err
	}
	if err := setBack(list); err != nil {
		return err
	}
	if is, err := idle(); err == nil && is {
		return os.Remove(s.path)
	}
	recorded := func(name string) bool {
		return slices.ContainsFunc(list, func(c Switch) bool { return c.Name == name })
	}
	before, err := values()
	if err != nil {
		return err
	}
	return enable(before, recorded(forward4), recorded(forward6))
}

// setBack sets switches back. The kernel changes those of links with the ones of the host, so these come first. A link
// that accepts router advertisements although it forwards stops that last.
func setBack(list []Switch) error {
	var errs []error
	read := func(name string) string {
		value, err := rtnl.Sysctl(name)
		if !errors.Is(err, fs.ErrNotExist) { // the link may be gone
			errs = append(errs, err)
		}
		return value
	}
	present := make([]string, len(list))
	for i, c := range list {
		present[i] = read(c.Name)
	}
	set := func(ofHost bool) {
		for i, c := range list {
			if present[i] == "" || ofHost != (c.Name == forward4 || c.Name == forward6) {
				continue
			}
			value := present[i] // another program's
			if value == c.After {
				value = c.Before
			}
			if err := rtnl.SetSysctl(c.Name, value); !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	set(true)
	set(false)
	return errors.Join(errs...)
}

// lock locks the record for this goroutine of this process.
func (s *Store) lock() (unlock func(), err error) {
	if s == nil {
		return func() {}, nil
	}
	s.mu.Lock()
	if err = os.MkdirAll(filepath.Dir(s.path), 0o700); err == nil {
		var fd int
		if fd, err = unix.Open(s.path+".lock", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600); err == nil {
			if err = flock.Wait(context.Background(), fd, unix.LOCK_EX); err == nil {
				return func() { unix.Close(fd); s.mu.Unlock() }, nil
			}
			unix.Close(fd)
		}
	}
	s.mu.Unlock()
	return nil, fmt.Errorf("record of changed switches: %s: %w", s.path, err)
}
