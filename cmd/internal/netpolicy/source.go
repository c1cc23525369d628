package netpolicy

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/allocnet/allocnet/policy"
)

// Presets are the presets with what they do, in the order in which they are listed.
var Presets = []struct {
	Name policy.Preset
	Does string
}{
	{policy.Isolated, "denies both directions by default"},
	{policy.EgressOnly, "denies both directions by default, allows egress to the world"},
	{policy.NoMetadata, "denies egress to metadata services of cloud providers"},
	{policy.NoHost, "denies by default egress to the host and to allocations of other networks"},
	{policy.PublishedOnly, "denies by default ingress from outside of its network, except to host ports"},
	{policy.NoPrivate, "denies egress to the host and to private addresses"},
}

// None is the text for a policy that allows everything.
const None = "none"

// IsPreset reports whether a text is the name of a preset.
func IsPreset(text string) bool {
	for _, p := range Presets {
		if string(p.Name) == text {
			return true
		}
	}
	return false
}

// Read reads the policy that a text names: "none"; names of presets, separated by commas; the
// path of a file in JSON; or "-" for in.
func Read(text string, in io.Reader) (*policy.Policy, error) {
	switch {
	case text == None:
		return &policy.Policy{}, nil
	case text == "-":
		return parse("standard input", in)
	}
	if p := ofPresets(text); p != nil {
		return p, p.Validate()
	}
	file, err := os.Open(text)
	if errors.Is(err, fs.ErrNotExist) && !strings.Contains(text, "/") {
		return nil, fmt.Errorf("%q is neither a file nor a list of presets; the presets are %s", text, PresetNames())
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return parse(text, file)
}

// ReadText reads a policy in JSON, or one that consists of presets, whose names are separated by
// commas. It reads no files: texts of containers may not name any.
func ReadText(text string) (*policy.Policy, error) {
	if p := ofPresets(text); p != nil {
		return p, p.Validate()
	}
	if !strings.HasPrefix(strings.TrimSpace(text), "{") {
		return nil, fmt.Errorf("%.64q is neither a policy in JSON nor a list of presets; the presets are %s", text, PresetNames())
	}
	return policy.Parse([]byte(text))
}

// ofPresets returns the policy that consists of presets, whose names are separated by commas; nil
// if the text is not such a list.
func ofPresets(text string) *policy.Policy {
	p := &policy.Policy{}
	for name := range strings.SplitSeq(text, ",") {
		if name = strings.TrimSpace(name); !IsPreset(name) {
			return nil
		}
		p.Presets = append(p.Presets, policy.Preset(name))
	}
	return p
}

// PresetNames lists the presets.
func PresetNames() string {
	var names []string
	for _, p := range Presets {
		names = append(names, string(p.Name))
	}
	return strings.Join(names, ", ")
}

func parse(name string, from io.Reader) (*policy.Policy, error) {
	data, err := io.ReadAll(io.LimitReader(from, policy.MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	p, err := policy.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}
