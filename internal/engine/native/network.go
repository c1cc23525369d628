package native

import (
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// network is a network as the engine runs it.
type network struct {
	// plugins are the configurations of its plugins, in the order of ADD. They cannot
	// be used if err is not nil.
	plugins []*sdk.PluginConf
	err     error

	mu     sync.Mutex
	judged *judgement
	until  time.Time
}

// judgement is which plugins of a network run in-process.
type judgement struct {
	// native is the number of plugins that run in-process; binaries are the
	// types of the others.
	native   int
	binaries []string
	// reasons are those of the binaries whose native plugin does not understand them.
	reasons []string
}

// judgedFor is how long a judgement is reused. It is limited because what a
// native plugin supports can depend on the host.
const judgedFor = 5 * time.Second

// network returns what the engine made of a network, which is kept with it.
func (e *Engine) network(n *conflist.Network) *network {
	return n.Derive(e, func() any { return newNetwork(n.List) }).(*network)
}

func newNetwork(list *libcni.NetworkConfigList) *network {
	n := &network{}
	for _, p := range list.Plugins {
		conf, err := pluginConf(list, p)
		if err != nil {
			n.err = fmt.Errorf("configuration of plugin %q: %w", p.Network.Type, err)
			return n
		}
		n.plugins = append(n.plugins, conf)
	}
	return n
}

// pluginConf derives the configuration of a plugin as the specification has it (CNI
// specification, "Deriving execution configuration from plugin configuration").
func pluginConf(list *libcni.NetworkConfigList, p *libcni.PluginConfig) (*sdk.PluginConf, error) {
	keys := map[string]json.RawMessage{}
	err := json.Unmarshal(p.Bytes, &keys)
	if err != nil {
		return nil, err
	}
	for key, value := range map[string]string{"name": list.Name, "cniVersion": list.CNIVersion} {
		if keys[key], err = json.Marshal(value); err != nil {
			return nil, err
		}
	}
	delete(keys, "prevResult")
	conf := &sdk.PluginConf{CNIVersion: list.CNIVersion}
	if conf.Text, err = json.Marshal(keys); err != nil {
		return nil, err
	}
	if _, own := keys["runtimeConfig"]; own {
		delete(keys, "runtimeConfig")
		conf.Bare, err = json.Marshal(keys)
	}
	return conf, err
}

// Understands reports whether at least one plugin of a network runs in-process.
func (e *Engine) Understands(n *conflist.Network) bool { return e.judge(n).native > 0 }

// Binaries implements engine.Engine.
func (e *Engine) Binaries(n *conflist.Network) []string { return e.judge(n).binaries }

// WhyBinaries returns the reason for each plugin of a network that runs as a
// binary although there is a native one.
func (e *Engine) WhyBinaries(n *conflist.Network) []string { return e.judge(n).reasons }

func (e *Engine) judge(of *conflist.Network) *judgement {
	n := e.network(of)
	if n.err != nil {
		return &judgement{}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	if n.judged == nil || now.After(n.until) {
		j := &judgement{}
		for i, p := range of.List.Plugins {
			e.judgePlugin(j, p, n.plugins[i])
		}
		n.judged, n.until = j, now.Add(judgedFor)
	}
	return n.judged
}

// judgePlugin adds a plugin and its IPAM plugin to a judgement.
func (e *Engine) judgePlugin(j *judgement, p *libcni.PluginConfig, conf *sdk.PluginConf) {
	ipam := p.Network.IPAM.Type
	if !e.understood(j, p.Network.Type, conf) {
		j.binaries = append(j.binaries, p.Network.Type)
		if ipam != "" { // which a binary runs as a binary
			j.binaries = append(j.binaries, ipam)
		}
		return
	}
	j.native++
	if ipam != "" && !e.understood(j, ipam, conf) {
		j.binaries = append(j.binaries, ipam)
	}
}

// understood reports whether there is a native plugin of that type that knows every key
// of a configuration; if it does not, the judgement has the reason. A configuration that
// is invalid is understood, too: the plugin says what is wrong with it.
func (e *Engine) understood(j *judgement, name string, conf *sdk.PluginConf) bool {
	factory, ok := e.plugins[name]
	if !ok {
		return false
	}
	err := conf.Understood(name, factory)
	if !sdk.IsUnknownKey(err) {
		return true
	}
	j.reasons = append(j.reasons, fmt.Sprintf("plugin %q: %v", name, err))
	return false
}
