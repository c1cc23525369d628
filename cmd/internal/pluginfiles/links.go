// Package pluginfiles installs the native plugins in the plugin directory of a container
// runtime: links to the program that runs them, and copies of allocnet's programs.
package pluginfiles

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
	// ProgramName is the program of all native plugins. It runs the plugin by whose
	// name it is called.
	ProgramName = sdk.Program
	// ShimName is the program beside it that has allocnetd run the plugin, and otherwise
	// executes ProgramName.
	ShimName = sdk.Shim
	// AsideSuffix is added to the name of a file that a link replaces.
	AsideSuffix = sdk.Aside
	// stageName is a directory inside the plugin directory. Links are created in it and
	// then renamed to their names.
	stageName = ".allocnet-plugins-install"
)

// Error is an error with the next step of the user. In Step, [--flag|text] stands for a text
// that is omitted if the flag was used.
type Error struct {
	Err  error
	Step string
}

// Error implements error.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// ErrProgram matches the errors of a program that does not run the native plugins.
var ErrProgram = errors.New("not the program of the native plugins")

// programError is an error that matches ErrProgram.
type programError struct{ error }

// unsuitable returns an error that matches ErrProgram.
func unsuitable(format string, args ...any) error {
	return programError{fmt.Errorf(format, args...)}
}

func (e programError) Unwrap() error { return e.error }

// Is reports whether target is ErrProgram.
func (e programError) Is(target error) bool { return target == ErrProgram }

// ErrForeign is the error for an existing file that is not a link of allocnet.
var ErrForeign = errors.New("exists and is not a link of allocnet")

// Links are the links in the plugin directory of a runtime that lead to the program of the
// native plugins, or to its shim. An existing name is never missing while it is replaced,
// because the runtime may need it at any time.
type Links struct {
	Dir     string // absolute
	Program string // absolute: where the links lead
	Names   []string
	Keep    bool // Install keeps other files
}

// State is the state of a name in the directory.
type State string

// The states of names. Install and Uninstall return the last three for links that they changed.
const (
	Missing   State = "missing"   // no file exists
	Current   State = "unchanged" // a link to the program
	Outdated  State = "outdated"  // a link of allocnet to another program
	Foreign   State = "foreign"   // another file, which is kept
	Installed State = "installed" // the link was created
	Removed   State = "removed"   // the link was removed
	Restored  State = "restored"  // the link was removed, and the file that it replaced was restored
)

// Link is one name in the directory.
type Link struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	// Aside is the name of the file that the link replaced.
	Aside string `json:"aside,omitempty"`
	// Unlinked reports whether Uninstall removed a link of allocnet.
	Unlinked bool `json:"-"`
}

func (l *Links) path(name string) string  { return filepath.Join(l.Dir, name) }
func (l *Links) aside(name string) string { return l.path(name) + AsideSuffix }

// Install installs the links. After an error it also returns the changes made so far.
// It refuses to replace other files before any change, or keeps them aside with force.
func (l *Links) Install(ctx context.Context, force bool, timeout time.Duration) ([]Link, error) {
	unlock, err := l.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	links, err := l.look()
	if err != nil {
		return nil, err
	}
	if l.Keep {
		l.Names, links = l.withoutForeign(links)
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

// Uninstall removes allocnet's links and restores the files that they replaced. If a
// plugin with elements in allocnet's tables is among them, it first calls may, whose
// error prevents all changes.
func (l *Links) Uninstall(may func() error) ([]Link, error) {
	unlock, err := l.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	links, err := l.look()
	if slices.ContainsFunc(links, Link.laysOut) {
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

// layingOut are the plugins that have elements in allocnet's tables if no backend is
// configured.
var layingOut = []string{"bridge", "firewall", "flannel", "portmap", "ptp", "routes"}

// laysOut reports whether this is a link of allocnet to a plugin with elements in
// allocnet's tables.
func (p Link) laysOut() bool {
	return (p.State == Current || p.State == Outdated) && slices.Contains(layingOut, p.Name)
}

// lock locks the directory against concurrent commands until unlock.
func (l *Links) lock() (unlock func(), err error) {
	dir, err := os.Open(l.Dir)
	if err != nil {
		return nil, fmt.Errorf("plugin directory: %w", err)
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		dir.Close()
		return nil, &Error{fmt.Errorf("lock plugin directory %q: %w", l.Dir, err), "another program has locked it: try again when that program has ended"}
	}
	return func() { dir.Close() }, nil
}

// look returns the state of every name.
func (l *Links) look() ([]Link, error) {
	links := make([]Link, len(l.Names))
	var errs []error
	for i, name := range l.Names {
		state, err := l.state(name)
		links[i] = Link{Name: name, State: state}
		if _, asideErr := os.Lstat(l.aside(name)); asideErr == nil {
			links[i].Aside = name + AsideSuffix
		}
		errs = append(errs, err)
	}
	return links, errors.Join(errs...)
}

// state returns the state of a name. A link is allocnet's if its target has the name
// ProgramName or ShimName, even if the target does not exist, or is the program.
func (l *Links) state(name string) (State, error) {
	target, err := os.Readlink(l.path(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Missing, nil
	case errors.Is(err, unix.EINVAL): // not a link
		return Foreign, nil
	case err != nil:
		return Foreign, err
	case target == l.Program:
		return Current, nil
	case filepath.Base(target) == ProgramName, filepath.Base(target) == ShimName, same(os.Stat, l.path(name), l.Program):
		return Outdated, nil
	}
	return Foreign, nil
}

// same reports whether two paths lead to the same file, by os.Stat or os.Lstat.
func same(stat func(string) (fs.FileInfo, error), a, b string) bool {
	first, errA := stat(a)
	second, errB := stat(b)
	return errA == nil && errB == nil && os.SameFile(first, second)
}

// withoutForeign returns the links that are no other files, and their names.
func (l *Links) withoutForeign(links []Link) (names []string, ours []Link) {
	for _, link := range links {
		if link.State != Foreign {
			names, ours = append(names, link.Name), append(ours, link)
		}
	}
	return names, ours
}

// mayReplace returns an error for files that install cannot or may not replace.
func (l *Links) mayReplace(links []Link, force bool) error {
	var foreign []string
	for _, link := range links {
		if link.State != Foreign {
			continue
		}
		info, err := os.Lstat(l.path(link.Name))
		if err != nil {
			return err
		}
		if info.IsDir() {
			return &Error{fmt.Errorf("%q: %w: it is a directory", l.path(link.Name), ErrForeign), "move it away"}
		}
		if force && link.Aside != "" && !same(os.Lstat, l.path(link.Name), l.aside(link.Name)) {
			return &Error{fmt.Errorf("keep %q as %q: %w", l.path(link.Name), link.Aside, fs.ErrExist),
				"remove or rename one of the two files and try again"}
		}
		foreign = append(foreign, l.path(link.Name))
	}
	if force || len(foreign) == 0 {
		return nil
	}
	return &Error{fmt.Errorf("%s: %w", strings.Join(foreign, ", "), ErrForeign), fmt.Sprintf(
		"--force keeps the existing files as NAME%s and replaces them by links; `allocnet plugins uninstall %s` restores them", AsideSuffix, l.Dir)}
}

// stage creates all links in the stage directory.
func (l *Links) stage() error {
	stage := l.path(stageName)
	if err := os.RemoveAll(stage); err != nil { // left by a killed install
		return err
	}
	if err := os.Mkdir(stage, 0o700); err != nil {
		return err
	}
	for _, name := range append([]string{ProgramName}, l.Names...) {
		if err := os.Symlink(l.Program, filepath.Join(stage, name)); err != nil {
			return err
		}
	}
	return nil
}

// ask calls the program as each plugin through the staged links. A program that also
// answers to a name that is not a plugin's is a single plugin, which install refuses.
func (l *Links) ask(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	version := func(name string) error {
		_, err := invoke.GetVersionInfo(ctx, filepath.Join(l.path(stageName), name), &pluginexec.Exec{})
		return err
	}
	for _, name := range l.Names {
		if err := version(name); err != nil {
			return l.notThePlugins(fmt.Errorf("call %q as plugin %q (VERSION): %w", l.Program, name, err))
		}
	}
	err := version(ProgramName)
	if err == nil {
		return l.notThePlugins(unsuitable("%q is not %s: it answers to every name", l.Program, ProgramName))
	}
	return ctx.Err()
}

// notThePlugins adds the next step to the error of an unsuitable program.
func (l *Links) notThePlugins(err error) error {
	if filepath.Base(l.Program) == ShimName {
		return &Error{err, "--daemon needs " + ShimName + " and " + ProgramName + " in one directory: `make build` creates both in bin if there is a C compiler"}
	}
	return &Error{err, "name the program that has all plugins[--program| with --program]: `make build` creates it as bin/" + ProgramName + ", beside bin/allocnet"}
}

// place moves a staged link to its name. If another file has the name, place first
// gives that file a second name.
func (l *Links) place(link *Link) error {
	if link.State == Current {
		return nil
	}
	if link.State == Foreign && link.Aside == "" {
		if err := os.Link(l.path(link.Name), l.aside(link.Name)); err != nil {
			return &Error{fmt.Errorf("keep %q: %w", l.path(link.Name), err), "if the file system does not support hard links, move the file away first"}
		}
		link.Aside = link.Name + AsideSuffix
	}
	if err := os.Rename(filepath.Join(l.path(stageName), link.Name), l.path(link.Name)); err != nil {
		return err
	}
	link.State = Installed
	return nil
}

// displace removes a link of allocnet, or atomically restores the file that it
// replaced.
func (l *Links) displace(link *Link) error {
	path, ours := l.path(link.Name), link.State == Current || link.State == Outdated
	switch {
	case link.Aside != "" && (ours || link.State == Missing):
		if err := os.Rename(l.aside(link.Name), path); err != nil {
			return err
		}
		link.State, link.Aside, link.Unlinked = Restored, "", ours
	case ours:
		if err := os.Remove(path); err != nil {
			return err
		}
		link.State, link.Unlinked = Removed, true
	case link.Aside != "" && same(os.Lstat, path, l.aside(link.Name)): // left by an install that was killed between two steps
		if err := os.Remove(l.aside(link.Name)); err != nil {
			return err
		}
		link.Aside = ""
	}
	return nil
}

// CheckProgram checks the program before links to it are created.
func (l *Links) CheckProgram() error {
	info, err := os.Stat(l.Program)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return l.notThePlugins(unsuitable("program %q does not exist", l.Program))
	case err != nil:
		return fmt.Errorf("program of the plugins: %w", err)
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0:
		return l.notThePlugins(unsuitable("program %q is not an executable file", l.Program))
	case l.isThrough():
		return l.notThePlugins(unsuitable("program %q is itself, or through a link, one of the plugins in %s", l.Program, l.Dir))
	}
	return nil
}

// isThrough reports whether the path of the program leads through one of the names to
// install: the links would form a cycle.
func (l *Links) isThrough() bool {
	dir, err := filepath.EvalSymlinks(l.Dir)
	if err != nil {
		return false
	}
	for path := l.Program; ; {
		at, err := filepath.EvalSymlinks(filepath.Dir(path))
		if err == nil && at == dir && slices.Contains(l.Names, filepath.Base(path)) {
			return true
		}
		target, err := os.Readlink(path)
		if err != nil {
			return false
		}
		if path = target; !filepath.IsAbs(target) {
			path = filepath.Join(at, target)
		}
	}
}
