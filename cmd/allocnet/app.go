package main

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/libcni"
	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/configurator"
)

// app is what all commands of one run share.
type app struct {
	in    io.Reader
	out   *printer
	err   *printer
	flags globalFlags
	// started says that a command has begun: what fails before that is the
	// command line.
	started bool
	// id is that of the allocation that the command names, "" if none.
	id string
	// used are the flags of the command line, as "--flag".
	used []string
	// onForced learns what plugins should have removed; may be nil.
	onForced func(id string, removed []configurator.Leftover)
	// shown are log messages of what the command prints itself.
	shown hclog.ExcludeByMessage
}

func newApp(in io.Reader, out, errOut io.Writer) *app {
	return &app{in: in, out: newPrinter(out), err: newPrinter(errOut)}
}

// prepare runs before every command.
func (a *app) prepare(*cobra.Command, []string) error {
	if err := a.flags.fromEnvironment(); err != nil {
		return err
	}
	if !slices.Contains(logLevels, a.flags.logLevel) {
		return usagef("--log-level %q: must be one of %q", a.flags.logLevel, logLevels)
	}
	return a.flags.absolute()
}

// running notes that the command line was fit to run a command.
func (a *app) running(command runFunc) runFunc {
	return func(c *cobra.Command, args []string) error {
		a.started = true
		return command(c, args)
	}
}

type runFunc = func(*cobra.Command, []string) error

// configurator makes the library's Configurator from the flags and, for what they do
// not say, from what was in force in the daemon that is away.
func (a *app) configurator() (*configurator.Configurator, error) {
	if err := a.flags.adopt(); err != nil {
		if !a.flags.set.Changed("state-dir") { // records may lie elsewhere
			return nil, fmt.Errorf("what the daemon has left of its settings cannot be used: %w: remove it, start the daemon, or say --state-dir", err)
		}
		a.warn("what the daemon has left of its settings is not used: %v", err)
	}
	cfg, err := a.config()
	if err != nil {
		return nil, err
	}
	return configurator.New(cfg)
}

// config is what the flags say. It also moves libcni's cache: this process is
// allocnet's own, so nothing of it has to lie in the host's shared directory.
func (a *app) config() (configurator.Config, error) {
	libcni.CacheDir = filepath.Join(a.flags.stateDir, "cni-cache")
	cfg := a.flags.others
	cfg.ConfDir, cfg.StateDir, cfg.PluginDirs = a.flags.confDir, a.flags.stateDir, a.pluginDirs()
	cfg.Engine, cfg.Timeout = configurator.Engine(a.flags.engine), a.flags.timeout
	cfg.AllowUnserved, cfg.OneShot = a.flags.unserved, true
	if len(a.flags.networks) > 0 {
		cfg.Networks = a.flags.networks
	}
	if len(a.flags.subnets) > 0 {
		cfg.Subnets = nil
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

// pluginDirs are those of the flags, or the ones that came with this program;
// none leaves it to the library.
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

// logger writes to stderr.
func (a *app) logger() hclog.Logger {
	color := hclog.ColorOff
	if a.err.colored && !a.flags.json {
		color = hclog.ForceColor
	}
	return hclog.New(&hclog.LoggerOptions{
		Name: "allocnet", Level: hclog.LevelFromString(a.flags.logLevel), Output: a.err,
		Color: color, JSONFormat: a.flags.json, TimeFormat: "15:04:05.000",
		Exclude: a.shown.Exclude,
	})
}
