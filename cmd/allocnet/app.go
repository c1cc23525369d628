package main

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/configurator"
)

// app holds what all commands of one run share.
type app struct {
	in    io.Reader
	out   *term.Printer
	err   *term.Printer
	flags globalFlags
	// started reports whether a command has begun. Earlier errors are errors of the
	// command line.
	started bool
	// examines reports that the command looks for what is wrong, so that settings of the daemon
	// that cannot be read do not end it.
	examines bool
	// id is the ID of the allocation that the command names, or "".
	id string
	// used are the flags that hints do not suggest: see usedFlags.
	used []string
	// onForced is called with leftovers of plugins that were removed by force; may be nil.
	onForced func(id string, removed []configurator.Leftover)
	// shown are log messages that the command prints itself.
	shown hclog.ExcludeByMessage
}

func newApp(in io.Reader, out, errOut io.Writer) *app {
	return &app{in: in, out: term.New(out), err: term.New(errOut)}
}

// prepare runs before every command.
func (a *app) prepare(c *cobra.Command, _ []string) error {
	if err := a.flags.requireMeaning(c); err != nil {
		return err
	}
	a.flags.chosen = a.flags.set.Changed("network")
	if err := a.flags.fromEnvironment(); err != nil {
		return err
	}
	if !slices.Contains(logLevels, a.flags.logLevel) {
		return usagef("--log-level %q: must be one of %q", a.flags.logLevel, logLevels)
	}
	if err := a.flags.requirePaths(); err != nil {
		return err
	}
	return a.flags.absolute()
}

// running records that the command line was valid and a command runs.
func (a *app) running(command runFunc) runFunc {
	return func(c *cobra.Command, args []string) error {
		if i := slices.Index(args, ""); i >= 0 {
			return usagef("argument %d of %s is empty: pass an ID or a name", i+1, c.CommandPath())
		}
		a.started = true
		return command(c, args)
	}
}

// runSubcommand is the function of a command that does nothing without a subcommand. It prints the help,
// which is text, so with --json it returns an error.
func (a *app) runSubcommand(c *cobra.Command, _ []string) error {
	if !a.flags.json {
		return c.Help()
	}
	var names []string
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	return usageError{fmt.Errorf("%s needs a subcommand: %s", c.CommandPath(), strings.Join(names, ", ")), c}
}

type runFunc = func(*cobra.Command, []string) error

// configurator returns a Configurator with the settings of the flags. Settings without a
// flag are the last active settings of the daemon.
func (a *app) configurator() (*configurator.Configurator, error) {
	if err := a.flags.adopt(); err != nil {
		if !a.flags.set.Changed("state-dir") && !a.examines { // the records may be in another directory
			return nil, fmt.Errorf("read the daemon's last settings: %w; otherwise remove that file, start the daemon or pass --state-dir", err)
		}
		a.warn("the daemon's last settings are ignored: %v", err)
	}
	cfg, err := a.config()
	if err != nil {
		return nil, err
	}
	return configurator.New(cfg)
}

// config returns the configuration that the flags select. It also moves libcni's cache to
// the state directory, because the default directory is shared with other programs.
func (a *app) config() (configurator.Config, error) {
	libcni.CacheDir = filepath.Join(a.flags.stateDir, "cni-cache")
	cfg := a.flags.others
	cfg.ConfDir, cfg.StateDir, cfg.PluginDirs = a.flags.confDir, a.flags.stateDir, a.pluginDirs()
	cfg.Engine, cfg.Timeout = configurator.Engine(a.flags.engine), a.flags.timeout
	cfg.AllowUnserved, cfg.OneShot = a.flags.unserved, true
	if len(a.flags.networks) > 0 {
		cfg.Networks = a.flags.networks
	}
	if len(a.flags.subnets) > 0 || a.flags.subnetsFrom != "" {
		cfg.Subnets, cfg.SubnetsFrom = nil, a.flags.subnetsFrom
	}
	cfg.Logger, cfg.OnForced = a.logger(), a.onForced
	for _, s := range a.flags.subnets {
		prefix, err := netip.ParsePrefix(s)
		if err != nil {
			return cfg, usagef("--subnet %q: must be an address with a prefix length, like 10.202.0.0/16", s)
		}
		cfg.Subnets = append(cfg.Subnets, prefix)
	}
	return cfg, nil
}

// pluginDirs returns the directories of the flags, or the directory beside this program.
// Without either it returns nil, for the library's default.
func (a *app) pluginDirs() []string {
	if len(a.flags.pluginDirs) > 0 || os.Getenv("CNI_PATH") != "" {
		return a.flags.pluginDirs
	}
	program, err := os.Executable()
	if err != nil {
		return nil
	}
	return pluginDirsBeside(program)
}

func pluginDirsBeside(program string) []string {
	beside := filepath.Join(filepath.Dir(program), "cni")
	if info, err := os.Stat(beside); err != nil || !info.IsDir() {
		return nil
	}
	return append([]string{beside}, configurator.DefaultPluginDirs()...)
}

// logger returns a logger that writes to stderr.
func (a *app) logger() hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{
		Name: "allocnet", Level: hclog.LevelFromString(a.flags.logLevel), Output: a.err,
		JSONFormat: a.flags.json, TimeFormat: "15:04:05.000",
		Exclude: a.shown.Exclude,
	})
}
