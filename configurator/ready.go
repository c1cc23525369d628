package configurator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/exhausted"
	"github.com/allocnet/allocnet/internal/features"
	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/redact"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/state/statedir"
)

// Ready verifies the requirements of a Setup: the networks of the Config exist, their plugins
// are installed, accept their configurations, and report that they are ready (CNI STATUS, specification 1.1), the process
// has the privileges, the host has nothing in the subnets that it would lose, the kernel has what the plugins need, which is tried once, and the state
// directory is writable, or can be created. Ready changes nothing. It joins all errors.
func (c *Configurator) Ready(ctx context.Context) error { return c.ReadyFor(ctx, Allocation{}) }

// ReadyFor is Ready for the networks of one allocation. It uses only Networks, Conflists, PluginDirs and PrevResult
// of a. The first plugin of a network may need a result only if there is a PrevResult; its content has no
// meaning.
func (c *Configurator) ReadyFor(ctx context.Context, a Allocation) error {
	if len(a.Networks) == 0 && len(a.Conflists) == 0 {
		a.Networks = c.cfg.Networks
	}
	networks, err := c.namedNetworks(a.Networks, a.Conflists)
	unprivileged := c.requirePrivileges()
	errs := []error{unprivileged, c.stateWritable(), err}
	for _, n := range networks {
		errs = append(errs, c.requireRoom(n), c.networkReady(ctx, n, &a))
	}
	if unprivileged == nil {
		errs = append(errs, features.Require(ctx, networks))
	}
	return errors.Join(errs...)
}

// roomForRecord is larger than any usual record, in bytes.
const roomForRecord = 16 << 10

func (c *Configurator) stateWritable() error {
	err := statedir.CheckDirs(c.cfg.StateDir)
	var f *os.File
	if err == nil {
		f, err = unnamed(existing(c.cfg.StateDir))
	}
	if err == nil {
		_, err = f.Write(make([]byte, roomForRecord))
		err = errors.Join(err, f.Close())
	}
	if exhausted.Is(err) {
		return fmt.Errorf("state directory: %w", exhausted.Limit(err))
	}
	if err != nil {
		return fmt.Errorf("state directory: %w", &StateDirError{Dir: c.cfg.StateDir, Err: err})
	}
	return nil
}

// existing returns a directory, or the innermost one of those above it that exists, in which a Setup creates it.
func existing(dir string) string {
	for dir != "/" {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

// unnamed creates a file without a name, which the kernel deletes when the process ends. If
// the file system does not support that, it creates a temporary file and removes it.
func unnamed(dir string) (*os.File, error) {
	f, err := os.OpenFile(dir, os.O_WRONLY|unix.O_TMPFILE, 0o600)
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EINVAL) {
		return f, err
	}
	if f, err = os.CreateTemp(dir, ".ready-"); err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}

func (c *Configurator) networkReady(ctx context.Context, n *conflist.Network, a *Allocation) error {
	dirs := a.PluginDirs
	p := &plan.Plan{Record: &record.Record{Engine: string(c.cfg.Engine), PluginDirs: dirs}}
	p.Add(record.Attachment{Network: n.Name, Config: n.Bytes}, n)
	c.chooseEngine(p)
	if err := errors.Join(c.installed(p), c.valid(n, len(a.PrevResult) > 0)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	return c.engineOf(n).Status(ctx, c.pluginDirs(dirs, pluginTypes(n)...), n)
}

// valid returns what every Setup in a network refuses in the configurations of native plugins. continues reports
// that other plugins may have run before those of the network.
func (c *Configurator) valid(n *conflist.Network, continues bool) error {
	if c.engineOf(n) != c.native {
		return nil
	}
	return c.native.Validate(n, continues)
}

// Networks returns the active networks, in the order of their files and the embedded one
// last, and an error for each skipped file. If the context has ended, it returns a single
// error whose File is ConfDir.
func (c *Configurator) Networks(ctx context.Context) ([]Network, []*NetworkError) {
	if err := ctx.Err(); err != nil {
		return nil, []*NetworkError{{File: c.cfg.ConfDir, Err: err}}
	}
	valid, broken := c.confs.Networks()
	networks := make([]Network, 0, len(valid))
	for i, n := range valid {
		source := cmp.Or(n.Source, n)
		one := Network{
			Name: n.Name, File: n.File, CNIVersion: n.List.CNIVersion, Plugins: source.PluginTypes(),
			Capabilities: n.Capabilities(), Default: i == 0 && n.File != "", Engine: EngineExec,
		}
		if c.cfg.Engine != EngineExec {
			one.Reason = strings.Join(c.native.WhyBinaries(n), "; ")
		}
		if c.engineOf(n) == c.native {
			one.Engine = EngineNative
		}
		if err := c.valid(n, false); err != nil {
			one.Invalid = redact.Text(err.Error())
		}
		networks = append(networks, one)
	}
	var errs []*NetworkError
	for _, b := range broken {
		errs = append(errs, &NetworkError{File: b.File, Err: b.Err})
	}
	return networks, errs
}
