package confmanager

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/fsnotify/fsnotify"
)

// watch tells when something on a trail changes.
type watch struct {
	changed chan struct{} // holds a value after a change

	start   func() (*fsnotify.Watcher, error)
	ignore  func(path string) bool
	trail   trail
	added   []string    // the directories that notify watches
	err     error       // why it does not watch all
	lost    atomic.Bool // events are, so nothing is certain about added
	notify  *fsnotify.Watcher
	pumping sync.WaitGroup
}

func newWatch(start func() (*fsnotify.Watcher, error), ignore func(path string) bool) *watch {
	return &watch{changed: make(chan struct{}, 1), start: start, ignore: ignore}
}

// follow watches what the options lead through now. An error means that some
// changes will be seen late; what could be watched is.
func (w *watch) follow(o Options) error {
	t := trailOf(o)
	// After an error, whatever was in the way may be gone.
	if w.lost.Swap(false) || w.err != nil || !w.holds(t) {
		w.err = w.restart(t)
		if w.err == nil {
			w.signal() // the trail may have changed before it was watched
		}
	}
	return w.err
}

// holds reports whether all of t is still watched. The inode alone does not tell:
// a directory that is removed may leave its number to the next.
func (w *watch) holds(t trail) bool {
	if w.notify == nil {
		return false
	}
	live := w.notify.WatchList()
	return w.trail.equal(t) && !slices.ContainsFunc(w.added, func(dir string) bool { return !slices.Contains(live, dir) })
}

// restart watches t in place of all before. A new watcher is the simplest way to
// be rid of watches on directories that are no longer where they were.
func (w *watch) restart(t trail) error {
	w.close()
	w.trail, w.added = t, nil
	notify, err := w.start()
	if err != nil {
		return limit(fmt.Errorf("watch directories: %w", err))
	}
	w.notify = notify
	w.pumping.Go(func() { w.pump(notify, t) })
	seen := map[*step]bool{}
	var errs []error
	for _, dir := range slices.Sorted(maps.Keys(t)) {
		if seen[t[dir]] {
			continue
		}
		seen[t[dir]] = true
		switch err := notify.Add(dir); {
		case err == nil:
			w.added = append(w.added, dir)
		case !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, limit(fmt.Errorf("watch %q: %w", dir, err)))
		}
	}
	return errors.Join(errs...)
}

// limit says what to do about the kernel's limits.
func limit(err error) error {
	switch {
	case errors.Is(err, syscall.EMFILE):
		return fmt.Errorf("%w: changes are seen late: raise fs.inotify.max_user_instances", err)
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%w: changes are seen late: raise fs.inotify.max_user_watches", err)
	}
	return fmt.Errorf("%w: changes are seen late: make it readable", err)
}

// pump signals the events that matter until notify is closed. An error, such as
// the overflow of the kernel's queue, may hide any event, the end of a watch too.
func (w *watch) pump(notify *fsnotify.Watcher, t trail) {
	for {
		select {
		case e, open := <-notify.Events:
			if !open {
				return
			}
			if path := filepath.Clean(e.Name); t.covers(path) && !w.ignore(path) {
				w.signal()
			}
		case _, open := <-notify.Errors:
			if !open {
				return
			}
			w.lost.Store(true)
			w.signal()
		}
	}
}

func (w *watch) signal() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// close ends all watching.
func (w *watch) close() {
	if w.notify == nil {
		return
	}
	_ = w.notify.Close()
	w.pumping.Wait()
	w.notify = nil
}
