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

	"github.com/allocnet/allocnet/internal/engine/pluginexec"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/sandbox"
)

// Exec runs the plugins of one operation: native plugins in-process, all others
// as binaries. The caller closes it after the operation.
type Exec struct {
	Plugins map[string]Factory
	Host    *Host
	// Instance is the instance in the names of owners: see names.Owner.
	Instance string
	// Binary runs plugins that are not in Plugins, and native plugins whose
	// configuration has a key that the native plugin does not implement.
	Binary Runner
	// Lenient makes native plugins ignore unknown keys with a warning, as the
	// reference plugins do. An unknown value cannot be ignored; it needs the
	// reference plugin's binary, if one was kept. The plugin binaries set
	// Lenient.
	Lenient bool
	// OwnNetns permits an attachment in the network namespace of this process,
	// which is an error otherwise.
	OwnNetns bool

	// Netns is the path of a network namespace that the caller has open as Open
	// and keeps open.
	Netns string
	Open  *sandbox.Sandbox

	mu      sync.Mutex
	sandbox *rtnl.Sandbox
	path    string    // of sandbox
	valid   [2]string // the last valid container ID and interface, which most plugins share
}

// Run runs a command of a plugin: in-process if there is a native plugin that
// understands the configuration, otherwise as a binary. The result is nil for
// all commands but ADD.
//
// If the native plugin does not understand the configuration, DEL and GC run
// both the native plugin and the binary: the native plugin may have understood
// it at the time of the ADD, because that can depend on the host. If it is
// known which plugins ADD ran as binaries, DEL runs only those binaries.
//
// GC does nothing if the configuration has no list of valid attachments.
func (e *Exec) Run(ctx context.Context, name, command string, a *CmdArgs) (result *types100.Result, err error) {
	a.exec, a.Host, a.Instance = e, e.Host, e.Instance
	factory, native := e.Plugins[name]
	if !native {
		path, err := e.Binary.FindInPath(name, a.Path)
		if err != nil {
			return nil, err
		}
		return e.binary(ctx, name, path, command, a)
	}
	defer e.recovered(name, command, &err)
	p, why, err := e.choose(ctx, name, command, factory, a)
	if command == "GC" && err == nil {
		var given bool
		if a.Valid, given, err = validAttachments(a.Conf.Text); err != nil || !given {
			return nil, named(name, err)
		}
	}
	switch {
	case p == nil:
		err = named(name, err)
	case command == "ADD" && ctx.Err() == nil:
		if result, err = p.Add(ctx, a); err != nil {
			return nil, named(name, err)
		}
	default:
		err = e.command(ctx, p, name, command, a)
	}
	if why == nil {
		return result, err
	}
	result, binaryErr := e.runFallback(ctx, name, command, a, why)
	return result, errors.Join(err, binaryErr)
}

// choose returns the native plugin if it must run the command, and the reason
// why the binary must run, if it must.
func (e *Exec) choose(ctx context.Context, name, command string, factory Factory, a *CmdArgs) (p Plugin, why, err error) {
	if command != "STATUS" && command != "GC" { // they are about no attachment, whatever the environment has
		if err := e.validateNames(a); err != nil {
			return nil, nil, err
		}
	}
	if command == "ADD" && a.IfName != "" {
		if err := names.ValidateNewInterface(a.IfName); err != nil {
			return nil, nil, err
		}
	}
	p, err = a.Conf.plugin(name, factory, a.Runtime)
	why, err = e.tolerate(name, command, p, Invalid(err))
	if p == nil || why != nil && !removes(command) {
		return nil, why, statusError(ctx, command, err)
	}
	if command == "DEL" && a.Binaries != nil {
		why = nil
		if slices.Contains(a.Binaries, name) {
			why = errAddedByBinary
		}
	}
	if err != nil {
		return nil, why, statusError(ctx, command, err)
	}
	return p, why, nil
}

// validateNames is CmdArgs.validateNames, once for all plugins of an attachment.
func (e *Exec) validateNames(a *CmdArgs) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	both := [2]string{a.ContainerID, a.IfName}
	if both == e.valid {
		return nil
	}
	err := a.validateNames()
	if err == nil {
		e.valid = both
	}
	return err
}

// command runs a command without a result.
func (e *Exec) command(ctx context.Context, p Plugin, name, command string, a *CmdArgs) (err error) {
	defer e.recovered(name, command, &err)
	if err = ctx.Err(); err == nil {
		switch command {
		case "CHECK":
			err = checkError(ctx, p.Check(ctx, a))
		case "DEL":
			err = p.Del(ctx, a)
		case "STATUS":
			err = p.Status(ctx, a)
		case "GC":
			err = p.GC(ctx, a)
		case Disconnect:
			if d, ok := p.(Disconnecter); ok {
				err = d.Disconnect(ctx, a)
			}
		case Repair:
			if r, ok := p.(Repairer); ok {
				err = r.Repair(ctx, a)
			}
		default:
			err = types.NewError(types.ErrInvalidEnvironmentVariables, "unknown CNI_COMMAND", command)
		}
	}
	return named(name, statusError(ctx, command, err))
}

// runFallback runs the binary of a native plugin, which why requires.
func (e *Exec) runFallback(ctx context.Context, name, command string, a *CmdArgs, why error) (*types100.Result, error) {
	path, err := e.findFallback(name, a.Path, why)
	switch {
	case err == nil:
		return e.binary(ctx, name, path, command, a)
	case e.Lenient && command == "DEL":
		e.Host.Log.Warn("DEL continues without the plugin's binary", "plugin", name, "because", err)
		return nil, nil
	case e.Lenient:
		return nil, statusError(ctx, command, types.NewError(types.ErrInvalidNetworkConfig, "unsupported configuration", err.Error()))
	}
	return nil, err
}

// Answer is Run for a plugin binary: it takes the configuration from stdin and
// the environment, with the instance in CNI_PATH, and returns the text for stdout.
// Its error does not name the plugin, because the runtime does, and that of DEL
// has no words that runtimes take for success.
func (e *Exec) Answer(ctx context.Context, name string, conf []byte, environ []string) ([]byte, error) {
	command, a := CmdArgsOf(environ, conf)
	if instance := pluginexec.InstanceOf(a.Path); instance != "" {
		e.Instance = instance
	}
	result, err := e.Run(ctx, name, command, a)
	if err = unnamed(name, err); err != nil && command == "DEL" {
		err = delError{err}
	}
	if err != nil || result == nil {
		return nil, err
	}
	return encode(result, conf)
}

// removes reports whether a command removes objects that an earlier ADD may
// have created.
func removes(command string) bool { return command == "DEL" || command == "GC" }

// tolerate interprets the error of a Factory for a command. why is the reason
// to run the binary, bad the error with which the command fails; both are nil
// if the native plugin runs. DEL runs with the part of the configuration that
// could be read.
func (e *Exec) tolerate(name, command string, p Plugin, err error) (why, bad error) {
	var unknown *UnknownKeyError
	switch {
	case errors.As(err, &unknown):
		if !e.Lenient || p == nil || unknown.Value {
			return err, nil
		}
		e.Host.Log.Warn("unknown key of the configuration is ignored", "plugin", name, "because", err)
		return nil, nil
	case err != nil && p != nil && command == "DEL":
		e.Host.Log.Warn("DEL continues with an invalid configuration", "plugin", name, "because", err)
		return nil, nil
	}
	return nil, err
}

var errAddedByBinary = errors.New("the binary did the ADD")

// recovered turns a panic into an error: a defect of a plugin must not end the
// process that embeds it. For CHECK, the error is not a finding.
func (e *Exec) recovered(name, command string, err *error) {
	if value := recover(); value != nil {
		e.Host.Log.Error("a native plugin panicked", "plugin", name, "command", command, "panic", value, "stack", string(debug.Stack()))
		*err = named(name, fmt.Errorf("%s panicked: %v", command, value))
	}
}

// encode returns a result in the CNI version of the configuration.
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

// Sandbox returns the network namespace at a path. It opens the namespace once
// per operation.
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

// pathForBinaries returns the path of a network namespace for plugin binaries.
// If the caller has the namespace open, the path refers to the open one, even
// if the given path is replaced.
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

// Close closes the namespace that the operation opened.
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
