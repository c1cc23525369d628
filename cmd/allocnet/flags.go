package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/server/settings"
	"github.com/allocnet/allocnet/configurator"
)

// globalFlags are the flags that every command has.
type globalFlags struct {
	set *pflag.FlagSet

	confDir    string
	stateDir   string
	pluginDirs []string
	networks   []string
	chosen     bool // networks are those of the command line
	subnets    []string
	// subnetsFrom is the file with the subnets, in place of subnets.
	subnetsFrom string
	timeout     time.Duration
	engine      engineFlag
	unserved    bool
	socket      string
	noDaemon    bool
	json        bool
	logLevel    string

	// others has the settings without a flag.
	others configurator.Config
}

var logLevels = []string{"trace", "debug", "info", "warn", "error", "off"}

// register adds the flags to the root command, with completion of their values.
func (f *globalFlags) register(root *cobra.Command) {
	f.set = root.PersistentFlags()
	f.others = configurator.Config{Journal: configurator.DefaultJournal}
	f.set.StringVar(&f.confDir, "conf-dir", configurator.DefaultConfDir, "directory of the network configurations")
	f.set.StringVar(&f.stateDir, "state-dir", configurator.DefaultStateDir, "directory of the records")
	f.set.StringArrayVar(&f.pluginDirs, "plugin-dir", nil, "directory to search for plugins; may be repeated")
	f.set.StringSliceVar(&f.networks, "network", nil, "network to attach to; may be repeated, the first one as eth0 (default the first network of --conf-dir)")
	f.set.StringSliceVar(&f.subnets, "subnet", nil, "subnet of the embedded network \"allocnet\", at most one per family")
	f.set.StringVar(&f.subnetsFrom, "subnets-from", "", "file in which flanneld writes the subnets of this host, in place of --subnet")
	f.set.DurationVar(&f.timeout, "timeout", configurator.DefaultTimeout, "longest time for one run of all plugins of an allocation")
	f.engine = engineFlag(configurator.EngineAuto)
	f.set.Var(&f.engine, "engine", "engine that runs the plugins: exec (plugin binaries), native (inside this process) or auto")
	f.set.BoolVar(&f.unserved, "allow-unserved", false, "accept requests that no plugin of the networks serves, such as ports, but not policies; they have no effect")
	f.set.StringVar(&f.socket, "socket", client.DefaultSocket, "socket of the daemon; without a daemon, its last settings are used")
	f.set.BoolVar(&f.noDaemon, "no-daemon", false, "execute the command in this process, with the settings of the daemon")
	f.set.BoolVar(&f.json, "json", false, "print JSON, also for errors")
	f.set.StringVar(&f.logLevel, "log-level", "warn", "level of the log on stderr: "+strings.Join(logLevels, ", "))
	for _, name := range []string{"conf-dir", "state-dir", "plugin-dir"} {
		_ = root.MarkPersistentFlagDirname(name)
	}
	_ = root.RegisterFlagCompletionFunc("log-level", cobra.FixedCompletions(logLevels, cobra.ShellCompDirectiveNoFileComp))
	_ = root.RegisterFlagCompletionFunc("engine", completeEngines)
	_ = root.MarkPersistentFlagFilename("socket")
	_ = root.MarkPersistentFlagFilename("subnets-from")
	for _, name := range []string{"subnet", "timeout"} {
		_ = root.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
}

// fromEnvironment sets the flags that the command line does not have from their
// variables.
func (f *globalFlags) fromEnvironment() error {
	var first error
	f.set.VisitAll(func(flag *pflag.Flag) {
		name := "ALLOCNET_" + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
		value := os.Getenv(name)
		if flag.Changed || value == "" {
			return
		}
		values := []string{value}
		if flag.Name == "plugin-dir" {
			values = slices.DeleteFunc(filepath.SplitList(value), func(dir string) bool { return dir == "" })
		}
		for _, v := range values {
			if err := f.set.Set(flag.Name, v); err != nil && first == nil {
				first = fmt.Errorf("environment variable %s: %w", name, err)
			}
		}
	})
	return first
}

// localFlag returns the name of a given flag for a setting, with which this process
// executes the command; "" if there is none.
func (f *globalFlags) localFlag() string {
	for _, name := range []string{"state-dir", "conf-dir", "plugin-dir", "subnet", "subnets-from", "timeout", "engine", "allow-unserved"} {
		if f.set.Changed(name) {
			return name
		}
	}
	return ""
}

// adopt takes the settings without a flag from the last active settings of the daemon, if
// there are any.
func (f *globalFlags) adopt() error {
	last, err := settings.Read(settings.ActiveFile(f.socket))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) { // no file, or not readable for this user
		return nil
	}
	if err != nil {
		return err
	}
	given := f.set.Changed
	cfg := last.Configurator()
	if !given("conf-dir") {
		f.confDir = cfg.ConfDir
	}
	if !given("state-dir") {
		f.stateDir = cfg.StateDir
	}
	if !given("plugin-dir") && os.Getenv("CNI_PATH") == "" {
		f.pluginDirs = cfg.PluginDirs
	}
	if !given("timeout") {
		f.timeout = cfg.Timeout
	}
	if !given("engine") {
		f.engine = engineFlag(cfg.Engine)
	}
	if !given("allow-unserved") {
		f.unserved = cfg.AllowUnserved
	}
	f.others = cfg
	return nil
}

// requirePaths refuses empty paths, which would lead to the working directory.
func (f *globalFlags) requirePaths() error {
	paths := map[string][]string{"conf-dir": {f.confDir}, "state-dir": {f.stateDir}, "plugin-dir": f.pluginDirs,
		"socket": {f.socket}, "subnets-from": {f.subnetsFrom}}
	for _, name := range slices.Sorted(maps.Keys(paths)) {
		if f.set.Changed(name) && slices.Contains(paths[name], "") {
			return usagef(`--%s "": must be a path; omit the flag to use the default`, name)
		}
	}
	if len(f.socket) > maxSocket {
		return usagef("--socket %q: the path of a socket has at most %d bytes; use a shorter one, or a symbolic link", f.socket, maxSocket)
	}
	return nil
}

// maxSocket is the length of a path in struct sockaddr_un, without the byte at its end.
const maxSocket = 107

// absolute makes the directories independent of the working directory.
func (f *globalFlags) absolute() error {
	dirs := []*string{&f.confDir, &f.stateDir, &f.socket}
	if f.subnetsFrom != "" {
		dirs = append(dirs, &f.subnetsFrom)
	}
	for i := range f.pluginDirs {
		dirs = append(dirs, &f.pluginDirs[i])
	}
	for _, dir := range dirs {
		abs, err := filepath.Abs(*dir)
		if err != nil {
			return fmt.Errorf("directory %q: %w", *dir, err)
		}
		*dir = abs
	}
	return nil
}
