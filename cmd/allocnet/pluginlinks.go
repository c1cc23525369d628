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
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

const (
	// programName is the program of all native plugins. It runs the plugin by whose
	// name it is called. shimName is the program beside it that has allocnetd run the
	// plugin, and else executes programName.
	programName = sdk.Program
	shimName    = sdk.Shim
	// asideSuffix is added to the name of a file that a link replaces.
	asideSuffix = sdk.Aside
	// stageName is a directory inside the plugin directory. Links are created in it and
	// then renamed to their names.
	stageName = ".allocnet-plugins-install"
)

// errForeign is the error for an existing file that is not a link of allocnet.
var errForeign = errors.New("exists and is not a link of allocnet")

// pluginLinks are the links in the plugin directory of a runtime that lead to the
// program of the native plugins, or to its shim. An existing name is never missing while it is
// replaced, because the runtime may need it at any time.
type pluginLinks struct {
	dir     string // absolute
	program string // absolute: where the links lead
	names   []string
	keep    bool // install keeps other files
}

// linkState is the state of a name in the directory.
type linkState string

const (
	linkMissing   linkState = "missing"   // no file exists
	linkCurrent   linkState = "unchanged" // a link to the program
	linkOutdated  linkState = "outdated"  // a link of allocnet to another program
	linkForeign   linkState = "foreign"   // another file, which is kept
	linkInstalled linkState = "installed" // the link was created
	linkRemoved   linkState = "removed"   // the link was removed
	linkRestored  linkState = "restored"  // the link was removed, and the file that it replaced was restored
)

// pluginLink is one name in the directory.
type pluginLink struct {
	Name  string    `json:"name"`
	State linkState `json:"state"`
	// Aside is the name of the file that the link replaced.
	Aside string `json:"aside,omitempty"`
	// unlinked reports whether uninstall removed a link of allocnet.
	unlinked bool
}

func (l *pluginLinks) path(name string) string  { return filepath.Join(l.dir, name) }
func (l *pluginLinks) aside(name string) string { return l.path(name) + asideSuffix }

// install installs the links. After an error it also returns the changes made so far.
// It refuses to replace other files before any change, or keeps them aside with force.
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
	if l.keep {
		l.names, links = l.withoutForeign(links)
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

// uninstall removes allocnet's links and restores the files that they replaced. If a
// plugin with elements in allocnet's tables is among them, it first calls may, whose
// error prevents all changes.
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

// laysOut reports whether this is a link of allocnet to a plugin with elements in
// allocnet's tables.
func (p pluginLink) laysOut() bool {
	return (p.State == linkCurrent || p.State == linkOutdated) && slices.Contains(layingOut, p.Name)
}

// lock locks the directory against concurrent commands until unlock.
func (l *pluginLinks) lock() (unlock func(), err error) {
	dir, err := os.Open(l.dir)
	if err != nil {
		return nil, fmt.Errorf("plugin directory: %w", err)
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		dir.Close()
		return nil, stepError{fmt.Errorf("lock plugin directory %q: %w", l.dir, err), "another program has locked it: try again when that program has ended"}
	}
	return func() { dir.Close() }, nil
}

// look returns the state of every name.
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

// state returns the state of a name. A link is allocnet's if its target has the name
// programName or shimName, even if the target does not exist, or is the program.
func (l *pluginLinks) state(name string) (linkState, error) {
	target, err := os.Readlink(l.path(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return linkMissing, nil
	case errors.Is(err, unix.EINVAL): // not a link
		return linkForeign, nil
	case err != nil:
		return linkForeign, err
	case target == l.program:
		return linkCurrent, nil
	case filepath.Base(target) == programName, filepath.Base(target) == shimName, same(os.Stat, l.path(name), l.program):
		return linkOutdated, nil
	}
	return linkForeign, nil
}

// same reports whether two paths lead to the same file, by os.Stat or os.Lstat.
func same(stat func(string) (fs.FileInfo, error), a, b string) bool {
	first, errA := stat(a)
	second, errB := stat(b)
	return errA == nil && errB == nil && os.SameFile(first, second)
}

// withoutForeign returns the links that are no other files, and their names.
func (l *pluginLinks) withoutForeign(links []pluginLink) (names []string, ours []pluginLink) {
	for _, link := range links {
		if link.State != linkForeign {
			names, ours = append(names, link.Name), append(ours, link)
		}
	}
	return names, ours
}

// mayReplace returns an error for files that install cannot or may not replace.
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
				"remove or rename one of the two files and try again"}
		}
		foreign = append(foreign, l.path(link.Name))
	}
	if force || len(foreign) == 0 {
		return nil
	}
	return stepError{fmt.Errorf("%s: %w", strings.Join(foreign, ", "), errForeign), fmt.Sprintf(
		"--force keeps the existing files as NAME%s and replaces them by links; `allocnet plugins uninstall %s` restores them", asideSuffix, l.dir)}
}

// stage creates all links in the stage directory.
func (l *pluginLinks) stage() error {
	stage := l.path(stageName)
	if err := os.RemoveAll(stage); err != nil { // left by a killed install
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

// ask calls the program as each plugin through the staged links. A program that also
// answers to a name that is not a plugin's is a single plugin, which install refuses.
func (l *pluginLinks) ask(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	version := func(name string) error {
		_, err := invoke.GetVersionInfo(ctx, filepath.Join(l.path(stageName), name), &pluginexec.Exec{})
		return err
	}
	for _, name := range l.names {
		if err := version(name); err != nil {
			return l.notThePlugins(fmt.Errorf("call %q as plugin %q (VERSION): %w", l.program, name, err))
		}
	}
	err := version(programName)
	if err == nil {
		return l.notThePlugins(usagef("%q is not %s: it answers to every name", l.program, programName))
	}
	return ctx.Err()
}

// notThePlugins adds the next step to the error of an unsuitable program.
func (l *pluginLinks) notThePlugins(err error) error {
	if filepath.Base(l.program) == shimName {
		return stepError{err, "--daemon needs " + shimName + " and " + programName + " in one directory: `make build` creates both in bin if there is a C compiler"}
	}
	return stepError{err, "name the program that has all plugins[--program| with --program]: `make build` creates it as bin/" + programName + ", beside bin/allocnet"}
}

// place moves a staged link to its name. If another file has the name, place first
// gives that file a second name.
func (l *pluginLinks) place(link *pluginLink) error {
	if link.State == linkCurrent {
		return nil
	}
	if link.State == linkForeign && link.Aside == "" {
		if err := os.Link(l.path(link.Name), l.aside(link.Name)); err != nil {
			return stepError{fmt.Errorf("keep %q: %w", l.path(link.Name), err), "if the file system does not support hard links, move the file away first"}
		}
		link.Aside = link.Name + asideSuffix
	}
	if err := os.Rename(filepath.Join(l.path(stageName), link.Name), l.path(link.Name)); err != nil {
		return err
	}
	link.State = linkInstalled
	return nil
}

// displace removes a link of allocnet, or atomically restores the file that it
// replaced.
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
	case link.Aside != "" && same(os.Lstat, path, l.aside(link.Name)): // left by an install that was killed between two steps
		if err := os.Remove(l.aside(link.Name)); err != nil {
			return err
		}
		link.Aside = ""
	}
	return nil
}
