package confmanager

import (
	"encoding/json"
	"fmt"
	"maps"

	"github.com/containernetworking/cni/pkg/version"

	"github.com/allocnet/allocnet/internal/state/conflist"
)

// oldestVersion is the oldest one of CNI that knows lists, and that allocnet's
// plugin speaks.
const oldestVersion = "0.3.0"

// conflist is the configuration that delegates to n, proven to be valid.
func (m *Manager) conflist(n *conflist.Network) ([]byte, error) {
	v, err := versionFor(n)
	if err != nil {
		return nil, err
	}
	name := m.o.Name
	if name == "" {
		name = n.Name
	}
	list := map[string]any{
		"name":    name,
		"plugins": []any{m.plugin(n)},
		markKey:   mark{PrimaryFile: n.File, Owner: m.o.Owner},
		// Under the primary's name, libcni would add the primary's sidecar plugins.
		"loadOnlyInlinedPlugins": true,
	}
	if err := setVersion(list, v); err != nil {
		return nil, err
	}
	// What the primary does not support need not be asked of us.
	if n.List.DisableCheck {
		list["disableCheck"] = true
	}
	if n.List.DisableGC {
		list["disableGC"] = true
	}
	data, err := json.MarshalIndent(list, "", "  ")
	if err == nil {
		_, err = conflist.Parse(data)
	}
	if err != nil {
		return nil, fmt.Errorf("configuration that delegates to network %q: %w", n.Name, err)
	}
	return append(data, '\n'), nil
}

// markKey is that of what a manager notes for itself: libcni passes over keys of a list
// that it does not know.
const markKey = "allocnet"

type mark struct {
	// PrimaryFile is the path of the primary network's file.
	PrimaryFile string `json:"primaryFile,omitempty"`
	Owner       string `json:"owner,omitempty"`
}

// markOf is the mark in a file's content; nil where no manager has written it.
func markOf(data []byte) *mark {
	var list map[string]json.RawMessage
	var m *mark
	if json.Unmarshal(data, &list) != nil || json.Unmarshal(list[markKey], &m) != nil {
		return nil
	}
	return m
}

// knownVersion is the newest one that runtimes know who do not read "cniVersions",
// which came with the next.
const knownVersion = "1.0.0"

// setVersion has the list in a version, and in one that every runtime knows.
func setVersion(list map[string]any, v string) error {
	list["cniVersion"] = v
	newer, err := version.GreaterThan(v, knownVersion)
	if newer {
		list["cniVersion"], list["cniVersions"] = knownVersion, []string{knownVersion, v}
	}
	return err
}

func (m *Manager) plugin(n *conflist.Network) map[string]any {
	plugin := map[string]any{}
	maps.Copy(plugin, m.o.Plugin)
	plugin["type"] = conflist.OwnType
	plugin["delegates"] = []string{n.Name}
	if names := n.Capabilities(); len(names) > 0 {
		capabilities := map[string]bool{}
		for _, name := range names {
			capabilities[name] = true
		}
		plugin["capabilities"] = capabilities
	}
	return plugin
}

// versionFor is the highest version that n declares and we speak. Results of an
// older one than any of ours can be said in our oldest.
func versionFor(n *conflist.Network) (string, error) {
	ours, err := version.GreaterThanOrEqualTo(n.List.CNIVersion, oldestVersion)
	if err != nil {
		return "", fmt.Errorf("cniVersion of network %q: %w: correct it", n.Name, err)
	}
	if !ours {
		return oldestVersion, nil
	}
	return n.List.CNIVersion, nil
}
