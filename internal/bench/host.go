package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// HostOptions are the options of RunHost.
type HostOptions struct {
	// PluginDirs are searched for the reference plugins. Without them, the system exec
	// is left out.
	PluginDirs []string
	// Short measures less, in some seconds.
	Short bool
	// Progress is called before each part of the run.
	Progress func(format string, args ...any)
}

// hostGroups are the measurements of a user's host. They build no programs.
var hostGroups = []group{
	{"life", (*bench).life},
	{"packet", (*bench).packet},
	{"burst", (*bench).burst},
	{"flat", (*bench).flat},
}

// RunHost measures a host for its user, in about half a minute: routed networks
// with the native engine, beside the baseline and the plugin binaries. If these
// cannot be measured, Report.Skipped has the reason. It must be called in a private
// host, and once per process.
func RunHost(ctx context.Context, o HostOptions) (*Report, error) {
	b := &bench{size: host, report: &Report{Machine: thisMachine()}}
	if o.Short {
		b.size = shortHost
	}
	b.progress = o.Progress
	dir, err := findPlugins(ctx, o.PluginDirs)
	if err == nil {
		err = b.tryPlugins(ctx, dir)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		b.report.Skipped = map[string]string{execName: err.Error()}
	}
	if err := b.measure(ctx, hostGroups); err != nil {
		return nil, err
	}
	return b.report, nil
}

// tryPlugins makes one allocation with the plugins of a directory, which are
// measured only if that works.
func (b *bench) tryPlugins(ctx context.Context, dir string) error {
	b.progress("plugin binaries in %s", dir)
	slots, err := b.slots(ctx, 1)
	if err != nil {
		return err
	}
	b.plugins = dir
	sys, err := b.open(ctx, execName, b.size.kinds[0], false)
	if err == nil {
		err = errors.Join((&lives{}).live(ctx, sys, slots[0]), sys.close(ctx))
	}
	if err != nil {
		b.plugins = ""
	}
	return err
}

// errNoReference: no directory has the reference plugins.
var errNoReference = errors.New("no directory has the reference plugins")

// findPlugins returns the first directory that has the reference plugins. The names
// may also belong to allocnet's plugins, which would be compared with themselves.
func findPlugins(ctx context.Context, dirs []string) (string, error) {
	var reasons []string
	for _, dir := range dirs {
		about := aboutPlugin(ctx, filepath.Join(dir, "ptp"))
		if about == "" {
			continue
		}
		if strings.Contains(about, "of allocnet") {
			reasons = append(reasons, "; those in "+dir+" are allocnet's")
			continue
		}
		return dir, nil
	}
	return "", fmt.Errorf("%w: looked in %s%s", errNoReference, strings.Join(dirs, ", "), strings.Join(reasons, ""))
}

// aboutTime bounds the run of a plugin that is asked what it is.
const aboutTime = 5 * time.Second

// aboutPlugin returns what a plugin prints about itself, as all do without
// CNI_COMMAND; "" if it does not exist or cannot run.
func aboutPlugin(ctx context.Context, path string) string {
	ctx, cancel := context.WithTimeout(ctx, aboutTime)
	defer cancel()
	c := exec.CommandContext(ctx, path)
	c.Env, c.WaitDelay = []string{"PATH=" + os.Getenv("PATH")}, time.Second
	about, _ := c.CombinedOutput() // plugins may fail without CNI_COMMAND
	return string(about)
}
