package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/allocnet/allocnet/internal/kernel"
)

// Exec is the invoke.Exec of one operation. It runs the plugins that it knows
// inside the process, and all others as binaries; so results, prevResult,
// versions, capabilities and delegation stay libcni's. Close it in the end.
type Exec struct {
	version.PluginDecoder
	Plugins map[string]Factory
	Host    *Host
	// Instance is that of the owners: see names.Owner.
	Instance string
	// Binary runs what is not in Plugins, or has a configuration that is not
	// understood.
	Binary invoke.Exec
	// Lenient ignores keys that are not understood, as the reference plugins do,
	// and says so in the log. It is for the plugin binaries themselves, beside
	// which there is no other.
	Lenient bool

	mu      sync.Mutex
	sandbox *kernel.Sandbox
}

var _ invoke.Exec = (*Exec)(nil)

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
	p, err := e.Plugins[name](conf)
	if e.Lenient && p != nil && IsUnknownKey(err) {
		e.Host.Log.Warn("key of the configuration is ignored", "plugin", name, "because", err)
		err = nil
	}
	if IsUnknownKey(err) && !e.Lenient {
		return e.fallBack(ctx, name, p, call, command, err)
	}
	if IsUnknownKey(err) {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "unsupported configuration", err.Error())
	}
	if err != nil {
		return nil, fmt.Errorf("plugin %q: %w", name, err)
	}
	result, err := run(ctx, p, command, call)
	if err != nil {
		return nil, fmt.Errorf("plugin %q: %w", name, err)
	}
	if result == nil {
		return nil, nil
	}
	return encode(result, conf)
}

// fallBack runs the binary of a plugin whose configuration is not understood. A
// DEL or GC is for what the plugin itself may have made as well, when it still
// understood: what it understands can depend on the host.
func (e *Exec) fallBack(ctx context.Context, name string, p Plugin, c *Call, command string, why error) ([]byte, error) {
	var ownErr error
	if p != nil && (command == "DEL" || command == "GC") {
		_, ownErr = run(ctx, p, command, c)
	}
	path, err := e.findOther(name, c.Path)
	if err != nil {
		return nil, errors.Join(ownErr, fmt.Errorf("plugin %q: %w, and there is no binary to do it: %w", name, why, err))
	}
	e.Host.Log.Warn("running the plugin's binary", "plugin", name, "because", why)
	out, err := e.Binary.ExecPlugin(ctx, path, c.Config, c.env)
	return out, errors.Join(ownErr, err)
}

// Program is the name of the program that is the native plugins as binaries, and
// Aside what it adds to the names of those whose place its links take.
const (
	Program = "allocnet-plugins"
	Aside   = ".reference"
)

// findOther finds the binary of a plugin that is not this code once more, under
// the plugin's name.
func (e *Exec) findOther(name string, paths []string) (string, error) {
	if path, err := e.Binary.FindInPath(name+Aside, paths); err == nil {
		return path, nil
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
func (e *Exec) Sandbox(path string) (*kernel.Sandbox, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sandbox != nil && e.sandbox.Path() == path {
		return e.sandbox, nil
	}
	s, err := kernel.OpenSandbox(path)
	if err != nil {
		return nil, err
	}
	if e.sandbox != nil {
		e.sandbox.Close()
	}
	e.sandbox = s
	return s, nil
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

// Delegate runs another plugin, an IPAM one, with the call's own configuration,
// as the specification has it. The result is nil for all but ADD.
func (c *Call) Delegate(ctx context.Context, command, name string) (*types100.Result, error) {
	path, err := c.exec.FindInPath(name, c.Path)
	if err != nil {
		return nil, err
	}
	args := delegateArgs{command: command, env: c.env}
	if command != "ADD" {
		return nil, invoke.ExecPluginWithoutResult(ctx, path, c.Config, args, c.exec)
	}
	result, err := invoke.ExecPluginWithResult(ctx, path, c.Config, args, c.exec)
	if err != nil {
		return nil, err
	}
	return types100.NewResultFromResult(result)
}

// delegateArgs is the environment of the call with another command.
type delegateArgs struct {
	command string
	env     []string
}

func (a delegateArgs) AsEnv() []string {
	env := make([]string, 0, len(a.env))
	for _, kv := range a.env {
		if !strings.HasPrefix(kv, "CNI_COMMAND=") {
			env = append(env, kv)
		}
	}
	return append(env, "CNI_COMMAND="+a.command)
}

// ErrNoSandbox: an operation needs a namespace that is not there.
var ErrNoSandbox = errors.New("network namespace is gone")
