package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/engine/pluginexec"
)

const (
	// programName is the program that is every native plugin, by the name that
	// it is called by.
	programName = "allocnet-plugins"
	// asideSuffix is added to the name of a file that made way for a link.
	asideSuffix = ".reference"
	// stageName is where links wait, inside the plugin directory, so that they
	// can be put into place by a rename.
	stageName = ".allocnet-plugins-install"
)

// errForeign: there is a file that is none of allocnet's links.
var errForeign = errors.New("is there already and is not allocnet's")

// pluginLinks are the links in the plugin directory of a runtime that lead to
// the program of the native plugins. At no moment is a name missing that was
// there before: the runtime may look for it at any time.
type pluginLinks struct {
	dir     string // absolute
	program string // absolute
	names   []string
}

// linkState is what stands under a name of the directory, or what became of it.
type linkState string

const (
	linkMissing   linkState = "missing"   // nothing
	linkCurrent   linkState = "unchanged" // our link
	linkOutdated  linkState = "outdated"  // our link, to another program
	linkForeign   linkState = "foreign"   // something else; it is left alone
	linkInstalled linkState = "installed" // our link is new
	linkRemoved   linkState = "removed"   // our link has gone
	linkRestored  linkState = "restored"  // our link has gone, and what it replaced is back
)

// A pluginLink is one name.
type pluginLink struct {
	Name  string    `json:"name"`
	State linkState `json:"state"`
	// Aside is the name of the file that made way for the link.
	Aside string `json:"aside,omitempty"`
	// unlinked says that uninstall removed a link of ours.
	unlinked bool
}

func (l *pluginLinks) path(name string) string  { return filepath.Join(l.dir, name) }
func (l *pluginLinks) aside(name string) string { return l.path(name) + asideSuffix }

// install puts the links into place, and returns what it did so far also with an
// error. Foreign files are refused, before anything is done, or with force kept
// aside.
func (l *pluginLinks) install(ctx context.Context, force bool, timeout time.Duration) ([]pluginLink, error) {
	unlock, err := l.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	links, err := l.look()
	if err != nil {
		return nil, err
	}
	if err := l.mayReplace(links, force); err != nil {
		return nil, err
	}
	if err = l.stage(); err == nil {
		err = l.ask(ctx, timeout)
	}
	for i := range links {
		if err == nil {
			err = l.place(&links[i])
		}
	}
	return links, errors.Join(err, os.RemoveAll(l.path(stageName)))
}

// uninstall removes our links, and puts back what they replaced. Before it removes one
// of a plugin that lays something out, it asks whether it may.
func (l *pluginLinks) uninstall(may func() error) ([]pluginLink, error) {
	unlock, err := l.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	links, err := l.look()
	if slices.ContainsFunc(links, pluginLink.laysOut) {
		if err := may(); err != nil {
			return nil, err
		}
	}
	errs := []error{err}
	for i := range links {
		errs = append(errs, l.displace(&links[i]))
	}
	return links, errors.Join(errs...)
}

// laysOut reports whether a link is ours and its plugin has elements in allocnet's tables.
func (p pluginLink) laysOut() bool {
	return (p.State == linkCurrent || p.State == linkOutdated) && slices.Contains(layingOut, p.Name)
}

// lock keeps others like this one out of the directory until unlock.
func (l *pluginLinks) lock() (unlock func(), err error) {
	dir, err := os.Open(l.dir)
	if err != nil {
		return nil, fmt.Errorf("plugin directory: %w", err)
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		dir.Close()
		return nil, stepError{fmt.Errorf("lock plugin directory %q: %w", l.dir, err), "another program has it locked: try again when that has ended"}
	}
	return func() { dir.Close() }, nil
}

// look finds out what stands under every name.
func (l *pluginLinks) look() ([]pluginLink, error) {
	links := make([]pluginLink, len(l.names))
	var errs []error
	for i, name := range l.names {
		state, err := l.state(name)
		links[i] = pluginLink{Name: name, State: state}
		if _, asideErr := os.Lstat(l.aside(name)); asideErr == nil {
			links[i].Aside = name + asideSuffix
		}
		errs = append(errs, err)
	}
	return links, errors.Join(errs...)
}

// state tells a link of ours by the name of its target, which may be gone, or by
// the target being our program.
func (l *pluginLinks) state(name string) (linkState, error) {
	target, err := os.Readlink(l.path(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return linkMissing, nil
	case errors.Is(err, unix.EINVAL): // it is no link
		return linkForeign, nil
	case err != nil:
		return linkForeign, err
	case target == l.program:
		return linkCurrent, nil
	case filepath.Base(target) == programName || same(os.Stat, l.path(name), l.program):
		return linkOutdated, nil
	}
	return linkForeign, nil
}

// same reports whether two paths are of one file, as os.Stat or os.Lstat sees it.
func same(stat func(string) (fs.FileInfo, error), a, b string) bool {
	first, errA := stat(a)
	second, errB := stat(b)
	return errA == nil && errB == nil && os.SameFile(first, second)
}

// mayReplace refuses what install cannot, or was not told to, replace.
func (l *pluginLinks) mayReplace(links []pluginLink, force bool) error {
	var foreign []string
	for _, link := range links {
		if link.State != linkForeign {
			continue
		}
		info, err := os.Lstat(l.path(link.Name))
		if err != nil {
			return err
		}
		if info.IsDir() {
			return stepError{fmt.Errorf("%q: %w: it is a directory", l.path(link.Name), errForeign), "move it away"}
		}
		if force && link.Aside != "" && !same(os.Lstat, l.path(link.Name), l.aside(link.Name)) {
			return stepError{fmt.Errorf("keep %q as %q: %w", l.path(link.Name), link.Aside, fs.ErrExist),
				"both may be wanted: remove or rename one of them, and try again"}
		}
		foreign = append(foreign, l.path(link.Name))
	}
	if force || len(foreign) == 0 {
		return nil
	}
	return stepError{fmt.Errorf("%s: %w", strings.Join(foreign, ", "), errForeign), fmt.Sprintf(
		"--force keeps what is there as NAME%s and puts the links in its place; `allocnet plugins uninstall %s` puts it back", asideSuffix, l.dir)}
}

// stage makes all links in a directory of their own.
func (l *pluginLinks) stage() error {
	stage := l.path(stageName)
	if err := os.RemoveAll(stage); err != nil { // of an install that was killed
		return err
	}
	if err := os.Mkdir(stage, 0o700); err != nil {
		return err
	}
	for _, name := range append([]string{programName}, l.names...) {
		if err := os.Symlink(l.program, filepath.Join(stage, name)); err != nil {
			return err
		}
	}
	return nil
}

// ask calls the program through every staged link. One that also answers by a
// name that is no plugin's is a plugin itself, and not all of them.
func (l *pluginLinks) ask(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	version := func(name string) error {
		_, err := invoke.GetVersionInfo(ctx, filepath.Join(l.path(stageName), name), &pluginexec.Exec{})
		return err
	}
	for _, name := range l.names {
		if err := version(name); err != nil {
			return notThePlugins(fmt.Errorf("call %q as plugin %q (VERSION): %w", l.program, name, err))
		}
	}
	err := version(programName)
	if err == nil {
		return notThePlugins(usagef("%q is not %s: it answers by every name", l.program, programName))
	}
	return ctx.Err()
}

func notThePlugins(err error) error {
	return stepError{err, "name the program that has all plugins[--program| with --program]: `make build` makes it as bin/" + programName + ", beside bin/allocnet"}
}

// place puts a staged link where it belongs. A foreign file gets its other name
// before it loses this one.
func (l *pluginLinks) place(link *pluginLink) error {
	if link.State == linkCurrent {
		return nil
	}
	if link.State == linkForeign && link.Aside == "" {
		if err := os.Link(l.path(link.Name), l.aside(link.Name)); err != nil {
			return stepError{fmt.Errorf("keep %q: %w", l.path(link.Name), err), "where the file system has no hard links, move the file away yourself"}
		}
		link.Aside = link.Name + asideSuffix
	}
	if err := os.Rename(filepath.Join(l.path(stageName), link.Name), l.path(link.Name)); err != nil {
		return err
	}
	link.State = linkInstalled
	return nil
}

// displace removes a link of ours. What it replaced takes its place at once.
func (l *pluginLinks) displace(link *pluginLink) error {
	path, ours := l.path(link.Name), link.State == linkCurrent || link.State == linkOutdated
	switch {
	case link.Aside != "" && (ours || link.State == linkMissing):
		if err := os.Rename(l.aside(link.Name), path); err != nil {
			return err
		}
		link.State, link.Aside, link.unlinked = linkRestored, "", ours
	case ours:
		if err := os.Remove(path); err != nil {
			return err
		}
		link.State, link.unlinked = linkRemoved, true
	case link.Aside != "" && same(os.Lstat, path, l.aside(link.Name)): // an install was killed between two steps
		if err := os.Remove(l.aside(link.Name)); err != nil {
			return err
		}
		link.Aside = ""
	}
	return nil
}
