package conflist

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
)

const loopbackType = "loopback"

// Declares reports whether at least one plugin declares a capability as true. It
// ignores the plugin loopback, which implements no capability.
func (n *Network) Declares(capability string) bool {
	return slices.ContainsFunc(n.List.Plugins, func(p *libcni.PluginConfig) bool {
		return p.Network.Type != loopbackType && p.Network.Capabilities[capability]
	})
}

// WithoutCapabilities returns a network in which no plugin declares the named
// capabilities, so that libcni does not pass their arguments.
func (n *Network) WithoutCapabilities(names ...string) (*Network, error) {
	if !slices.ContainsFunc(names, n.Declares) {
		return n, nil
	}
	type reduced struct {
		network *Network
		err     error
	}
	type key string
	r := n.Derive(key(strings.Join(names, ",")), func() any {
		network, err := n.withoutCapabilities(names)
		return reduced{network, err}
	}).(reduced)
	return r.network, r.err
}

func (n *Network) withoutCapabilities(names []string) (*Network, error) {
	var list map[string]json.RawMessage
	var plugins []map[string]json.RawMessage
	err := json.Unmarshal(n.Bytes, &list)
	if err == nil {
		err = json.Unmarshal(list["plugins"], &plugins)
	}
	for _, p := range plugins {
		if err == nil && p["capabilities"] != nil {
			p["capabilities"], err = without(p["capabilities"], names)
		}
	}
	if err == nil {
		list["plugins"], err = json.Marshal(plugins)
	}
	var data []byte
	if err == nil {
		data, err = json.Marshal(list)
	}
	if err != nil {
		return nil, fmt.Errorf("remove capabilities of network %q: %w", n.Name, err)
	}
	return Parse(data)
}

func without(capabilities json.RawMessage, names []string) (json.RawMessage, error) {
	var declared map[string]bool
	if err := json.Unmarshal(capabilities, &declared); err != nil {
		return nil, err
	}
	for _, name := range names {
		delete(declared, name)
	}
	return json.Marshal(declared)
}
