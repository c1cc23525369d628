package cni

import (
	"encoding/json"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet/cmd/internal/server/strict"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// head is the part of a configuration that every command needs.
type head struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	Scope      string `json:"scope"`
}

// config is a configuration of type "allocnet".
type config struct {
	CNIVersion   string          `json:"cniVersion"`
	Name         string          `json:"name"`
	Type         string          `json:"type"`
	Capabilities map[string]bool `json:"capabilities"`

	Delegate  *string           `json:"delegate"`
	Delegates []string          `json:"delegates"`
	Plugins   []json.RawMessage `json:"plugins"`
	Args      json.RawMessage   `json:"args"`
	Scope     string            `json:"scope"`

	// Where labels and the policy of a container come from, besides the runtimeConfig.
	LabelsFrom map[string]string `json:"labelsFrom"` // names of CNI_ARGS, by the keys of labels
	PolicyFrom string            `json:"policyFrom"` // name of one of CNI_ARGS

	// Read by the program allocnet-cni. "patience" is the former name of "idleTimeout":
	// configurations on hosts have it.
	Socket      string `json:"socket"`
	IdleTimeout string `json:"idleTimeout"`
	Patience    string `json:"patience"`
	Settings    string `json:"settings"`

	// Set by the runtime.
	PrevResult       json.RawMessage            `json:"prevResult"`
	RuntimeConfig    map[string]json.RawMessage `json:"runtimeConfig"`
	ValidAttachments json.RawMessage            `json:"cni.dev/valid-attachments"`
	Attachments      json.RawMessage            `json:"cni.dev/attachments"` // its former name: see sdk.FormerValidKey
}

func badConfig(format string, args ...any) error {
	return &Error{Code: CodeInvalidConfig, Msg: "network configuration: " + fmt.Sprintf(format, args...)}
}

// versionOf returns the version that a configuration declares, or "".
func versionOf(data []byte) string {
	var h head
	_ = json.Unmarshal(data, &h) // the version may be readable nevertheless
	return h.CNIVersion
}

func readHead(data []byte) (h head, err error) {
	if err := json.Unmarshal(data, &h); err != nil {
		return h, &Error{Code: CodeDecodingFailure, Msg: "network configuration cannot be read", Details: err.Error()}
	}
	if h.Name == "" {
		return h, badConfig(`"name" is missing`)
	}
	if err := names.ValidateNetwork(h.Name); err != nil {
		return h, err
	}
	return h, nil
}

// since holds the version that introduced a command.
var since = map[string]string{Check: "0.4.0", GC: "1.1.0", Status: "1.1.0"}

// speaks returns an error if the version is not supported or too old for the command.
func (h *head) speaks(command string) error {
	incompatible := func(details string) error {
		return &Error{Code: CodeIncompatible, Msg: "incompatible CNI versions", Details: details}
	}
	if !Supports(h.CNIVersion) {
		return incompatible(fmt.Sprintf("config is %q, plugin supports %q", h.CNIVersion, Versions))
	}
	if v, ok := since[command]; ok && !AtLeast(h.CNIVersion, v) {
		return incompatible(fmt.Sprintf("config is %q, %s came with %q", h.CNIVersion, command, v))
	}
	return nil
}

// reserved is the prefix of keys that the specification may add. Unknown keys with this
// prefix are ignored.
const reserved = "cni.dev/"

// readConfig decodes a configuration strictly.
func readConfig(data []byte) (*config, error) {
	c := &config{}
	if err := strict.DecodeBut(reserved, data, c); err != nil {
		return nil, badConfig("%v", err)
	}
	given := 0
	for _, is := range []bool{c.Delegate != nil, c.Delegates != nil, c.Plugins != nil} {
		if is {
			given++
		}
	}
	switch {
	case given > 1:
		return nil, badConfig(`give one of "delegate", "delegates" and "plugins"`)
	case c.Delegate != nil:
		c.Delegates = []string{*c.Delegate}
	case c.Delegates != nil && len(c.Delegates) == 0:
		return nil, badConfig(`"delegates" is empty: name a network`)
	case c.Plugins != nil && len(c.Plugins) == 0:
		return nil, badConfig(`"plugins" is empty: list a plugin`)
	}
	for _, name := range c.Delegates {
		if name == "" {
			return nil, badConfig("a delegate has no name")
		}
	}
	if c.Plugins == nil && !isNull(c.Args) {
		return nil, badConfig(`"args" cannot be handed on to networks that are named: give "plugins", or use CNI_ARGS`)
	}
	return c, c.validateDescription()
}

func isNull(value json.RawMessage) bool { return len(value) == 0 || string(value) == "null" }

// attachments returns the attachments of the runtime's lists of valid ones. said is false if there is no list, as
// from cnitool, which runs DEL instead.
func (c *config) attachments() (valid []types.GCAttachment, said bool, err error) {
	valid, said, err = sdk.ValidAttachments(c.ValidAttachments, c.Attachments, strict.Decode)
	if err != nil {
		return nil, false, badConfig("%v", err)
	}
	return valid, said, nil
}
