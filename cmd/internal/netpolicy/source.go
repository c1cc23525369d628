package netpolicy

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
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
	{policy.NoHost, "denies by default egress to the host and to other networks on it"},
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
	names := strings.Split(text, ",")
	switch {
	case text == None:
		return &policy.Policy{}, nil
	case text == "-":
		return parse("standard input", in)
	case !slices.ContainsFunc(names, func(name string) bool { return !IsPreset(name) }):
		p := &policy.Policy{}
		for _, name := range names {
			p.Presets = append(p.Presets, policy.Preset(name))
		}
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
