package native

import (
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// Understands reports whether at least one plugin of a network runs inside the
// process.
func (e *Engine) Understands(n *libcni.NetworkConfigList) bool {
	known, err := e.network(n)
	return err == nil && known.native > 0
}

// Binaries implements engine.Engine.
func (e *Engine) Binaries(n *libcni.NetworkConfigList) []string {
	known, err := e.network(n)
	if err != nil {
		return nil
	}
	return known.binaries
}

// WhyBinaries says, for each plugin of a network that runs as a binary although there is
// a native one, what that does not understand.
func (e *Engine) WhyBinaries(n *libcni.NetworkConfigList) []string {
	known, err := e.network(n)
	if err != nil {
		return nil
	}
	return known.reasons
}

// network is what the engine knows of a network.
type network struct {
	plugins []derived
	// native is how many plugins run inside, binaries are the types of those that
	// do not.
	native   int
	binaries []string
	// reasons are those of the binaries whose native plugin does not understand them.
	reasons []string

	until time.Time
}

// derived is a plugin's configuration with the keys that come from the network.
type derived struct {
	conf []byte
	bare []byte // without runtimeConfig
}

// networks remembers some by their text, for a while: what is understood can
// depend on the host.
type networks struct {
	mu     sync.Mutex
	byText map[string]*network
}

const (
	networksTime = 5 * time.Second
	mostNetworks = 128
)

func (e *Engine) network(list *libcni.NetworkConfigList) (*network, error) {
	e.networks.mu.Lock()
	defer e.networks.mu.Unlock()
	now := time.Now()
	if n := e.networks.byText[string(list.Bytes)]; n != nil && now.Before(n.until) {
		return n, nil
	}
	n, err := e.derive(list)
	if err != nil {
		return nil, err
	}
	if len(e.networks.byText) >= mostNetworks || e.networks.byText == nil {
		e.networks.byText = map[string]*network{}
	}
	n.until = now.Add(networksTime)
	e.networks.byText[string(list.Bytes)] = n
	return n, nil
}

func (e *Engine) derive(list *libcni.NetworkConfigList) (*network, error) {
	n := &network{}
	for _, p := range list.Plugins {
		one, err := deriveOne(list, p)
		if err != nil {
			return nil, fmt.Errorf("configuration of plugin %q: %w", p.Network.Type, err)
		}
		n.plugins = append(n.plugins, one)
		e.judge(n, p, one.conf)
	}
	return n, nil
}

func deriveOne(list *libcni.NetworkConfigList, p *libcni.PluginConfig) (one derived, err error) {
	keys := map[string]json.RawMessage{}
	if err := json.Unmarshal(p.Bytes, &keys); err != nil {
		return one, err
	}
	for key, value := range map[string]string{"name": list.Name, "cniVersion": list.CNIVersion} {
		if keys[key], err = json.Marshal(value); err != nil {
			return one, err
		}
	}
	delete(keys, "prevResult")
	if one.conf, err = json.Marshal(keys); err != nil {
		return one, err
	}
	delete(keys, "runtimeConfig")
	one.bare, err = json.Marshal(keys)
	return one, err
}

// judge says how a plugin and its IPAM plugin run.
func (e *Engine) judge(n *network, p *libcni.PluginConfig, conf []byte) {
	ipam := p.Network.IPAM.Type
	if !e.understood(n, p.Network.Type, conf) {
		n.binaries = append(n.binaries, p.Network.Type)
		if ipam != "" { // which a binary runs as a binary
			n.binaries = append(n.binaries, ipam)
		}
		return
	}
	n.native++
	if ipam != "" && !e.understood(n, ipam, conf) {
		n.binaries = append(n.binaries, ipam)
	}
}

// understood reports whether there is a native plugin of that type that knows
// every key of a configuration; if it does not, the network has the reason. A
// configuration that is invalid is understood, too: the plugin says what is wrong
// with it.
func (e *Engine) understood(n *network, name string, conf []byte) bool {
	factory, ok := e.plugins[name]
	if !ok {
		return false
	}
	_, err := factory(conf)
	if !sdk.IsUnknownKey(err) {
		return true
	}
	n.reasons = append(n.reasons, fmt.Sprintf("plugin %q: %v", name, err))
	return false
}
