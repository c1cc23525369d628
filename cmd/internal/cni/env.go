package cni

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/names"
)

// commands are all commands except VERSION, with the variables that each requires.
var commands = map[string][]string{
	Add:    {containerID, netns, ifName},
	Check:  {containerID, netns, ifName},
	Del:    {containerID, ifName},
	GC:     nil,
	Status: nil,
}

const (
	containerID = "CNI_CONTAINERID"
	netns       = "CNI_NETNS"
	ifName      = "CNI_IFNAME"
)

func badEnv(format string, args ...any) error {
	return &Error{Code: CodeInvalidEnvironment, Msg: fmt.Sprintf(format, args...)}
}

// checkEnv validates the environment of a command.
func checkEnv(e Env) error {
	required, known := commands[e.Command]
	if !known {
		return badEnv("unknown CNI_COMMAND %.32q", e.Command)
	}
	var missing []string
	for _, v := range required {
		if map[string]string{containerID: e.ContainerID, netns: e.Netns, ifName: e.IfName}[v] == "" {
			missing = append(missing, v)
		}
	}
	if len(missing) > 0 {
		return badEnv("%s requires %s", e.Command, strings.Join(missing, ", "))
	}
	if slices.Contains(required, containerID) {
		if err := names.ValidateContainer(e.ContainerID); err != nil {
			return err
		}
		if len(e.ContainerID) > names.MaxID {
			return badEnv("%s has more than %d characters", containerID, names.MaxID)
		}
		validate := names.ValidateInterface
		if e.Command == Add {
			validate = names.ValidateNewInterface
		}
		if err := validate(e.IfName); err != nil {
			return err
		}
	}
	if slices.Contains(required, netns) && !filepath.IsAbs(e.Netns) {
		return badEnv("%s %.128q is not an absolute path", netns, e.Netns)
	}
	return nil
}

// pluginDirs returns the absolute entries of CNI_PATH; relative ones depend on the runtime's
// working directory. They determine what runs as root, so only root may set them.
func (c *call) pluginDirs() []string {
	if !c.root {
		return nil
	}
	var dirs []string
	for _, dir := range filepath.SplitList(c.env.Path) {
		dir = filepath.Clean(dir)
		if filepath.IsAbs(dir) && len(dir) < unix.PathMax && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs[:min(len(dirs), configurator.MaxPluginDirs)]
}

// overridesNetns reports whether CNI_NETNS may be the host's own network namespace, which
// only root may permit.
func (c *call) overridesNetns() bool {
	return c.root && (c.env.NetnsOverride == "1" || strings.EqualFold(c.env.NetnsOverride, "true"))
}

// readArgs reads CNI_ARGS: pairs of key and value, separated by semicolons. The last value
// of a repeated key counts.
func readArgs(text string) (map[string]string, error) {
	if text == "" {
		return nil, nil
	}
	args := map[string]string{}
	for pair := range strings.SplitSeq(text, ";") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, badEnv("CNI_ARGS: %.64q is not of the form KEY=VALUE", pair)
		}
		args[key] = value
	}
	return args, nil
}
