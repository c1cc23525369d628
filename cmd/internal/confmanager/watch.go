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

// watch signals changes in a watchSet.
type watch struct {
	changed chan struct{} // has a value after a change

	start    func() (*fsnotify.Watcher, error)
	ignore   func(path string) bool
	watchSet watchSet
	added    []string    // the directories that notify watches
	err      error       // why not everything is watched
	lost     atomic.Bool // events were lost, so added may be wrong
	notify   *fsnotify.Watcher
	pumping  sync.WaitGroup
}

func newWatch(start func() (*fsnotify.Watcher, error), ignore func(path string) bool) *watch {
	return &watch{changed: make(chan struct{}, 1), start: start, ignore: ignore}
}

// follow watches the directories of the options. With an error some of them are not watched,
// and their changes are seen late.
func (w *watch) follow(o Options) error {
	t := watchSetOf(o)
	// After an error, the cause may have disappeared.
	if w.lost.Swap(false) || w.err != nil || !w.holds(t) {
		w.err = w.restart(t)
		if w.err == nil {
			w.signal() // the directories may have changed before they were watched
		}
	}
	return w.err
}

// holds reports whether all of t is still watched. Inodes do not show that, because their
// numbers are reused.
func (w *watch) holds(t watchSet) bool {
	if w.notify == nil {
		return false
	}
	live := w.notify.WatchList()
	return w.watchSet.equal(t) && !slices.ContainsFunc(w.added, func(dir string) bool { return !slices.Contains(live, dir) })
}

// restart watches t with a new watcher, which drops all former watches.
func (w *watch) restart(t watchSet) error {
	w.close()
	w.watchSet, w.added = t, nil
	notify, err := w.start()
	if err != nil {
		return limit(fmt.Errorf("watch directories: %w", err))
	}
	w.notify = notify
	w.pumping.Go(func() { w.pump(notify, t) })
	seen := map[*watchedDir]bool{}
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

// limit adds the next step to an error about the kernel's limits.
func limit(err error) error {
	switch {
	case errors.Is(err, syscall.EMFILE):
		return fmt.Errorf("%w: changes are seen late: raise fs.inotify.max_user_instances", err)
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%w: changes are seen late: raise fs.inotify.max_user_watches", err)
	}
	return fmt.Errorf("%w: changes are seen late: make it readable", err)
}

// pump signals the events that matter until notify is closed. An error, such as an overflow
// of the kernel's queue, may hide any event, including the end of a watch.
func (w *watch) pump(notify *fsnotify.Watcher, t watchSet) {
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

// close ends all watches.
func (w *watch) close() {
	if w.notify == nil {
		return
	}
	_ = w.notify.Close()
	w.pumping.Wait()
	w.notify = nil
}
