package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/allocnet/allocnet/internal/engine/pluginexec"
)

// Invocation is one call of a plugin in a chain.
type Invocation struct {
	Plugin string
	// Config is the plugin's configuration as the specification derives it from
	// the network's, a JSON object without prevResult.
	Config []byte
	// Runtime is the runtimeConfig, which Config then has none of; nil is none.
	Runtime map[string]json.RawMessage
	// Shared says that the same Config comes again for other allocations.
	Shared bool
	// Version is the network's cniVersion.
	Version string
	// Previous is the result of the plugin before, or of ADD; nil where there is
	// none. An ADD may change it and return it.
	Previous *types100.Result
	// Binaries are the types of the plugins that ADD ran as binaries; nil where
	// that is not known. DEL runs them so, beside their native kin.
	Binaries []string
	// Args.Command says which operation it is.
	Args Args
}

// Run calls a plugin. The result is nil for all but ADD.
func (e *Exec) Run(ctx context.Context, i *Invocation) (*types100.Result, error) {
	paths := filepath.SplitList(i.Args.Path)
	c := &Call{
		ContainerID: i.Args.ContainerID, Netns: i.Args.NetNS, IfName: i.Args.IfName, Args: i.Args.text(), Path: paths,
		Config: i.Config, Instance: e.Instance, Host: e.Host,
		exec: e, args: &i.Args, shared: i.Shared, runtime: i.Runtime, previous: i.Previous, version: i.Version, binaries: i.Binaries,
	}
	return c.run(ctx, i.Plugin, i.Args.Command)
}

// run runs a plugin with the call's configuration.
func (c *Call) run(ctx context.Context, name, command string) (*types100.Result, error) {
	var ownErr error
	path, err := c.exec.FindInPath(name, c.Path)
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(path, native) {
		result, why, err := c.exec.inside(ctx, name, command, c)
		if why == nil {
			return result, err
		}
		ownErr = err
		if path, err = c.exec.instead(name, c.Path, why); err != nil {
			return nil, errors.Join(ownErr, err)
		}
	}
	result, err := c.binary(ctx, path, command)
	return result, errors.Join(ownErr, err)
}

// binary runs a binary.
func (c *Call) binary(ctx context.Context, path, command string) (*types100.Result, error) {
	if command == Repair {
		return nil, nil
	}
	inside := *c
	inside.Netns = c.exec.pathForBinaries(c.Netns)
	inside.previous = pluginexec.InNetns(c.previous, c.Netns, inside.Netns)
	conf, err := inside.complete()
	if err != nil {
		return nil, err
	}
	environ := replaceEnv(c.environ(), "CNI_COMMAND="+command, "CNI_NETNS="+inside.Netns)
	out, err := c.exec.Binary.ExecPlugin(ctx, path, conf, environ)
	if err != nil || command != "ADD" {
		return nil, err
	}
	result, err := resultOf(out, conf)
	if err != nil {
		return nil, err
	}
	converted, err := types100.NewResultFromResult(result)
	if err != nil {
		return nil, err
	}
	return pluginexec.InNetns(converted, inside.Netns, c.Netns), wellFormed(converted)
}

// resultOf reads what a plugin wrote. A result that does not name its version has
// that of the configuration, as libcni has it.
func resultOf(out, conf []byte) (types.Result, error) {
	expected, err := create.DecodeVersion(conf)
	if err != nil {
		return nil, err
	}
	out, version, err := versioned(out, expected)
	if err != nil {
		return nil, fmt.Errorf("read the plugin's result: %w", err)
	}
	return create.Create(version, out)
}

// versioned is a result with its version, which is the expected one where it names
// none.
func versioned(result []byte, expected string) (with []byte, version string, err error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(result, &object); err != nil {
		return nil, "", err
	}
	if json.Unmarshal(object["cniVersion"], &version) == nil && version != "" {
		return result, version, nil
	}
	if object == nil { // the text was null
		object = map[string]json.RawMessage{}
	}
	object["cniVersion"] = json.RawMessage(strconv.Quote(expected))
	with, err = json.Marshal(object)
	return with, expected, err
}

func wellFormed(r *types100.Result) error {
	for _, i := range r.Interfaces {
		if i == nil {
			return errors.New("result: an interface is null")
		}
	}
	for _, ip := range r.IPs {
		if ip == nil {
			return errors.New("result: an address is null")
		}
	}
	return nil
}

// complete is the configuration with runtimeConfig and prevResult.
func (c *Call) complete() ([]byte, error) {
	conf, err := c.config()
	if err != nil || c.previous == nil {
		return conf, err
	}
	previous, err := c.previous.GetAsVersion(c.version)
	if err != nil {
		return nil, fmt.Errorf("convert result to version %s: %w", c.version, err)
	}
	return WithKey(conf, "prevResult", previous)
}

// WithKey adds a key to a JSON object that does not have it.
func WithKey(object []byte, key string, value any) ([]byte, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	end := strings.LastIndexByte(string(object), '}')
	if end < 0 {
		return nil, decodingError(fmt.Errorf("no object to add %q to", key))
	}
	with := slices.Concat(object[:end], []byte(`,"`+key+`":`), text, object[end:])
	return with, nil
}

// Delegate runs another plugin, an IPAM one, with the call's own configuration,
// as the specification has it. The result is the caller's, and nil for all but
// ADD.
func (c *Call) Delegate(ctx context.Context, command, name string) (*types100.Result, error) {
	delegated := *c
	result, err := delegated.run(ctx, name, command)
	if err != nil || result == nil {
		return nil, err
	}
	return copyResult(result), nil
}

// Inside reports whether Delegate runs a plugin inside the process.
func (c *Call) Inside(name string) bool {
	_, ok := c.exec.Plugins[name]
	return ok
}

// copyResult is one that shares nothing with a configuration that is kept.
func copyResult(r *types100.Result) *types100.Result {
	copied := &types100.Result{CNIVersion: r.CNIVersion, DNS: *r.DNS.Copy()}
	for _, i := range r.Interfaces {
		copied.Interfaces = append(copied.Interfaces, i.Copy())
	}
	for _, i := range r.IPs {
		copied.IPs = append(copied.IPs, i.Copy())
	}
	for _, route := range r.Routes {
		copied.Routes = append(copied.Routes, route.Copy())
	}
	return copied
}

// Previous is the prevResult in the newest version; nil where there is none. Only
// an ADD may change it.
func (c *Call) Previous(common *Common) (*types100.Result, error) {
	if c.previous != nil {
		return c.previous, nil
	}
	return common.previous()
}

// PreviousOfDel is Previous for DEL, which removes what it can find without a
// result too. One that cannot be read is none.
func (c *Call) PreviousOfDel(common *Common) *types100.Result {
	previous, err := c.Previous(common)
	if err == nil && previous != nil {
		err = wellFormed(previous)
	}
	if err != nil {
		c.Host.Log.Warn("DEL goes on without prevResult", "container", c.ContainerID, "because", err)
		return nil
	}
	return previous
}

// environ is the environment of a plugin that is called on behalf of this one.
func (c *Call) environ() []string {
	if c.env == nil {
		c.env = c.args.environ()
	}
	return c.env
}
