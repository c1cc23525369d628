package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/allocnet/allocnet/sandbox"
)

// The protocol of plugin binaries is that of libcni's package skel, with its
// codes and words. That package compiles regular expressions at each start and
// reads the configuration once more than needed; a plugin binary lives for a
// millisecond or two.

// command is what the specification says of one.
type command struct {
	required []string
	// since is the oldest version of a configuration that knows the command.
	since string
}

var commands = map[string]command{
	"ADD":    {[]string{containerID, netnsPath, ifName, pluginPath}, ""},
	"CHECK":  {[]string{containerID, netnsPath, ifName, pluginPath}, "0.4.0"},
	"DEL":    {[]string{containerID, ifName, pluginPath}, ""},
	"GC":     {[]string{pluginPath}, "1.1.0"},
	"STATUS": {[]string{pluginPath}, "1.1.0"},
}

const (
	containerID = "CNI_CONTAINERID"
	netnsPath   = "CNI_NETNS"
	ifName      = "CNI_IFNAME"
	pluginPath  = "CNI_PATH"
)

// answer does what the environment asks for.
func (m *multicall) answer(getenv func(string) string, stdin io.Reader) *types.Error {
	name := getenv("CNI_COMMAND")
	if name == "VERSION" {
		if err := version.All.Encode(os.Stdout); err != nil {
			return types.NewError(types.ErrIOFailure, err.Error(), "")
		}
		return nil
	}
	cmd, known := commands[name]
	if err := checkVariables(cmd.required, getenv); err != nil {
		return err
	}
	conf, err := io.ReadAll(stdin)
	if err != nil {
		return types.NewError(types.ErrIOFailure, fmt.Sprintf("error reading from stdin: %v", err), "")
	}
	confVersion, invalid := readHead(conf)
	if invalid != nil {
		return invalid
	}
	if !known {
		return types.NewError(types.ErrInvalidEnvironmentVariables, "unknown CNI_COMMAND: "+name, "")
	}
	if err := checkVersion(name, cmd.since, confVersion); err != nil {
		return err
	}
	// A DEL is done all the same, and refused after it. An ADD that is refused after
	// its result is printed would be undone by nobody.
	own := (name == "ADD" || name == "DEL") && inHost(getenv)
	if name == "DEL" || !own {
		if err := m.serve(conf); err != nil {
			return asError(err)
		}
	}
	if own {
		return types.NewError(types.ErrInvalidNetNS, "plugin's netns and netns from CNI_NETNS should not be the same", "")
	}
	return nil
}

func asError(err error) *types.Error {
	var coded *types.Error
	if errors.As(err, &coded) {
		return coded
	}
	return types.NewError(types.ErrInternal, err.Error(), "")
}

// inHost reports whether the namespace is the plugin's own, where that is not
// allowed.
func inHost(getenv func(string) string) bool {
	override := getenv("CNI_NETNS_OVERRIDE")
	return override != "1" && !strings.EqualFold(override, "true") &&
		errors.Is(sandbox.Validate(getenv(netnsPath)), sandbox.ErrHostNamespace)
}

// checkVariables finds what a command needs.
func checkVariables(required []string, getenv func(string) string) *types.Error {
	var missing []string
	for _, variable := range required {
		value := getenv(variable)
		if value == "" {
			missing = append(missing, variable)
			continue
		}
		switch variable {
		case containerID:
			if !isName(value) {
				return types.NewError(types.ErrInvalidEnvironmentVariables, "invalid characters in containerID", value)
			}
		case ifName:
			if err := checkIfName(value); err != nil {
				return err
			}
		}
	}
	if len(missing) > 0 {
		return types.NewError(types.ErrInvalidEnvironmentVariables,
			fmt.Sprintf("required env variables [%s] missing", strings.Join(missing, ",")), "")
	}
	return nil
}

// readHead reads what the protocol needs of a configuration: its version.
func readHead(conf []byte) (string, *types.Error) {
	var head struct {
		Name       string `json:"name"`
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal(conf, &head); err != nil {
		return "", types.NewError(types.ErrDecodingFailure, fmt.Sprintf("error unmarshall network config: %v", err), "")
	}
	if head.Name == "" {
		return "", types.NewError(types.ErrInvalidNetworkConfig, "missing network name", "")
	}
	if !isName(head.Name) {
		return "", types.NewError(types.ErrInvalidNetworkConfig, "invalid characters found in network name", head.Name)
	}
	if head.CNIVersion == "" {
		head.CNIVersion = "0.1.0"
	}
	return head.CNIVersion, nil
}

// checkVersion reports whether the command is known to the configuration's
// version, and that to the plugin.
func checkVersion(name, since, confVersion string) *types.Error {
	if since != "" {
		recent, err := version.GreaterThanOrEqualTo(confVersion, since)
		if err != nil {
			return types.NewError(types.ErrDecodingFailure, err.Error(), "")
		}
		if !recent {
			return types.NewError(types.ErrIncompatibleCNIVersion, "config version does not allow "+name, "")
		}
	}
	if err := (&version.Reconciler{}).Check(confVersion, version.All); err != nil {
		return types.NewError(types.ErrIncompatibleCNIVersion, "incompatible CNI versions", err.Details())
	}
	return nil
}

// isName reports whether a text may name a container or a network:
// [a-zA-Z0-9][a-zA-Z0-9_.\-]*.
func isName(s string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case i > 0 && (c == '_' || c == '.' || c == '-'):
		default:
			return false
		}
	}
	return s != ""
}

// maxIfName is IFNAMSIZ without the zero at the end.
const maxIfName = 15

func checkIfName(name string) *types.Error {
	invalid := func(message, details string) *types.Error {
		return types.NewError(types.ErrInvalidEnvironmentVariables, message, details)
	}
	switch {
	case len(name) > maxIfName:
		return invalid("interface name is too long", fmt.Sprintf("interface name should be less than %d characters", maxIfName+1))
	case name == "." || name == "..":
		return invalid("interface name is . or ..", "")
	case strings.ContainsFunc(name, func(r rune) bool { return r == '/' || r == ':' || unicode.IsSpace(r) }):
		return invalid("interface name contains / or : or whitespace characters", "")
	}
	return nil
}
