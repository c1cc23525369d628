package sdk

// Later is what the plugins after one in a chain give the container's interface in place of what that one has given it.
type Later struct {
	MTU     int  // 0: they set none
	Sysctls bool // they set sysctls
}

// Tuner is a plugin that changes the interface that a plugin before it has made. If it is a Repairer, its Repair
// concerns only the container, at which Restore does not look.
type Tuner interface {
	// Tune adds what the plugin changes.
	Tune(*Later)
}

// Tune adds what a plugin changes, if it is a Tuner.
func (c *PluginConf) Tune(name string, factory Factory, later *Later) {
	p, err := c.make(pluginKey{name, c.Bare != nil}, factory)
	if t, ok := p.(Tuner); ok && err == nil {
		t.Tune(later)
	}
}
