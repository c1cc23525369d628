package sdk

import (
	"sync"
	"time"
)

// Memory keeps plugins whose configuration was read, for a while: a host has few
// networks, and to read their configurations takes as long as to make a link.
// What a plugin understands can depend on the host, so nothing is kept for long.
// It is safe for concurrent use; the zero value is ready.
type Memory struct {
	mu    sync.Mutex
	known map[memoryKey]memoryEntry
}

type memoryKey struct{ name, conf string }

type memoryEntry struct {
	plugin Plugin
	err    error
	until  time.Time
}

const (
	memoryTime = 5 * time.Second
	memorySize = 256
)

// parse is factory(conf), or what that was lately.
func (m *Memory) parse(name string, conf []byte, factory Factory) (Plugin, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if known, ok := m.known[memoryKey{name, string(conf)}]; ok && now.Before(known.until) {
		return known.plugin, known.err
	}
	if m.known == nil || len(m.known) >= memorySize {
		m.known = make(map[memoryKey]memoryEntry)
	}
	p, err := factory(conf)
	m.known[memoryKey{name, string(conf)}] = memoryEntry{p, err, now.Add(memoryTime)}
	return p, err
}

// plugin is the plugin of a call. Its runtimeConfig is the allocation's own and is
// not kept.
func (m *Memory) plugin(name string, c *Call, factory Factory) (Plugin, error) {
	if c.runtime == nil {
		return m.parse(name, c.Config, factory)
	}
	p, err := m.parse(name, c.Config, factory)
	if r, ok := p.(RuntimeConfigured); ok && err == nil {
		return r.WithRuntime(c.runtime)
	}
	conf, err := c.config()
	if err != nil {
		return nil, err
	}
	return factory(conf)
}
