package conflist

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/allocnet/allocnet/internal/names"
)

// oldestVersion is the version of a configuration without cniVersion, according to CNI.
const oldestVersion = "0.1.0"

// errNoType lets parsePlugin detect a list in a file for a single plugin.
var errNoType = errors.New(`no "type": name the plugin's program under "type"`)

// draft is a network configuration that may still lack its sidecar plugins.
type draft struct {
	name       string
	version    string // chosen from the declared ones
	inlineOnly bool
	plugins    []json.RawMessage

	// keys has the top level as written, so that unknown keys and the exact form of
	// numbers are kept.
	keys map[string]json.RawMessage
}

// parseList parses the top level of a configuration list.
func parseList(data []byte) (*draft, error) {
	keys, err := parseObject(data)
	if err != nil {
		return nil, err
	}
	d := &draft{keys: keys}
	if d.name, err = stringOf(keys, "name"); err != nil {
		return nil, err
	}
	if err := validateName(d.name); err != nil {
		return nil, err
	}
	if d.version, err = versionOf(keys); err != nil {
		return nil, err
	}
	if d.inlineOnly, err = boolOf(keys, "loadOnlyInlinedPlugins"); err != nil {
		return nil, err
	}
	d.plugins, err = pluginsOf(keys)
	return d, err
}

// parsePlugin parses the configuration of a single plugin, the format before lists, and
// converts it to a list with one plugin. It uses no sidecar directory.
func parsePlugin(data []byte) (*draft, error) {
	conf, err := pluginOf(data)
	if errors.Is(err, errNoType) && hasKey(data, "plugins") {
		return nil, errors.New(`no "type", but a list of "plugins": rename the file so that it ends in .conflist`)
	}
	if err != nil {
		return nil, err
	}
	name := conf.Network.Name
	if err := validateName(name); err != nil {
		return nil, err
	}
	v, err := chooseVersion([]string{conf.Network.CNIVersion})
	if err != nil {
		return nil, err
	}
	return &draft{
		name:       name,
		version:    v,
		inlineOnly: true,
		plugins:    []json.RawMessage{data},
		keys:       map[string]json.RawMessage{"name": json.RawMessage(strconv.Quote(name))},
	}, nil
}

// network validates the plugins and returns the Network. All Networks are created here.
func (d *draft) network() (*Network, error) {
	if len(d.plugins) == 0 {
		return nil, d.noPlugins()
	}
	for i, p := range d.plugins {
		if _, err := pluginOf(p); err != nil {
			return nil, fmt.Errorf("plugin %d of %d: %w", i+1, len(d.plugins), err)
		}
	}
	data, err := d.encode()
	if err != nil {
		return nil, err
	}
	list, err := libcni.NetworkConfFromBytes(data)
	if err != nil {
		return nil, fmt.Errorf("parse network %q: %w: correct it", d.name, err)
	}
	made.Add(1)
	return &Network{Name: d.name, List: list, Bytes: data}, nil
}

func (d *draft) noPlugins() error {
	if _, typed := d.keys["type"]; typed {
		return errors.New(`no "plugins", but a "type" as a single plugin has: rename the file so that it ends in .conf`)
	}
	if d.inlineOnly {
		return errors.New(`no "plugins", and loadOnlyInlinedPlugins is true: list at least one plugin`)
	}
	return fmt.Errorf(`no plugins: list at least one under "plugins", or in a .conf file in the directory %q beside the file`, d.name)
}

// encode writes the draft as self-contained JSON. The keys are sorted, so
// equal configurations have equal bytes.
func (d *draft) encode() ([]byte, error) {
	keys := make(map[string]any, len(d.keys)+3)
	for k, v := range d.keys {
		keys[k] = v
	}
	// DEL must use the same version as ADD, even in a later release that
	// supports a newer one.
	delete(keys, "cniVersions")
	keys["cniVersion"] = d.version
	keys["loadOnlyInlinedPlugins"] = true
	keys["plugins"] = d.plugins
	data, err := json.Marshal(keys)
	if err != nil {
		return nil, fmt.Errorf("encode network %q: %w", d.name, err)
	}
	return data, nil
}

// parseObject splits a JSON object into its values.
func parseObject(data []byte) (map[string]json.RawMessage, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, errors.New("empty: write a network configuration list into it, or remove it")
	}
	var keys map[string]json.RawMessage
	err := json.Unmarshal(data, &keys)
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		line, column := position(data, syntax.Offset)
		return nil, fmt.Errorf("invalid JSON at %d:%d (line:column): %w: correct it", line, column, err)
	case err != nil || keys == nil:
		return nil, errors.New("not a JSON object: it has to start with '{'")
	}
	return keys, nil
}

// position converts the offset of a syntax error, which includes the invalid byte, to
// the line and column of that byte. Both begin at 1.
func position(data []byte, offset int64) (line, column int) {
	before := data[:max(0, min(offset-1, int64(len(data))))]
	line = 1 + bytes.Count(before, []byte("\n"))
	column = len(before) - bytes.LastIndexByte(before, '\n')
	return line, column
}

func stringOf(keys map[string]json.RawMessage, key string) (string, error) {
	raw, ok := keys[key]
	if !ok {
		return "", nil
	}
	var s *string
	if err := json.Unmarshal(raw, &s); err != nil || s == nil {
		return "", fmt.Errorf("%q is not a string: correct it", key)
	}
	return *s, nil
}

// boolOf also accepts the strings "true" and "false", as libcni does.
func boolOf(keys map[string]json.RawMessage, key string) (bool, error) {
	raw, ok := keys[key]
	if !ok {
		return false, nil
	}
	switch strings.ToLower(strings.Trim(string(raw), `"`)) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, fmt.Errorf("%q is neither true nor false: correct it", key)
}

func pluginsOf(keys map[string]json.RawMessage) ([]json.RawMessage, error) {
	raw, ok := keys["plugins"]
	if !ok {
		return nil, nil
	}
	var plugins []json.RawMessage
	if err := json.Unmarshal(raw, &plugins); err != nil || plugins == nil {
		return nil, errors.New(`"plugins" is not a list: correct it`)
	}
	if len(plugins) == 0 {
		return nil, errors.New(`"plugins" is an empty list: add a plugin, or remove the key if the plugins are in the sidecar directory`)
	}
	return plugins, nil
}

// versionOf chooses the CNI version of a list.
func versionOf(keys map[string]json.RawMessage) (string, error) {
	var declared []string
	if raw, ok := keys["cniVersions"]; ok {
		if err := json.Unmarshal(raw, &declared); err != nil {
			return "", errors.New(`"cniVersions" is not a list of strings: correct it`)
		}
	}
	single, err := stringOf(keys, "cniVersion")
	if err != nil {
		return "", err
	}
	if single != "" || len(declared) == 0 {
		declared = append(declared, single)
	}
	return chooseVersion(declared)
}

// chooseVersion returns the highest declared version that libcni supports. libcni
// itself also accepts versions that do not exist, such as 0.5.0, and then cannot parse
// any result.
func chooseVersion(declared []string) (string, error) {
	for _, v := range slices.Backward(version.All.SupportedVersions()) {
		if slices.Contains(declared, v) {
			return v, nil
		}
	}
	if slices.Contains(declared, "") {
		return oldestVersion, nil
	}
	return "", fmt.Errorf(`cniVersion %s is not supported: use one of %s, or add one of them to "cniVersions"`,
		strings.Join(declared, ", "), strings.Join(version.All.SupportedVersions(), ", "))
}

func validateName(name string) error {
	if name == "" {
		return errors.New(`no network name: set "name"`)
	}
	if err := names.ValidateNetwork(name); err != nil {
		return fmt.Errorf("network name %q: %w: use letters, digits, '_', '.' and '-', a letter or digit first", name, err)
	}
	return nil
}

// pluginOf parses the configuration of one plugin and validates the types. All other
// validation is up to the plugin.
func pluginOf(data []byte) (*libcni.PluginConfig, error) {
	keys, err := parseObject(data)
	if err != nil {
		return nil, err
	}
	conf, err := libcni.NetworkPluginConfFromBytes(data)
	if err != nil {
		if raw := string(keys["type"]); raw == "" || raw == `""` {
			return nil, errNoType
		}
		return nil, fmt.Errorf("%w: correct it", err)
	}
	// The types are used as file names in the plugin directories, and as names of
	// vendors' directories.
	if err := names.ValidatePluginType(conf.Network.Type); err != nil {
		return nil, err
	}
	if ipam := conf.Network.IPAM.Type; ipam != "" {
		if err := names.ValidatePluginType(ipam); err != nil {
			return nil, fmt.Errorf("ipam: %w", err)
		}
	}
	return conf, nil
}

func hasKey(data []byte, key string) bool {
	keys, err := parseObject(data)
	_, ok := keys[key]
	return err == nil && ok
}
