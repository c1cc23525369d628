package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/sandbox"
)

// Exec runs the plugins of one operation: those that it knows inside the process,
// and all others as binaries. As an invoke.Exec it does so for libcni; Run does
// it without the detour over JSON text. Close it in the end.
type Exec struct {
	version.PluginDecoder
	Plugins map[string]Factory
	Host    *Host
	// Instance is that of the owners: see names.Owner.
	Instance string
	// Binary runs what is not in Plugins, or has a configuration that is not
	// understood.
	Binary Runner
	// Lenient ignores keys that are not understood, as the reference plugins do,
	// and says so in the log; a value that cannot be ignored needs the reference
	// plugin, where that was kept. It is for the plugin binaries themselves.
	Lenient bool
	// OwnNetns lets a call name the namespace of the process itself, which is an
	// error otherwise.
	OwnNetns bool
	// Memory, if there is one, keeps configurations that were read.
	Memory *Memory

	// Netns is the path of a namespace that the caller has open, and keeps so.
	Netns string
	Open  *sandbox.Sandbox

	mu      sync.Mutex
	sandbox *rtnl.Sandbox
	path    string // that sandbox was asked for by
}

// Runner finds and runs plugin binaries.
type Runner interface {
	FindInPath(name string, paths []string) (string, error)
	ExecPlugin(ctx context.Context, path string, conf []byte, environ []string) ([]byte, error)
}

// native marks what FindInPath returns for a plugin inside the process.
const native = "native:"

// FindInPath finds a plugin.
func (e *Exec) FindInPath(name string, paths []string) (string, error) {
	if _, ok := e.Plugins[name]; ok {
		return native + name, nil
	}
	return e.Binary.FindInPath(name, paths)
}

// ExecPlugin runs a plugin and returns what it would write to stdout.
func (e *Exec) ExecPlugin(ctx context.Context, path string, conf []byte, environ []string) ([]byte, error) {
	name, ok := strings.CutPrefix(path, native)
	if !ok {
		return e.Binary.ExecPlugin(ctx, path, conf, environ)
	}
	command, call := e.call(conf, environ)
	result, why, err := e.inside(ctx, name, command, call)
	if why != nil {
		path, findErr := e.instead(name, call.Path, why)
		switch {
		case findErr != nil && e.Lenient && command == "DEL":
			e.Host.Log.Warn("DEL goes on without the plugin's binary", "plugin", name, "because", findErr)
			return nil, err
		case findErr != nil && e.Lenient:
			unsupported := types.NewError(types.ErrInvalidNetworkConfig, "unsupported configuration", findErr.Error())
			return nil, statedBy(ctx, command, unsupported)
		case findErr != nil:
			return nil, errors.Join(err, findErr)
		}
		out, binaryErr := e.Binary.ExecPlugin(ctx, path, conf, environ)
		return out, errors.Join(err, binaryErr)
	}
	if err != nil || result == nil {
		return nil, err
	}
	return encode(result, conf)
}

// inside runs a plugin inside the process. Where it does not understand its
// configuration, why says so, and the binary is to run. A DEL or GC is done all
// the same, for what the plugin may have made when it still understood: what it
// understands can depend on the host. For DEL, what ADD did decides about the
// binary, where it is known.
func (e *Exec) inside(ctx context.Context, name, command string, c *Call) (result *types100.Result, why, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = e.panicked(name, command, r)
		}
	}()
	if err := c.validateNames(); err != nil {
		return nil, nil, err
	}
	p, err := e.parse(name, c)
	if why, err = e.tolerate(name, command, p, err); p == nil || why != nil && !removes(command) {
		return nil, why, statedBy(ctx, command, err)
	}
	if command == "DEL" && c.binaries != nil {
		why = nil
		if slices.Contains(c.binaries, name) {
			why = errAddedByBinary
		}
	}
	if err == nil {
		result, err = run(ctx, p, command, c)
	}
	err = statedBy(ctx, command, err)
	if err != nil {
		return nil, why, fmt.Errorf("plugin %q: %w", name, err)
	}
	return result, why, nil
}

// removes reports whether a command is for what an earlier ADD may have made.
func removes(command string) bool { return command == "DEL" || command == "GC" }

// tolerate says what the error of a Factory means for a command: that the binary
// is to run, which is why; that the command fails, which is bad; or neither. DEL
// goes on with what could be read.
func (e *Exec) tolerate(name, command string, p Plugin, err error) (why, bad error) {
	var unknown *UnknownKeyError
	switch {
	case errors.As(err, &unknown):
		if !e.Lenient || p == nil || unknown.Value {
			return err, nil
		}
		e.Host.Log.Warn("key of the configuration is ignored", "plugin", name, "because", err)
		return nil, nil
	case err != nil && p != nil && command == "DEL":
		e.Host.Log.Warn("DEL goes on with a bad configuration", "plugin", name, "because", err)
		return nil, nil
	}
	return nil, err
}

// statedBy is stated for STATUS, and the error itself for other commands.
func statedBy(ctx context.Context, command string, err error) error {
	if command != "STATUS" {
		return err
	}
	return stated(ctx, err)
}

var errAddedByBinary = errors.New("it did the ADD")

// panicked makes an error of a panic: a defect here must not end the process that
// embeds it. Of a CHECK, it is no finding.
func (e *Exec) panicked(name, command string, value any) error {
	e.Host.Log.Error("a native plugin panicked", "plugin", name, "command", command, "panic", value, "stack", string(debug.Stack()))
	return fmt.Errorf("plugin %q: %s panicked: %v", name, command, value)
}

func (e *Exec) parse(name string, c *Call) (Plugin, error) {
	if c.shared && e.Memory != nil {
		return e.Memory.plugin(name, c, e.Plugins[name])
	}
	conf, err := c.config()
	if err != nil {
		return nil, err
	}
	return e.Plugins[name](conf)
}

// Program is the name of the program that is the native plugins as binaries, and
// Aside what it adds to the names of those whose place its links take.
const (
	Program = "allocnet-plugins"
	Aside   = ".reference"
)

// instead finds the binary of a plugin that is not this code once more, under
// the plugin's name, and says why it runs.
func (e *Exec) instead(name string, paths []string, why error) (string, error) {
	path, err := e.findOther(name, paths)
	if err != nil {
		return "", fmt.Errorf("plugin %q: %w, and there is no binary to do it: %w", name, why, err)
	}
	e.Host.Log.Warn("running the plugin's binary", "plugin", name, "because", why)
	return path, nil
}

func (e *Exec) findOther(name string, paths []string) (string, error) {
	if path, err := e.Binary.FindInPath(name+Aside, paths); err == nil {
		return path, nil
	}
	if len(paths) == 0 {
		return "", errors.New("no directory of plugins is given")
	}
	var errs []error
	for _, dir := range paths {
		path, err := e.Binary.FindInPath(name, []string{dir})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if target, err := filepath.EvalSymlinks(path); err == nil && filepath.Base(target) == Program {
			errs = append(errs, fmt.Errorf("%s leads to %s", path, Program))
			continue
		}
		return path, nil
	}
	return "", errors.Join(errs...)
}

// run calls the operation that a command names.
func run(ctx context.Context, p Plugin, command string, c *Call) (*types100.Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	switch command {
	case "ADD":
		return p.Add(ctx, c)
	case "CHECK":
		return nil, checked(ctx, p.Check(ctx, c))
	case "DEL":
		return nil, p.Del(ctx, c)
	case "STATUS":
		return nil, p.Status(ctx, c)
	case "GC":
		return nil, p.GC(ctx, c)
	case Repair:
		if r, ok := p.(Repairer); ok {
			return nil, r.Repair(ctx, c)
		}
		return nil, nil
	}
	return nil, types.NewError(types.ErrInvalidEnvironmentVariables, "unknown CNI_COMMAND", command)
}

// encode writes a result in the version of the configuration.
func encode(result *types100.Result, conf []byte) ([]byte, error) {
	v, err := (&version.ConfigDecoder{}).Decode(conf)
	if err != nil {
		return nil, err
	}
	converted, err := result.GetAsVersion(v)
	if err != nil {
		return nil, err
	}
	return json.Marshal(converted)
}

// call reads what the specification puts into the environment.
func (e *Exec) call(conf []byte, environ []string) (command string, c *Call) {
	c = &Call{Config: conf, Instance: e.Instance, Host: e.Host, exec: e, env: environ}
	for _, kv := range environ {
		key, value, _ := strings.Cut(kv, "=")
		switch key {
		case "CNI_COMMAND":
			command = value
		case "CNI_CONTAINERID":
			c.ContainerID = value
		case "CNI_NETNS":
			c.Netns = value
		case "CNI_IFNAME":
			c.IfName = value
		case "CNI_ARGS":
			c.Args = value
		case "CNI_PATH":
			c.Path = filepath.SplitList(value)
		}
	}
	return command, c
}

// Sandbox is the namespace at a path, opened once for the operation.
func (e *Exec) Sandbox(path string) (*rtnl.Sandbox, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sandbox != nil && e.path == path {
		return e.sandbox, nil
	}
	s, err := e.openSandbox(path)
	if err != nil {
		return nil, err
	}
	if e.sandbox != nil {
		e.sandbox.Close()
	}
	e.sandbox, e.path = s, path
	return s, nil
}

// pathForBinaries is the path of a namespace for plugin binaries. If the caller has it
// open, the path leads to what is open, even if the given path is replaced.
func (e *Exec) pathForBinaries(path string) string {
	if e.Open != nil && e.Netns == path {
		return e.Open.ProcPath()
	}
	return path
}

func (e *Exec) openSandbox(path string) (*rtnl.Sandbox, error) {
	if e.Open != nil && e.Netns == path {
		return rtnl.EnterSandbox(e.Open)
	}
	if e.OwnNetns {
		return rtnl.OpenAnySandbox(path)
	}
	return rtnl.OpenSandbox(path)
}

// Close gives back what the operation opened.
func (e *Exec) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sandbox == nil {
		return nil
	}
	err := e.sandbox.Close()
	e.sandbox = nil
	return err
}
