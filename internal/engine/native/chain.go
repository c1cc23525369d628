package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/engine/pluginexec"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/portmap"
)

// chain runs the plugins of one attachment in one operation.
type chain struct {
	engine       *Engine
	exec         *sdk.Exec
	of           *conflist.Network
	network      *network
	capabilities map[string]json.RawMessage
	request      *engine.Request
	index        int // of the attachment
	common       sdk.CmdArgs
	// others returns the attachments of the container so far. The last one is that of the
	// chain, with the given result of its ADD.
	others func(*types100.Result) ([]attached, error)
}

// add runs ADD of all plugins. It adds the elements of all of them in one transaction,
// unless a plugin runs as a binary, which may depend on the plugins before it.
func (c *chain) add(ctx context.Context, result *types100.Result) (_ *types100.Result, err error) {
	plugins := c.of.List.Plugins
	additions := &sdk.Additions{AtOnce: len(c.engine.Binaries(c.of)) > 0}
	additions.RoutesLoopback = !additions.AtOnce && c.routesLoopback()
	c.common.Additions = additions
	for i, p := range plugins {
		additions.Plugin = p.Network.Type
		result, err = c.exec.Run(ctx, p.Network.Type, "ADD", c.args(i, result))
		if err != nil {
			return nil, c.addError(i, err)
		}
		if result == nil {
			return nil, fmt.Errorf("%w: plugin %q returned no result", engine.ErrInvalidResult, p.Network.Type)
		}
	}
	additions.Finish(result)
	if err := c.cross(additions, result); err != nil {
		return nil, err
	}
	err = additions.Apply(ctx, c.exec.Host)
	if err == nil {
		err = c.common.Link.Release(c.exec.Host)
	}
	if err != nil {
		return nil, c.addError(len(plugins)-1, err)
	}
	additions.End(result)
	return c.versioned(result)
}

// cross adds the crossings of the attachment with those before it.
func (c *chain) cross(additions *sdk.Additions, result *types100.Result) error {
	list, err := c.others(result)
	for i := 0; i+1 < len(list); i++ {
		last := &list[len(list)-1]
		if elements := crossing(&list[i], last, last.owner); len(elements.Ports) > 0 {
			additions.More(elements)
		}
	}
	return err
}

// routesLoopback reports whether a plugin is going to set route_localnet of the host's link,
// because the request has host ports.
func (c *chain) routesLoopback() bool {
	if ports := string(c.capabilities[portmap.Capability]); ports == "" || ports == "null" || ports == "[]" {
		return false
	}
	for i, p := range c.of.List.Plugins {
		if name := p.Network.Type; p.Network.Capabilities[portmap.Capability] && c.network.plugins[i].RoutesLoopback(name, c.engine.plugins[name]) {
			return true
		}
	}
	return false
}

func (e *Engine) newChain(exec *sdk.Exec, r *engine.Request, i int) *chain {
	a := r.Attachments[i]
	args := r.Args
	if a.Attached {
		args = slices.DeleteFunc(slices.Clone(args), func(kv [2]string) bool { return slices.Contains(engine.AddressArgs, kv[0]) })
	}
	c := &chain{
		engine: e, exec: exec, of: a.Network, network: e.network(a.Network), capabilities: r.Capabilities, request: r, index: i,
		common: sdk.CmdArgs{
			ContainerID: r.ID, Netns: r.Netns, IfName: r.IfName(i), Args: argsText(args), Path: r.Path(), Binaries: a.Binaries,
			Secondary: slices.ContainsFunc(r.Others, isNetwork) || slices.ContainsFunc(r.Attachments[:i], isNetwork),
			Several:   hasSeveral(r), WaitForPorts: r.WaitForPorts, PortOrder: r.PortOrder,
		},
	}
	if c.network.policed {
		c.common.Link = &sdk.PendingLink{}
	}
	return c
}

func isNetwork(a engine.Attachment) bool { return !a.Loopback }

// hasSeveral reports whether the allocation of a request has several networks.
func hasSeveral(r *engine.Request) bool {
	first := slices.IndexFunc(r.Attachments, isNetwork)
	return first >= 0 && (r.More || slices.ContainsFunc(r.Others, isNetwork) || slices.ContainsFunc(r.Attachments[first+1:], isNetwork))
}

// argsText returns the value of CNI_ARGS.
func argsText(args [][2]string) string {
	pairs := make([]string, len(args))
	for i, kv := range args {
		pairs[i] = kv[0] + "=" + kv[1]
	}
	return strings.Join(pairs, ";")
}

// args returns the arguments of plugin i. They refer to previous, which may be nil.
func (c *chain) args(i int, previous *types100.Result) *sdk.CmdArgs {
	args := c.common
	args.Conf, args.PrevResult = c.network.plugins[i], previous
	// The runtimeConfig has the capability arguments that the plugin declares.
	for name, declared := range c.of.List.Plugins[i].Network.Capabilities {
		if value, given := c.capabilities[name]; declared && given {
			if args.Runtime == nil {
				args.Runtime = make(map[string]json.RawMessage)
			}
			args.Runtime[name] = value
		}
	}
	return &args
}

// addError returns the error of an ADD of plugin i.
func (c *chain) addError(i int, err error) error {
	plugin := c.of.List.Plugins[i].Network.Type
	_, native := c.engine.plugins[plugin]
	return &engine.AddError{
		Place: engine.Place{Attachment: c.index, Plugin: i},
		// A native plugin may have run although a binary that it called did not.
		Unstarted: !native && errors.Is(err, pluginexec.ErrNotStarted),
		Err:       err,
	}
}

// versioned converts the result of the last plugin to the CNI version of the network
// and back, so that it has only fields of that version.
func (c *chain) versioned(result *types100.Result) (*types100.Result, error) {
	converted, err := result.GetAsVersion(c.of.List.CNIVersion)
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
	// Keep the MTUs for the Status, although versions before 1.0.0 lack them.
	for i, itf := range old.Interfaces {
		itf.Mtu = result.Interfaces[i].Mtu
	}
	return old, nil
}

// run runs a command without a result on plugin i. It passes the result of ADD as
// prevResult, but not for DEL if the CNI version of the network has no prevResult there.
// In these versions, only native plugins get the other commands that have one: CHECK, and
// those of allocnet. The caller adds the command to the error.
func (c *chain) run(ctx context.Context, command string, i int, result *types100.Result) error {
	since, err := version.GreaterThanOrEqualTo(c.of.List.CNIVersion, "0.4.0")
	if err = errors.Join(c.network.err, err); err != nil {
		return err
	}
	if command == "DEL" && !since {
		result = nil
	}
	args := c.args(i, result)
	if command == "CHECK" || command == sdk.Repair {
		args.Later = c.later(i)
	}
	_, err = c.exec.Run(ctx, c.of.List.Plugins[i].Network.Type, command, args)
	return err
}

// later returns what the plugins after plugin i do with the container's interface; nil if one of them runs as a binary.
func (c *chain) later(i int) *sdk.Later {
	later, binaries := &sdk.Later{}, slices.Concat(c.common.Binaries, c.engine.Binaries(c.of))
	for j := i + 1; j < len(c.of.List.Plugins); j++ {
		name := c.of.List.Plugins[j].Network.Type
		factory, native := c.engine.plugins[name]
		if !native || slices.Contains(binaries, name) {
			return nil
		}
		c.network.plugins[j].Tune(name, factory, later)
	}
	return later
}

// check runs CHECK of plugin i with the result of ADD.
func (c *chain) check(ctx context.Context, i int, result *types100.Result) error {
	err := c.run(ctx, "CHECK", i, result)
	if err == nil {
		return nil
	}
	binary := slices.Contains(c.engine.Binaries(c.of), c.of.List.Plugins[i].Network.Type)
	return c.request.Checked(engine.Place{Attachment: c.index, Plugin: i}, binary, err)
}

// collect runs GC on plugin i.
func (c *chain) collect(ctx context.Context, i int, valid []types.GCAttachment) error {
	if c.network.err != nil {
		return c.network.err
	}
	if valid == nil {
		valid = []types.GCAttachment{} // encoded as [] instead of null
	}
	args := c.args(i, nil)
	text, err := sdk.WithKey(args.Conf.Text, sdk.ValidKey, valid)
	if err != nil {
		return err
	}
	args.Conf = &sdk.PluginConf{CNIVersion: c.of.List.CNIVersion, Text: text}
	_, err = c.exec.Run(ctx, c.of.List.Plugins[i].Network.Type, "GC", args)
	return err
}
