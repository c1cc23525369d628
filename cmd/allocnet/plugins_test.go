package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/cmd/internal/pluginfiles"
	"github.com/allocnet/allocnet/internal/plugins/builtin"
	"github.com/allocnet/allocnet/internal/testing/programs"
)

// pluginDir is a runtime's plugin directory, and a program that responds to the
// names of the native plugins, except omitted ones.
type pluginDir struct {
	*testing.T
	dir, program string
}

func newPluginDir(t *testing.T, without ...string) *pluginDir {
	t.Helper()
	p := &pluginDir{t, filepath.Join(t.TempDir(), "bin"), filepath.Join(t.TempDir(), pluginfiles.ProgramName)}
	require.NoError(t, os.Mkdir(p.dir, 0o755))
	p.script(p.program, without...)
	return p
}

func (p *pluginDir) script(path string, without ...string) {
	p.Helper()
	known := slices.DeleteFunc(pluginNames(), func(name string) bool { return slices.Contains(without, name) })
	require.NoError(p, os.WriteFile(path, []byte("#!/bin/sh\n"+
		"case ${0##*/} in "+strings.Join(known, "|")+") ;; *) echo \"no plugin ${0##*/}\" >&2; exit 2 ;; esac\n"+
		`echo '{"cniVersion": "1.1.0", "supportedVersions": ["1.0.0", "1.1.0"]}'`+"\n"), 0o755))
}

func (p *pluginDir) path(name string) string { return filepath.Join(p.dir, name) }

func (p *pluginDir) run(command string, args ...string) outcome {
	return runWith("", append([]string{"plugins", command, p.dir, "--program", p.program}, args...)...)
}

// write writes another plugin to the directory.
func (p *pluginDir) write(name, content string) {
	p.Helper()
	require.NoError(p, os.WriteFile(p.path(name), []byte(content), 0o755))
}

func (p *pluginDir) requireContent(name, content string) {
	p.Helper()
	data, err := os.ReadFile(p.path(name))
	require.NoError(p, err)
	require.Equal(p, content, string(data))
	info, err := os.Lstat(p.path(name))
	require.NoError(p, err)
	require.Equal(p, fs.FileMode(0o755), info.Mode())
}

// entries returns the entries of the directory, links with their targets.
func (p *pluginDir) entries() map[string]string {
	p.Helper()
	list, err := os.ReadDir(p.dir)
	require.NoError(p, err)
	entries := map[string]string{}
	for _, e := range list {
		target, err := os.Readlink(p.path(e.Name()))
		if err != nil {
			target = "a file"
		}
		entries[e.Name()] = target
	}
	return entries
}

// installed returns the entries of a directory that contains exactly all links.
func (p *pluginDir) installed() map[string]string {
	entries := map[string]string{}
	for name := range builtin.DropIns {
		entries[name] = p.program
	}
	return entries
}

// states returns the states in a JSON report, by name.
func states(t *testing.T, text string) map[string]pluginfiles.State {
	t.Helper()
	states := map[string]pluginfiles.State{}
	for _, link := range decode[pluginsReport](t, text).Plugins {
		states[link.Name] = link.State
	}
	return states
}

func all(state pluginfiles.State) map[string]pluginfiles.State {
	states := map[string]pluginfiles.State{}
	for name := range builtin.DropIns {
		states[name] = state
	}
	return states
}

func TestPluginsList(t *testing.T) {
	var names []string
	for name := range builtin.DropIns {
		names = append(names, name)
	}
	slices.Sort(names)
	require.Equal(t, strings.Join(names, "\n")+"\n", runWith("", "plugins", "list").ok(t))
	got := decode[struct {
		Plugins []string `json:"plugins"`
	}](t, runWith("", "plugins", "list", "--json").ok(t))
	require.Equal(t, names, got.Plugins)
	require.Contains(t, names, "bridge")
}

// TestPluginsOfTheRealProgram installs the real program and calls it as a
// runtime does.
func TestPluginsOfTheRealProgram(t *testing.T) {
	program := programs.Path(t, pluginfiles.ProgramName)
	p := newPluginDir(t)
	p.program = program
	text := p.run("install").ok(t)
	require.Contains(t, text, fmt.Sprintf("ok: %d plugins in %s lead to %s\n", len(builtin.DropIns), p.dir, program))
	require.Regexp(t, `(?m)^bridge +installed +-$`, text)
	require.Equal(t, p.installed(), p.entries())

	bridge := exec.Command(p.path("bridge"))
	bridge.Env = []string{"CNI_COMMAND=VERSION"}
	out, err := bridge.Output()
	require.NoError(t, err)
	var version struct{ SupportedVersions []string }
	require.NoError(t, json.Unmarshal(out, &version))
	require.Contains(t, version.SupportedVersions, "1.0.0")
}

// withShim adds a shim to the programs, which answers as the program does.
func (p *pluginDir) withShim() (shim string) {
	p.Helper()
	shim = filepath.Join(filepath.Dir(p.program), pluginfiles.ShimName)
	p.script(shim)
	return shim
}

// TestPluginsOfTheDaemon installs links to the shim, replaces them by links to the
// program and vice versa, and uninstalls both.
func TestPluginsOfTheDaemon(t *testing.T) {
	p := newPluginDir(t)
	got := p.run("install", "--daemon")
	require.Equal(t, exitUsage, got.code)
	require.Contains(t, got.errOut, pluginfiles.ShimName+`" does not exist`)
	require.Contains(t, got.errOut, "if there is a C compiler")
	require.Empty(t, p.entries())

	shim, program := p.withShim(), p.program
	of := func(target string) map[string]string {
		p.program = target
		defer func() { p.program = program }()
		return p.installed()
	}
	for range 2 {
		text := p.run("install", "--daemon").ok(t)
		require.Contains(t, text, "lead to "+shim)
		require.Equal(t, of(shim), p.entries())
		require.Equal(t, all(pluginfiles.Current), states(t, p.run("install", "--daemon", "--json").ok(t)))
		require.Equal(t, all(pluginfiles.Installed), states(t, p.run("install", "--json").ok(t)))
		require.Equal(t, of(program), p.entries())
	}
	p.run("install", "bridge", "--daemon").ok(t)
	require.Equal(t, shim, p.entries()["bridge"])
	require.Equal(t, program, p.entries()["ptp"])
	require.NoError(t, os.Remove(shim))
	require.Equal(t, all(pluginfiles.Removed), states(t, p.run("uninstall", "--force", "--json").ok(t)), "also without the shim")
	require.Empty(t, p.entries())
}

// TestPluginsOfTheRealShim: without the program beside it, the shim is refused.
func TestPluginsOfTheRealShim(t *testing.T) {
	p := newPluginDir(t)
	p.program = filepath.Join(t.TempDir(), pluginfiles.ProgramName)
	require.NoError(t, programs.Copy(filepath.Dir(p.program), pluginfiles.ProgramName+"-shim"))
	got := p.run("install", "--daemon")
	require.NotZero(t, got.code)
	require.Contains(t, got.errOut, "run "+pluginfiles.ProgramName+" in the directory of this program")
	require.Empty(t, p.entries())

	require.NoError(t, programs.Copy(filepath.Dir(p.program), pluginfiles.ProgramName))
	p.run("install", "--daemon").ok(t)
	c := exec.Command(p.path("host-local"))
	c.Env, c.Stdin = []string{"CNI_COMMAND=VERSION"}, strings.NewReader("{}")
	said, err := c.Output()
	require.NoError(t, err)
	require.Contains(t, string(said), "supportedVersions")
}

func TestPluginsInstallAgain(t *testing.T) {
	p := newPluginDir(t)
	require.Equal(t, all(pluginfiles.Installed), states(t, p.run("install", "--json").ok(t)))
	before, err := os.Lstat(p.path("bridge"))
	require.NoError(t, err)
	require.Equal(t, all(pluginfiles.Current), states(t, p.run("install", "--json").ok(t)))
	after, err := os.Lstat(p.path("bridge"))
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after), "a link that is right is left alone")

	// The program was moved, and its former path is empty.
	elsewhere := filepath.Join(t.TempDir(), pluginfiles.ProgramName)
	require.NoError(t, os.Rename(p.program, elsewhere))
	p.program = elsewhere
	require.Equal(t, all(pluginfiles.Installed), states(t, p.run("install", "--json").ok(t)))
	require.Equal(t, p.installed(), p.entries())
}

// TestPluginsByName: only named plugins are installed and removed.
func TestPluginsByName(t *testing.T) {
	p := newPluginDir(t)
	p.write("bridge", "foreign")
	require.Zero(t, p.run("install", "loopback", "ptp").code)
	require.Equal(t, []string{"bridge", "loopback", "ptp"}, slices.Sorted(maps.Keys(p.entries())))
	p.requireContent("bridge", "foreign")
	got := p.run("uninstall", "ptp")
	require.Zero(t, got.code)
	require.Regexp(t, `\nptp +removed +-\n\nremoved 1 link, restored 0 files\n$`, got.out)
	require.Contains(t, got.out, " for ptp\n")
	require.Equal(t, []string{"bridge", "loopback"}, slices.Sorted(maps.Keys(p.entries())))
	got = p.run("install", "loopbak")
	require.Equal(t, 2, got.code)
	require.Contains(t, got.errOut, `"loopbak" is not a native plugin; they are: bandwidth, bridge`)
}

// TestPluginsUnderAnotherName: the program may have any name.
func TestPluginsUnderAnotherName(t *testing.T) {
	p := newPluginDir(t)
	p.program = filepath.Join(t.TempDir(), "multi")
	p.script(p.program)
	p.run("install").ok(t)
	link := filepath.Join(t.TempDir(), "current")
	require.NoError(t, os.Symlink(p.program, link))
	p.program = link
	require.Equal(t, all(pluginfiles.Installed), states(t, p.run("install", "--json").ok(t)))
	require.Equal(t, p.installed(), p.entries(), "the path of the program is kept as it was given")
	require.Equal(t, all(pluginfiles.Removed), states(t, p.run("uninstall", "--json").ok(t)))
}

func TestPluginsInTheWay(t *testing.T) {
	p := newPluginDir(t)
	p.write("bridge", "reference bridge")
	require.NoError(t, os.Symlink("/usr/lib/cni/ptp", p.path("ptp")))
	before := p.entries()

	got := p.run("install")
	require.Equal(t, exitFailure, got.code)
	require.Contains(t, got.errOut, fmt.Sprintf("error: %s, %s: exists and is not a link of allocnet\n", p.path("bridge"), p.path("ptp")))
	require.Contains(t, got.errOut, "hint: --force keeps the existing files as NAME.reference")
	require.Equal(t, "foreign-file", p.run("install", "--json").failure(t, exitFailure).Kind)
	require.Equal(t, before, p.entries(), "nothing was done")

	for _, state := range []pluginfiles.State{pluginfiles.Installed, pluginfiles.Current} {
		report := decode[pluginsReport](t, p.run("install", "--force", "--json").ok(t))
		require.Contains(t, report.Plugins, pluginfiles.Link{Name: "bridge", State: state, Aside: "bridge.reference"})
		require.Contains(t, report.Plugins, pluginfiles.Link{Name: "loopback", State: state})
		p.requireContent("bridge.reference", "reference bridge")
	}
	want := p.installed()
	want["bridge.reference"], want["ptp.reference"] = "a file", "/usr/lib/cni/ptp"
	require.Equal(t, want, p.entries())
	require.Regexp(t, `(?m)^bridge +unchanged +bridge\.reference$`, p.run("install").ok(t), "without --force, too")

	report := states(t, p.run("uninstall", "--json").ok(t))
	require.Equal(t, pluginfiles.Restored, report["bridge"])
	require.Equal(t, pluginfiles.Restored, report["ptp"])
	require.Equal(t, pluginfiles.Removed, report["loopback"])
	require.Equal(t, before, p.entries())
	p.requireContent("bridge", "reference bridge")
}

// TestPluginsKeepBoth: a package manager replaced the link by its plugin.
func TestPluginsKeepBoth(t *testing.T) {
	p := newPluginDir(t)
	p.write("bridge", "old")
	p.run("install", "--force").ok(t)
	require.NoError(t, os.Remove(p.path("bridge")))
	p.write("bridge", "new")

	got := p.run("install", "--force", "--json").failure(t, exitFailure)
	require.Contains(t, got.Error, `keep "`+p.path("bridge")+`" as "bridge.reference"`)
	require.Contains(t, got.Hint, "remove or rename one of the two files")
	p.requireContent("bridge", "new")
	p.requireContent("bridge.reference", "old")

	report := decode[pluginsReport](t, p.run("uninstall", "--json").ok(t))
	require.Contains(t, report.Plugins, pluginfiles.Link{Name: "bridge", State: pluginfiles.Foreign, Aside: "bridge.reference"})
	p.requireContent("bridge", "new")
	p.requireContent("bridge.reference", "old")
}

// TestPluginsAfterAnInstallThatWasKilled: a file has its new name and still its
// former one.
func TestPluginsAfterAnInstallThatWasKilled(t *testing.T) {
	for _, command := range []string{"uninstall", "install"} {
		p := newPluginDir(t)
		p.write("bridge", "reference bridge")
		require.NoError(t, os.Link(p.path("bridge"), p.path("bridge.reference")))
		require.NoError(t, os.MkdirAll(p.path(".allocnet-plugins-install"), 0o700))
		require.NoError(t, os.Symlink("/nonexistent", filepath.Join(p.path(".allocnet-plugins-install"), "bridge")))
		if command == "install" {
			p.run("install", "--force").ok(t)
			want := p.installed()
			want["bridge.reference"] = "a file"
			require.Equal(t, want, p.entries())
		}
		p.run("uninstall").ok(t)
		require.NoError(t, os.RemoveAll(p.path(".allocnet-plugins-install")))
		require.Equal(t, map[string]string{"bridge": "a file"}, p.entries())
		p.requireContent("bridge", "reference bridge")
	}
}

func TestPluginsDirectoryInTheWay(t *testing.T) {
	p := newPluginDir(t)
	require.NoError(t, os.Mkdir(p.path("bridge"), 0o755))
	got := p.run("install", "--force", "--json").failure(t, exitFailure)
	require.Contains(t, got.Error, "it is a directory")
	require.Equal(t, map[string]string{"bridge": "a file"}, p.entries())
}

// TestPluginsAreNeverMissing checks with inotify that no name ever disappears.
func TestPluginsAreNeverMissing(t *testing.T) {
	p := newPluginDir(t)
	for _, name := range pluginNames() {
		p.write(name, "reference")
	}
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(watch)
	_, err = unix.InotifyAddWatch(watch, p.dir, unix.IN_DELETE|unix.IN_MOVED_FROM)
	require.NoError(t, err)

	p.run("install", "--force").ok(t)
	moved := filepath.Join(t.TempDir(), pluginfiles.ProgramName)
	require.NoError(t, os.Rename(p.program, moved))
	p.program = moved
	p.run("install").ok(t)
	p.run("uninstall").ok(t)

	for _, name := range namesOfEvents(t, watch) {
		require.NotContains(t, pluginNames(), name, "it was away for a moment")
	}
	for _, name := range pluginNames() {
		p.requireContent(name, "reference")
	}
}

// namesOfEvents returns the names in the events of an inotify watch.
func namesOfEvents(t *testing.T, watch int) []string {
	t.Helper()
	var names []string
	buffer := make([]byte, 64<<10)
	for {
		n, err := unix.Read(watch, buffer)
		if err == unix.EAGAIN {
			require.NotEmpty(t, names, "at least the staged links come and go")
			return names
		}
		require.NoError(t, err)
		for events := buffer[:n]; len(events) > 0; {
			length := int(events[12]) | int(events[13])<<8 // little endian hosts; names are short
			names = append(names, strings.TrimRight(string(events[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+length]), "\x00"))
			events = events[unix.SizeofInotifyEvent+length:]
		}
	}
}

// TestPluginsOfAWrongProgram: the directory is unchanged.
func TestPluginsOfAWrongProgram(t *testing.T) {
	p := newPluginDir(t, "ptp")
	p.run("install").failureWith(t, exitFailure, `as plugin "ptp" (VERSION): `, "no plugin ptp", "name the program")

	require.NoError(t, os.WriteFile(p.program, []byte("#!/bin/sh\n"), 0o755))
	p.run("install").failureWith(t, exitFailure, `as plugin "`+pluginNames()[0]+`" (VERSION): `, "name the program")

	p.script(p.program)
	single := fmt.Sprintf("#!/bin/sh\necho '%s'\n", `{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}`)
	require.NoError(t, os.WriteFile(p.program, []byte(single), 0o755))
	p.run("install").failureWith(t, exitUsage, "it answers to every name", "name the program")

	require.NoError(t, os.WriteFile(p.program, []byte("#!/bin/sh\nsleep 1000\n"), 0o755))
	p.run("install", "--timeout", "50ms").failureWith(t, exitFailure, "deadline exceeded")
	require.Empty(t, p.entries())
}

func (o outcome) failureWith(t *testing.T, code int, texts ...string) {
	t.Helper()
	require.Equal(t, code, o.code, o.out+o.errOut)
	for _, text := range texts {
		require.Contains(t, o.errOut, text)
	}
}

// TestPluginsInACircle: the program is one of the links.
func TestPluginsInACircle(t *testing.T) {
	p := newPluginDir(t)
	p.run("install").ok(t)
	through := filepath.Join(t.TempDir(), "through")
	require.NoError(t, os.Symlink(p.path("bridge"), through))
	before := p.entries()
	for _, program := range []string{p.path("bridge"), through} {
		got := runWith("", "plugins", "install", p.dir, "--program", program)
		got.failureWith(t, exitUsage, "is itself, or through a link, one of the plugins in "+p.dir)
	}
	require.Equal(t, before, p.entries())

	// The program may be in the directory under its own name.
	inside := p.path(pluginfiles.ProgramName)
	require.NoError(t, os.Rename(p.program, inside))
	p.program = inside
	p.run("install").ok(t)
	p.run("uninstall").ok(t)
	require.Equal(t, map[string]string{pluginfiles.ProgramName: "a file"}, p.entries())
}

func TestPluginsOneAtATime(t *testing.T) {
	p := newPluginDir(t)
	dir, err := os.Open(p.dir)
	require.NoError(t, err)
	defer dir.Close()
	require.NoError(t, unix.Flock(int(dir.Fd()), unix.LOCK_EX))
	for _, command := range []string{"install", "uninstall"} {
		p.run(command).failureWith(t, exitFailure, "lock plugin directory", "try again")
	}
	require.NoError(t, unix.Flock(int(dir.Fd()), unix.LOCK_UN))
	p.run("install").ok(t)
}

func TestPluginsUninstallOfNothing(t *testing.T) {
	p := newPluginDir(t)
	require.Contains(t, p.run("uninstall").ok(t), "ok: no link of allocnet is left in "+p.dir+"\n")
	p.write("bridge", "reference")
	report := states(t, p.run("uninstall", "--json").ok(t))
	require.Equal(t, pluginfiles.Foreign, report["bridge"])
	require.Equal(t, pluginfiles.Missing, report["loopback"])
	require.Equal(t, map[string]string{"bridge": "a file"}, p.entries())

	// The program is gone, as is a link whose plugin was kept aside.
	p.run("install", "--force").ok(t)
	require.NoError(t, os.Remove(p.program))
	require.NoError(t, os.Remove(p.path("bridge")))
	require.Regexp(t, fmt.Sprintf(`\n\nremoved %d links, restored 1 file\n$`, len(pluginNames())-1), p.run("uninstall").ok(t))
	require.Equal(t, map[string]string{"bridge": "a file"}, p.entries())
}

func TestBeside(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "real"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "real", "allocnet"), nil, 0o755))
	require.NoError(t, os.Symlink("real/allocnet", filepath.Join(dir, "allocnet")))
	real, err := filepath.EvalSymlinks(filepath.Join(dir, "real"))
	require.NoError(t, err)
	require.Equal(t, filepath.Join(real, pluginfiles.ProgramName), beside(filepath.Join(dir, "allocnet")))

	got := runWith("", "plugins", "install", dir, "--json").failure(t, exitUsage)
	require.Contains(t, got.Error, pluginfiles.ProgramName+`" does not exist`, "beside the test binary")
	require.Contains(t, got.Hint, "--program")
}
