package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/engine/pluginexec"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// chain runs the plugins of one attachment, each with its configuration as the
// specification derives it from the network's: name, cniVersion, the result of
// the plugin before, and of the capability arguments those that it declares.
//
// It does what libcni's AddNetworkList and its kin do, but hands results from one
// native plugin to the next as they are, and reads what allocations have in
// common once: libcni's way over JSON text, and a cache file, takes more time
// than the kernel does for all links, addresses and routes.
type chain struct {
	engine *Engine
	exec   *sdk.Exec
	req    *engine.Request
	index  int // of the attachment
	list   *libcni.NetworkConfigList
	// previous and binaries: see engine.Attachment.
	previous *types100.Result
	binaries []string
	args     sdk.Args
}

func (e *Engine) newChain(exec *sdk.Exec, r *engine.Request, i int) *chain {
	a := r.Attachments[i]
	return &chain{engine: e, exec: exec, req: r, index: i, list: a.List, previous: a.Previous, binaries: a.Binaries, args: sdk.Args{
		ContainerID: r.ID, NetNS: r.Netns, IfName: r.IfName(i), PluginArgs: r.Args,
		Path: strings.Join(r.Path(), string(os.PathListSeparator)),
	}}
}

// add runs ADD on every plugin, and returns the last one's result.
func (c *chain) add(ctx context.Context) (*types100.Result, error) {
	var err error
	result := c.previous
	for i, p := range c.list.Plugins {
		if result, err = c.call(ctx, "ADD", i, result); err != nil {
			return nil, &engine.AddError{
				Place: engine.Place{Attachment: c.index, Plugin: i}, Unstarted: c.unstarted(p, err), Err: err,
			}
		}
		if result == nil {
			return nil, fmt.Errorf("%w: plugin %q returned none", engine.ErrInvalidResult, p.Network.Type)
		}
	}
	// What the plugins made is what the network's version can say.
	converted, err := result.GetAsVersion(c.list.CNIVersion)
	if err != nil {
		return nil, err
	}
	if same, ok := converted.(*types100.Result); ok {
		return same, nil
	}
	old, err := types100.NewResultFromResult(converted)
	if err != nil {
		return nil, err
	}
	// The status has the MTUs, which versions before 1.0.0 cannot say.
	for i, itf := range old.Interfaces {
		itf.Mtu = result.Interfaces[i].Mtu
	}
	return old, nil
}

// unstarted reports whether err says that a plugin was not even started. One that
// is known here may have run, and what it called not.
func (c *chain) unstarted(p *libcni.PluginConfig, err error) bool {
	_, known := c.engine.plugins[p.Network.Type]
	return !known && errors.Is(err, pluginexec.ErrNotStarted)
}

// run runs a command without a result on one plugin. The result of ADD goes with
// it where the network's version hands it on.
func (c *chain) run(ctx context.Context, command string, i int, previous *types100.Result) error {
	since, err := version.GreaterThanOrEqualTo(c.list.CNIVersion, "0.4.0")
	if err != nil {
		return err
	}
	if !since {
		previous = nil
	}
	_, err = c.call(ctx, command, i, previous)
	return err
}

// call calls plugin i.
func (c *chain) call(ctx context.Context, command string, i int, previous *types100.Result) (*types100.Result, error) {
	p := c.list.Plugins[i]
	conf, runtime, err := c.config(i)
	if err != nil {
		return nil, fmt.Errorf("configuration of plugin %q: %w", p.Network.Type, err)
	}
	one := &sdk.Invocation{
		Plugin: p.Network.Type, Config: conf, Runtime: runtime, Shared: true, Version: c.list.CNIVersion, Previous: previous, Binaries: c.binaries, Args: c.args,
	}
	one.Args.Command = command
	result, err := c.exec.Run(ctx, one)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", command, err)
	}
	return result, nil
}

// config derives the configuration of plugin i, and its runtimeConfig where there
// are capability arguments for it.
func (c *chain) config(i int) (conf []byte, runtime map[string]json.RawMessage, err error) {
	n, err := c.engine.network(c.list)
	if err != nil {
		return nil, nil, err
	}
	if runtime = c.runtimeConfig(c.list.Plugins[i]); runtime != nil {
		return n.plugins[i].bare, runtime, nil
	}
	return n.plugins[i].conf, nil, nil
}

// runtimeConfig are the capability arguments that a plugin declares.
func (c *chain) runtimeConfig(p *libcni.PluginConfig) map[string]json.RawMessage {
	var values map[string]json.RawMessage
	for name, declared := range p.Network.Capabilities {
		if value, given := c.req.Capabilities[name]; declared && given {
			if values == nil {
				values = make(map[string]json.RawMessage)
			}
			values[name] = value
		}
	}
	return values
}

// collect runs GC on plugin i.
func (c *chain) collect(ctx context.Context, i int, valid []types.GCAttachment) error {
	n, err := c.engine.network(c.list)
	if err != nil {
		return err
	}
	if valid == nil {
		valid = []types.GCAttachment{} // null would not be a list
	}
	conf, err := sdk.WithKey(n.plugins[i].conf, "cni.dev/valid-attachments", valid)
	if err != nil {
		return err
	}
	one := &sdk.Invocation{Plugin: c.list.Plugins[i].Network.Type, Config: conf, Version: c.list.CNIVersion, Args: c.args}
	one.Args.Command = "GC"
	if _, err := c.exec.Run(ctx, one); err != nil {
		return fmt.Errorf("GC: %w", err)
	}
	return nil
}
