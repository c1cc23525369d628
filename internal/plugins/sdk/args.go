package sdk

import (
	"os"
	"strings"
)

// Args are the parameters of a call that the specification puts into the
// environment. They are libcni's invoke.Args; that package would bring an HTTP
// client and tracing into every plugin binary, and have them initialised at each
// start.
type Args struct {
	Command     string
	ContainerID string
	NetNS       string
	// PluginArgs are CNI_ARGS as pairs, PluginArgsStr as text, which counts if
	// there is any.
	PluginArgs    [][2]string
	PluginArgsStr string
	IfName        string
	// Path is CNI_PATH.
	Path string
}

// environ is the process's own environment with these parameters in the place of
// what it says of them.
func (a *Args) environ() []string {
	own := []string{
		"CNI_COMMAND=" + a.Command, "CNI_CONTAINERID=" + a.ContainerID, "CNI_NETNS=" + a.NetNS,
		"CNI_ARGS=" + a.text(), "CNI_IFNAME=" + a.IfName, "CNI_PATH=" + a.Path,
	}
	return replaceEnv(os.Environ(), own...)
}

// text is CNI_ARGS.
func (a *Args) text() string {
	if a.PluginArgsStr != "" {
		return a.PluginArgsStr
	}
	pairs := make([]string, len(a.PluginArgs))
	for i, kv := range a.PluginArgs {
		pairs[i] = kv[0] + "=" + kv[1]
	}
	return strings.Join(pairs, ";")
}

// replaceEnv is an environment in which each of some variables is there once.
func replaceEnv(env []string, own ...string) []string {
	replaced := make([]string, 0, len(env)+len(own))
	for _, kv := range env {
		if !hasVariable(own, kv) {
			replaced = append(replaced, kv)
		}
	}
	return append(replaced, own...)
}

func hasVariable(env []string, like string) bool {
	name, _, _ := strings.Cut(like, "=")
	for _, kv := range env {
		if n, _, _ := strings.Cut(kv, "="); n == name {
			return true
		}
	}
	return false
}
