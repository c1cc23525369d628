package native

import (
	"sync"

	"github.com/containernetworking/cni/libcni"

	"github.com/allocnet/allocnet/internal/plugin"
	"github.com/allocnet/allocnet/internal/plugin/builtin"
)

// Understands reports whether at least one plugin of a network runs inside the
// process.
func (e *Engine) Understands(n *libcni.NetworkConfigList) bool {
	return e.verdict(n).native > 0
}

// Binaries implements engine.Engine.
func (e *Engine) Binaries(n *libcni.NetworkConfigList) []string { return e.verdict(n).binaries }

// verdict says how a network's plugins run.
type verdict struct {
	native   int
	binaries []string
}

// verdicts remembers some by the text of the network: to decode every plugin's
// configuration would cost an ADD as much as a link does.
type verdicts struct {
	mu     sync.Mutex
	byText map[string]verdict
}

const mostVerdicts = 128

func (e *Engine) verdict(n *libcni.NetworkConfigList) verdict {
	e.verdicts.mu.Lock()
	defer e.verdicts.mu.Unlock()
	if v, ok := e.verdicts.byText[string(n.Bytes)]; ok && len(n.Bytes) > 0 {
		return v
	}
	v := judge(n)
	if len(e.verdicts.byText) >= mostVerdicts || e.verdicts.byText == nil {
		e.verdicts.byText = map[string]verdict{}
	}
	e.verdicts.byText[string(n.Bytes)] = v
	return v
}

func judge(n *libcni.NetworkConfigList) verdict {
	var v verdict
	for _, p := range n.Plugins {
		ipam := p.Network.IPAM.Type
		if !understood(p.Network.Type, p.Bytes) {
			v.binaries = append(v.binaries, p.Network.Type)
			if ipam != "" { // which a binary runs as a binary
				v.binaries = append(v.binaries, ipam)
			}
			continue
		}
		v.native++
		if ipam != "" && !understood(ipam, p.Bytes) {
			v.binaries = append(v.binaries, ipam)
		}
	}
	return v
}

// understood reports whether there is a native plugin of that type that knows
// every key of a configuration. One that is invalid is understood, too: the
// plugin says what is wrong with it.
func understood(name string, conf []byte) bool {
	factory, ok := builtin.Plugins[name]
	if !ok {
		return false
	}
	_, err := factory(conf)
	return !plugin.IsUnknownKey(err)
}
