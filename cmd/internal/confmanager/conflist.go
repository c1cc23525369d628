package confmanager

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/containernetworking/cni/pkg/version"

	"github.com/allocnet/allocnet/internal/state/conflist"
)

// oldestVersion is the oldest CNI version with lists that allocnet's plugin supports.
const oldestVersion = "0.3.0"

// conflist returns the validated configuration that delegates to n.
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
		noteKey:   note{PrimaryFile: n.File, Owner: m.o.Owner},
		// Under the primary's name, libcni would add the primary's sidecar plugins.
		"loadOnlyInlinedPlugins": true,
	}
	if err := setVersion(list, v); err != nil {
		return nil, err
	}
	// Commands that the primary network does not support are not called.
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

// noteKey is the key of the manager's note. libcni ignores unknown keys of a list.
const noteKey = "allocnet"

type note struct {
	// PrimaryFile is the path of the primary network's file.
	PrimaryFile string `json:"primaryFile,omitempty"`
	Owner       string `json:"owner,omitempty"`
}

// noteOf returns the note in a file's content, or nil if no manager has written the file.
func noteOf(data []byte) *note {
	var list map[string]json.RawMessage
	var m *note
	if json.Unmarshal(data, &list) != nil || json.Unmarshal(list[noteKey], &m) != nil {
		return nil
	}
	return m
}

// knownVersion is the newest version for runtimes that do not support "cniVersions".
const knownVersion = "1.0.0"

// setVersion declares the version v. If v is newer than knownVersion, it declares both.
func setVersion(list map[string]any, v string) error {
	list["cniVersion"] = v
	newer, err := version.GreaterThan(v, knownVersion)
	if newer {
		list["cniVersion"], list["cniVersions"] = knownVersion, []string{knownVersion, v}
	}
	return err
}

// plugin returns the configuration of allocnet's plugin, which delegates to n. Runtimes pass only the
// capabilities that it declares.
func (m *Manager) plugin(n *conflist.Network) map[string]any {
	plugin := map[string]any{}
	maps.Copy(plugin, m.o.Plugin)
	plugin["type"] = conflist.OwnType
	plugin["delegates"] = []string{n.Name}
	capabilities := map[string]bool{conflist.LabelsCapability: true}
	for _, name := range slices.Concat(n.Capabilities(), m.o.Capabilities) {
		capabilities[name] = true
	}
	plugin["capabilities"] = capabilities
	return plugin
}

// versionFor returns the highest version that n declares and allocnet's plugin supports. If
// all versions of n are older, it returns the oldest one that the plugin supports.
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
