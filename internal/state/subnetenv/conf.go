package subnetenv

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet/internal/names"
)

// Type is the type of the configurations from which Derive derives.
const Type = "flannel"

// DefaultDataDir is the default directory of the derived configurations.
const DefaultDataDir = "/var/lib/cni/flannel"

// MasqExceptKey is the key of the plugins bridge and ptp that lists the networks to
// which they do not masquerade.
const MasqExceptKey = "ipMasqExcept"

// defaultType is the type of the delegate if the configuration has none.
const defaultType = "bridge"

// Conf are the keys of a configuration of type "flannel". Unknown keys are ignored, as
// by the reference plugin.
type Conf struct {
	CNIVersion    json.RawMessage
	Name          json.RawMessage
	Capabilities  json.RawMessage
	RuntimeConfig json.RawMessage
	// SubnetFile and DataDir are absolute paths.
	SubnetFile string
	DataDir    string
	// Delegate is the configuration of the delegate; IPAM is the base of its ipam.
	Delegate map[string]json.RawMessage
	IPAM     map[string]json.RawMessage
}

// ParseConf reads a configuration of type "flannel", alone or as a plugin in a list.
func ParseConf(conf []byte) (*Conf, error) {
	c := &Conf{SubnetFile: DefaultFile, DataDir: DefaultDataDir}
	if err := json.Unmarshal(conf, c); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "network configuration cannot be read", err.Error())
	}
	for _, path := range []struct{ key, value string }{{"subnetFile", c.SubnetFile}, {"dataDir", c.DataDir}} {
		if !filepath.IsAbs(path.value) || strings.ContainsRune(path.value, 0) {
			return nil, invalid("flannel: %q is %.64q, not an absolute path: correct it", path.key, path.value)
		}
	}
	if err := c.validateDelegate(); err != nil {
		return nil, err
	}
	return c, nil
}

// validateDelegate refuses the keys of the delegate that Derive sets itself, and its own
// type, which would call itself without end.
func (c *Conf) validateDelegate() error {
	for _, key := range []string{"name", "ipam"} {
		if _, ok := c.Delegate[key]; ok {
			return invalid(`flannel: "delegate" has the key %q, which flannel sets: remove it there`, key)
		}
	}
	delegate, err := typeOf(c.Delegate, defaultType)
	if err != nil {
		return invalid(`flannel: "delegate": %w`, err)
	}
	if delegate == Type {
		return invalid(`flannel: "delegate": the type is %q itself: name another plugin, such as "bridge"`, Type)
	}
	if _, err := typeOf(c.IPAM, "host-local"); err != nil {
		return invalid(`flannel: "ipam": %w`, err)
	}
	return nil
}

// typeOf returns the type of a plugin in an object, or else the default one.
func typeOf(object map[string]json.RawMessage, fallback string) (string, error) {
	raw, ok := object["type"]
	if !ok {
		return fallback, nil
	}
	var name *string
	if err := json.Unmarshal(raw, &name); err != nil || name == nil {
		return "", errors.New(`"type" is not a string: correct it`)
	}
	return *name, names.ValidatePluginType(*name)
}

// invalid returns an error with the CNI code of a bad configuration.
func invalid(format string, args ...any) error {
	return types.NewError(types.ErrInvalidNetworkConfig, fmt.Errorf(format, args...).Error(), "")
}

// isGiven reports whether a key has a value that is not null.
func isGiven(raw json.RawMessage) bool {
	return len(raw) > 0 && string(raw) != "null"
}
