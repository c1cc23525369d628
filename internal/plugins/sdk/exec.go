package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/sandbox"
)

// Exec runs the plugins of one operation: native ones in the process, and all others as
// binaries. Close it in the end.
type Exec struct {
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
	// OwnNetns lets an attachment name the namespace of the process itself, which is an
	// error otherwise.
	OwnNetns bool

	// Netns is the path of a namespace that the caller has open, and keeps so.
	Netns string
	Open  *sandbox.Sandbox

	mu      sync.Mutex
	sandbox *rtnl.Sandbox
	path    string // that sandbox was asked for by
}

// Run runs a command of a plugin: in the process where there is a native one that
// understands the configuration, else its binary. The result is nil for all but ADD.
//
// A DEL or GC of a configuration that the native plugin does not understand runs both, for
// what the native one may have made when it still understood: that can depend on the
// host. For DEL, what ADD did decides about the binary, where it is known.
func (e *Exec) Run(ctx context.Context, name, command string, a *CmdArgs) (result *types100.Result, err error) {
	a.exec, a.Host, a.Instance = e, e.Host, e.Instance
	factory, native := e.Plugins[name]
	if !native {
		path, err := e.Binary.FindInPath(name, a.Path)
		if err != nil {
			return nil, err
		}
		return e.binary(ctx, path, command, a)
	}
	defer e.recovered(name, command, &err)
	p, why, err := e.choose(ctx, name, command, factory, a)
	switch {
	case p == nil:
	case command == "ADD" && ctx.Err() == nil:
		if result, err = p.Add(ctx, a); err != nil {
			return nil, fmt.Errorf("plugin %q: %w", name, err)
		}
	default:
		err = e.command(ctx, p, name, command, a)
	}
	if why == nil {
		return result, err
	}
	return e.runInstead(ctx, name, command, a, why, err)
}

// choose returns the native plugin if it is to run the command, and why the binary is to
// run, if it is.
func (e *Exec) choose(ctx context.Context, name, command string, factory Factory, a *CmdArgs) (p Plugin, why, err error) {
	if err := a.validateNames(); err != nil {
		return nil, nil, err
	}
	p, err = a.Conf.plugin(name, factory, a.Runtime)
	why, err = e.tolerate(name, command, p, err)
	if p == nil || why != nil && !removes(command) {
		return nil, why, statedBy(ctx, command, err)
	}
	if command == "DEL" && a.Binaries != nil {
		why = nil
		if slices.Contains(a.Binaries, name) {
			why = errAddedByBinary
		}
	}
	if err != nil {
		return nil, why, fmt.Errorf("plugin %q: %w", name, statedBy(ctx, command, err))
	}
	return p, why, nil
}

// command runs a command that has no result.
func (e *Exec) command(ctx context.Context, p Plugin, name, command string, a *CmdArgs) (err error) {
	defer e.recovered(name, command, &err)
	if err = ctx.Err(); err == nil {
		switch command {
		case "CHECK":
			err = checked(ctx, p.Check(ctx, a))
		case "DEL":
			err = p.Del(ctx, a)
		case "STATUS":
			err = p.Status(ctx, a)
		case "GC":
			err = p.GC(ctx, a)
		case Repair:
			if r, ok := p.(Repairer); ok {
				err = r.Repair(ctx, a)
			}
		default:
			err = types.NewError(types.ErrInvalidEnvironmentVariables, "unknown CNI_COMMAND", command)
		}
	}
	if err != nil {
		return fmt.Errorf("plugin %q: %w", name, statedBy(ctx, command, err))
	}
	return nil
}

// runInstead runs the binary of a native plugin. ownErr is the native plugin's error.
func (e *Exec) runInstead(ctx context.Context, name, command string, a *CmdArgs, why, ownErr error) (*types100.Result, error) {
	path, err := e.instead(name, a.Path, why)
	switch {
	case err == nil:
		result, err := e.binary(ctx, path, command, a)
		return result, errors.Join(ownErr, err)
	case e.Lenient && command == "DEL":
		e.Host.Log.Warn("DEL goes on without the plugin's binary", "plugin", name, "because", err)
		return nil, ownErr
	case e.Lenient:
		return nil, statedBy(ctx, command, types.NewError(types.ErrInvalidNetworkConfig, "unsupported configuration", err.Error()))
	}
	return nil, errors.Join(ownErr, err)
}

// Answer is Run as a plugin binary: the configuration is what came on stdin, environ the
// environment, and the text what goes to stdout.
func (e *Exec) Answer(ctx context.Context, name string, conf []byte, environ []string) ([]byte, error) {
	command, a := CmdArgsOf(environ, conf)
	result, err := e.Run(ctx, name, command, a)
	if err != nil || result == nil {
		return nil, err
	}
	return encode(result, conf)
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

// recovered makes an error of a panic: a defect of a plugin must not end the process that
// embeds it. Of a CHECK, it is no finding.
func (e *Exec) recovered(name, command string, err *error) {
	if value := recover(); value != nil {
		e.Host.Log.Error("a native plugin panicked", "plugin", name, "command", command, "panic", value, "stack", string(debug.Stack()))
		*err = fmt.Errorf("plugin %q: %s panicked: %v", name, command, value)
	}
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

// Close closes what the operation opened.
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
