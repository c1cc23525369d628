package native

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/plugin"
)

// chain runs the plugins of one attachment, each with its configuration as the
// specification derives it from the network's: name, cniVersion, the result of
// the plugin before, and of the capability arguments those that it declares.
//
// It does what libcni's AddNetworkList and its kin do, with libcni's parts, but
// for the cache file, which a record stands in for, and for reading the same
// configuration several times over: that costs more than the kernel takes for
// all links, addresses and routes.
type chain struct {
	exec *plugin.Exec
	req  *engine.Request
	list *libcni.NetworkConfigList
	args invoke.Args
}

func newChain(exec *plugin.Exec, r *engine.Request, i int) *chain {
	return &chain{exec: exec, req: r, list: r.Attachments[i].List, args: invoke.Args{
		ContainerID: r.ID, NetNS: r.Netns, IfName: r.IfName(i), PluginArgs: r.Args, Path: strings.Join(r.Path(), string(os.PathListSeparator)),
	}}
}

// add runs ADD on every plugin, and returns the last one's result.
func (c *chain) add(ctx context.Context) (*types100.Result, error) {
	c.args.Command = "ADD"
	var result types.Result
	for _, p := range c.list.Plugins {
		conf, path, err := c.prepare(p, result)
		if err != nil {
			return nil, err
		}
		if result, err = invoke.ExecPluginWithResult(ctx, path, conf, &c.args, c.exec); err != nil {
			return nil, fmt.Errorf("plugin %q (ADD): %w", p.Network.Type, err)
		}
	}
	return types100.NewResultFromResult(result)
}

// run runs a command without a result on one plugin.
func (c *chain) run(ctx context.Context, command string, p *libcni.PluginConfig, previous *types100.Result) error {
	c.args.Command = command
	result, err := c.previous(previous)
	if err != nil {
		return err
	}
	conf, path, err := c.prepare(p, result)
	if err == nil {
		err = invoke.ExecPluginWithoutResult(ctx, path, conf, &c.args, c.exec)
	}
	if err != nil {
		return fmt.Errorf("plugin %q (%s): %w", p.Network.Type, command, err)
	}
	return nil
}

// collect runs GC on one plugin.
func (c *chain) collect(ctx context.Context, p *libcni.PluginConfig, valid []types.GCAttachment) error {
	if valid == nil {
		valid = []types.GCAttachment{} // null would not be a list
	}
	withValid, err := libcni.InjectConf(p, map[string]any{"cni.dev/valid-attachments": valid})
	if err != nil {
		return err
	}
	return c.run(ctx, "GC", withValid, nil)
}

// previous is a result of ADD in the network's version, where that version hands
// results to CHECK and DEL.
func (c *chain) previous(r *types100.Result) (types.Result, error) {
	since, err := version.GreaterThanOrEqualTo(c.list.CNIVersion, "0.4.0")
	if err != nil || !since || r == nil {
		return nil, err
	}
	return r.GetAsVersion(c.list.CNIVersion)
}

// prepare finds a plugin and derives its configuration.
func (c *chain) prepare(p *libcni.PluginConfig, previous types.Result) (conf []byte, path string, err error) {
	if path, err = c.exec.FindInPath(p.Network.Type, c.req.Path()); err != nil {
		return nil, "", err
	}
	keys := map[string]json.RawMessage{}
	if err := json.Unmarshal(p.Bytes, &keys); err != nil {
		return nil, "", fmt.Errorf("configuration of plugin %q: %w", p.Network.Type, err)
	}
	set := func(key string, value any) {
		if err == nil {
			keys[key], err = json.Marshal(value)
		}
	}
	set("name", c.list.Name)
	set("cniVersion", c.list.CNIVersion)
	if previous != nil {
		set("prevResult", previous)
	}
	if runtime := c.runtimeConfig(p); len(runtime) > 0 {
		set("runtimeConfig", runtime)
	}
	if err != nil {
		return nil, "", err
	}
	conf, err = json.Marshal(keys)
	return conf, path, err
}

// runtimeConfig are the capability arguments that a plugin declares.
func (c *chain) runtimeConfig(p *libcni.PluginConfig) map[string]json.RawMessage {
	values := map[string]json.RawMessage{}
	for name, declared := range p.Network.Capabilities {
		if value, given := c.req.Capabilities[name]; declared && given {
			values[name] = value
		}
	}
	return values
}
