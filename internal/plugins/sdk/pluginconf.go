package sdk

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/version"
)

// PluginConf is the configuration of one plugin of a network, with the native
// plugins created from it. So a network's configuration is parsed once for all
// of its allocations. It is safe for concurrent use.
type PluginConf struct {
	// CNIVersion is the CNI version of the network.
	CNIVersion string
	// Text is the configuration that the specification derives from the network
	// configuration, a JSON object. Bare is Text without runtimeConfig; nil
	// means that Text has none.
	Text, Bare []byte

	mu      sync.Mutex
	plugins map[pluginKey]madePlugin
}

type pluginKey struct {
	name string // the plugin itself, or the IPAM plugin to which it delegates
	bare bool
}

type madePlugin struct {
	plugin Plugin
	err    error
	until  time.Time
}

// madeFor is how long a plugin is reused. It is limited because what a native
// plugin supports can depend on the host.
const madeFor = 5 * time.Second

// lacksCheck reports whether the CNI version is known, and has no CHECK.
func (c *PluginConf) lacksCheck() bool {
	since, err := version.GreaterThanOrEqualTo(c.CNIVersion, "0.4.0")
	return c.CNIVersion != "" && err == nil && !since
}

// Understood returns the error of the native plugin's Factory, or nil.
func (c *PluginConf) Understood(name string, factory Factory) error {
	_, err := c.make(pluginKey{name: name}, factory)
	return err
}

// plugin returns the native plugin of the configuration with the given runtimeConfig;
// nil stands for the runtimeConfig in Text. The error is the Factory's.
func (c *PluginConf) plugin(name string, factory Factory, runtime map[string]json.RawMessage) (Plugin, error) {
	if runtime == nil {
		return c.make(pluginKey{name: name}, factory)
	}
	p, err := c.make(pluginKey{name, c.Bare != nil}, factory)
	if r, ok := p.(RuntimeConfigured); ok && err == nil {
		return r.WithRuntime(runtime)
	}
	text, err := c.with(runtime)
	if err != nil {
		return nil, err
	}
	return factory(text)
}

// make calls the factory. It reuses the plugin and the error for madeFor.
func (c *PluginConf) make(key pluginKey, factory Factory) (Plugin, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if made, ok := c.plugins[key]; ok && now.Before(made.until) {
		return made.plugin, made.err
	}
	text := c.Text
	if key.bare {
		text = c.Bare
	}
	p, err := factory(text)
	if c.plugins == nil {
		c.plugins = map[pluginKey]madePlugin{}
	}
	c.plugins[key] = madePlugin{p, err, now.Add(madeFor)}
	return p, err
}

func (c *PluginConf) bare() []byte {
	if c.Bare == nil {
		return c.Text
	}
	return c.Bare
}

// with returns the configuration with a runtimeConfig.
func (c *PluginConf) with(runtime map[string]json.RawMessage) ([]byte, error) {
	if runtime == nil {
		return c.Text, nil
	}
	return WithKey(c.bare(), "runtimeConfig", runtime)
}
