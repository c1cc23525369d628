package cni

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/allocnet/allocnet/cmd/internal/server/strict"
	"github.com/allocnet/allocnet/configurator"
	policyplugin "github.com/allocnet/allocnet/internal/plugins/policy"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
)

// bare returns the allocation with the fields that the environment contains.
func (c *call) bare() configurator.Allocation {
	return configurator.Allocation{
		ID: c.id(), ContainerID: c.env.ContainerID, Interface: c.env.IfName, Netns: c.env.Netns, Scope: c.head.scope(),
		PluginDirs: c.pluginDirs(), NetnsOverride: c.overridesNetns(),
	}
}

// allocation returns the allocation that the request describes.
func (c *call) allocation() (a configurator.Allocation, err error) {
	a = c.bare()
	a.WaitForPorts = true // runtimes run the ADD of a successor before the DEL of its predecessor
	if a.Args, err = readArgs(c.env.Args); err != nil {
		return a, err
	}
	if a.Networks, a.Conflists, err = c.networks(); err != nil {
		return a, err
	}
	if a.PrevResult, err = c.conf.previous(); err != nil {
		return a, err
	}
	if err := c.conf.capabilities(&a); err != nil {
		return a, err
	}
	return a, c.describe(&a)
}

// networks returns the networks of the request: names, or a network configuration if
// the caller may supply one.
func (c *call) networks() (names []string, lists []json.RawMessage, err error) {
	if c.conf.Plugins != nil && !c.conflists {
		return nil, nil, &Error{
			Code: CodeInvalidConfig, Msg: "the configuration lists plugins, which allocnetd runs for root only",
			Details: `name a network of the daemon with "delegate", or have root set allow_conflists in its settings`,
		}
	}
	return c.conf.networks()
}

// networks returns the names of the networks, or the network configuration of a chain.
func (c *config) networks() (names []string, lists []json.RawMessage, err error) {
	if c.Plugins == nil {
		return c.Delegates, nil, nil
	}
	plugins := slices.Clone(c.Plugins)
	for i := range plugins {
		if plugins[i], err = c.withArgs(plugins[i]); err != nil {
			return nil, nil, badConfig("plugins[%d]: %v", i, err)
		}
	}
	list, err := json.Marshal(map[string]any{"cniVersion": c.CNIVersion, "name": c.Name, "plugins": plugins})
	if err != nil {
		return nil, nil, badConfig("plugins: %v", err)
	}
	n, err := conflist.Parse(list)
	if err != nil {
		return nil, nil, badConfig("plugins: %v", err)
	}
	if n.IsOurs() {
		return nil, nil, badConfig("plugins: one has the type %q, which would call itself: list what it should do", conflist.OwnType)
	}
	return nil, []json.RawMessage{list}, nil
}

// withArgs adds the args to a plugin's configuration, unless it has args.
func (c *config) withArgs(plugin json.RawMessage) (json.RawMessage, error) {
	if isNull(c.Args) {
		return plugin, nil
	}
	var keys map[string]json.RawMessage
	if err := strict.Decode(plugin, &keys); err != nil {
		return nil, err
	}
	if keys == nil || keys["args"] != nil {
		return plugin, nil
	}
	keys["args"] = c.Args
	return json.Marshal(keys)
}

// previous returns the prevResult, or nil. The runtime need not declare its version.
func (c *config) previous() (json.RawMessage, error) {
	if isNull(c.PrevResult) {
		return nil, nil
	}
	conf := &types.NetConf{CNIVersion: c.CNIVersion}
	err := json.Unmarshal(c.PrevResult, &conf.RawPrevResult)
	if err == nil {
		err = version.ParsePrevResult(conf)
	}
	var result *types100.Result
	if err == nil {
		result, err = types100.NewResultFromResult(conf.PrevResult)
	}
	if err != nil {
		return nil, badConfig("prevResult: %v", err)
	}
	return json.Marshal(result)
}

// capabilities adds the runtimeConfig to an allocation.
func (c *config) capabilities(a *configurator.Allocation) error {
	var mappings []portmap.Mapping
	fields := map[string]any{
		portmap.Capability: &mappings, "dns": &a.DNS, "bandwidth": &a.Bandwidth, "ips": &a.IPs, "ipRanges": &a.IPRanges,
		"mac": &a.MAC, "cgroupPath": &a.CgroupPath, policyplugin.Capability: &a.Policy,
		conflist.LabelsCapability: &a.Labels, // no plugin of the delegate has to declare it
	}
	for _, name := range slices.Sorted(maps.Keys(c.RuntimeConfig)) {
		value := c.RuntimeConfig[name]
		field, known := fields[name]
		switch {
		case isNull(value) && name == policyplugin.Capability: // it would allow everything
			return badConfig("runtimeConfig: %s: is null: leave it out, or give it a value", name)
		case isNull(value):
		case !known:
			if a.Capabilities == nil {
				a.Capabilities = map[string]json.RawMessage{}
			}
			a.Capabilities[name] = value
		default:
			if err := decodeCapability(value, field); err != nil {
				return badConfig("runtimeConfig: %s: %v", name, err)
			}
		}
	}
	var err error
	a.Ports, err = ports(mappings)
	return err
}

// decodeCapability decodes the value of a capability. go-cni sends a flat list of ranges;
// each becomes its own set, so that they may have both families.
func decodeCapability(value json.RawMessage, field any) error {
	if p, is := field.(**policy.Policy); is {
		var err error
		*p, err = policy.Parse(value)
		return err
	}
	err := strict.DecodeFold(value, field)
	sets, is := field.(*[][]configurator.IPRange)
	var flat []configurator.IPRange
	if err == nil || !is || strict.DecodeFold(value, &flat) != nil {
		return err
	}
	for _, r := range flat {
		*sets = append(*sets, []configurator.IPRange{r})
	}
	return nil
}

// ports returns the port mappings of a runtime. It ignores those without a host port, which
// are not published.
func ports(mappings []portmap.Mapping) ([]portmap.Port, error) {
	var ports []portmap.Port
	for i, m := range mappings {
		if m.HostPort < 0 {
			return nil, badConfig("runtimeConfig: portMappings[%d]: hostPort is negative", i)
		}
		if m.HostPort == 0 {
			continue
		}
		if m.ContainerPort <= 0 || m.Protocol == "" {
			return nil, badConfig("runtimeConfig: portMappings[%d]: containerPort and protocol must be there", i)
		}
		ports = append(ports, portmap.Port{
			Label: m.Label, Value: m.HostPort, To: m.ContainerPort, HostIP: m.HostIP, Protocols: []string{strings.ToLower(m.Protocol)},
		})
	}
	return ports, nil
}
