package native

import (
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/allocnet/allocnet/internal/plugins/policy"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// network has the data that the engine derives from a conflist.Network.
type network struct {
	// plugins are the configurations of the plugins in the order of ADD. They are
	// incomplete if err is not nil.
	plugins []*sdk.PluginConf
	err     error
	// policed is true if one of the plugins enforces network policies.
	policed bool
	segment segment

	mu       sync.Mutex
	assessed *assessment
	until    time.Time
}

// assessment tells which plugins of a network run in-process.
type assessment struct {
	// native is the number of plugins that run in-process; binaries are the
	// types of the others.
	native   int
	binaries []string
	// reasons has the reason of each plugin that runs as a binary although a native one
	// exists.
	reasons []string
}

// assessmentTTL is how long an assessment is reused. It is short because the features
// of a native plugin can depend on the host.
const assessmentTTL = 5 * time.Second

// network returns the derived data of a network, which is stored with it.
func (e *Engine) network(n *conflist.Network) *network {
	return n.Derive(e, func() any { return newNetwork(n.List) }).(*network)
}

func newNetwork(list *libcni.NetworkConfigList) *network {
	n := &network{segment: segmentOf(list)}
	for _, p := range list.Plugins {
		conf, err := pluginConf(list, p)
		if err != nil {
			n.err = fmt.Errorf("configuration of plugin %q: %w", p.Network.Type, err)
			return n
		}
		n.plugins = append(n.plugins, conf)
		n.policed = n.policed || p.Network.Type == policy.Capability
	}
	return n
}

// pluginConf derives the configuration of a plugin (CNI specification, "Deriving
// execution configuration from plugin configuration").
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
func (e *Engine) Understands(n *conflist.Network) bool { return e.assess(n).native > 0 }

// Binaries implements engine.Engine.
func (e *Engine) Binaries(n *conflist.Network) []string { return e.assess(n).binaries }

// WhyBinaries returns the reason for each plugin of a network that runs as a
// binary although there is a native one.
func (e *Engine) WhyBinaries(n *conflist.Network) []string { return e.assess(n).reasons }

func (e *Engine) assess(of *conflist.Network) *assessment {
	n := e.network(of)
	if n.err != nil {
		return &assessment{}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	if n.assessed == nil || now.After(n.until) {
		j := &assessment{}
		for i, p := range of.List.Plugins {
			e.assessPlugin(j, p, n.plugins[i])
		}
		n.assessed, n.until = j, now.Add(assessmentTTL)
	}
	return n.assessed
}

// assessPlugin adds a plugin and its IPAM plugin to an assessment.
func (e *Engine) assessPlugin(j *assessment, p *libcni.PluginConfig, conf *sdk.PluginConf) {
	ipam := p.Network.IPAM.Type
	if !e.understood(j, p.Network.Type, conf) {
		j.binaries = append(j.binaries, p.Network.Type)
		if ipam != "" { // a binary runs its IPAM plugin as a binary, too
			j.binaries = append(j.binaries, ipam)
		}
		return
	}
	j.native++
	if ipam != "" && !e.understood(j, ipam, conf) {
		j.binaries = append(j.binaries, ipam)
	}
}

// understood reports whether a native plugin with that type supports every key of a
// configuration. If it does not, understood adds the reason to the assessment. An
// invalid configuration counts as understood, because the native plugin then returns
// the error.
func (e *Engine) understood(j *assessment, name string, conf *sdk.PluginConf) bool {
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
