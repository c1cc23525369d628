package dropin

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/cmd/internal/cni"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/plugins/builtin"
	"github.com/allocnet/allocnet/internal/wire"
	"github.com/allocnet/allocnet/sandbox"
)

const (
	// Path is the path of the requests, before the name of the plugin.
	Path = "/cni/plugins/"
	// MaxConfig is the maximum size of a configuration, in bytes.
	MaxConfig = 64 << 10

	// The header fields of a request: the variables of the runtime.
	HeaderCommand     = "CNI-Command"     // CNI_COMMAND
	HeaderContainerID = "CNI-ContainerID" // CNI_CONTAINERID
	HeaderNetns       = "CNI-Netns"       // CNI_NETNS
	HeaderIfName      = "CNI-Ifname"      // CNI_IFNAME
	HeaderArgs        = "CNI-Args"        // CNI_ARGS
	HeaderPath        = "CNI-Path"        // CNI_PATH
	// HeaderHost is the HostID of the shim.
	HeaderHost = "Allocnet-Host"
	// HeaderNetnsID is the FileID of CNI_NETNS as the shim sees it.
	HeaderNetnsID = "Allocnet-Netns"

	// HeaderExitStatus is the field of an answer with the exit status of the plugin.
	HeaderExitStatus = "Allocnet-Exit-Status"
	// HeaderStderr is a field of an answer with one line for stderr; it may be repeated.
	HeaderStderr = "Allocnet-Stderr"
)

// Call is one call of a plugin by a runtime.
type Call struct {
	Plugin string
	Env    cni.Env
	// Host is the HostID of the shim.
	Host string
	// NetnsID is the FileID of Env.Netns as the shim sees it.
	NetnsID string
	// Config is what the runtime wrote to stdin.
	Config []byte
}

// FileID identifies the file at a path, independently of the path. It is "" if there is
// no such file.
func FileID(path string) string {
	var s unix.Stat_t
	if unix.Stat(path, &s) != nil {
		return ""
	}
	return fileID(s.Dev, s.Ino)
}

func fileID(device, inode uint64) string {
	return fmt.Sprintf("%d:%d", device, inode)
}

// HostID identifies the network namespace, the mount namespace and the root directory of
// this process.
func HostID() string {
	return FileID("/proc/self/ns/net") + " " + FileID("/proc/self/ns/mnt") + " " + FileID("/")
}

func notServed(format string, args ...any) error {
	return fmt.Errorf("%w: %w", wire.ErrNotServed, fmt.Errorf(format, args...))
}

// config are the keys of a configuration that decide whether a call is served.
type config struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	paths
	IPAM paths `json:"ipam"`
}

// paths are the keys whose value is a path.
type paths struct {
	DataDir    string `json:"dataDir"`
	ResolvConf string `json:"resolvConf"`
}

func (p paths) areAbsolute() bool {
	return (p.DataDir == "" || filepath.IsAbs(p.DataDir)) && (p.ResolvConf == "" || filepath.IsAbs(p.ResolvConf))
}

// since holds the version that introduced a command.
var since = map[string]string{cni.Add: "0.1.0", cni.Del: "0.1.0", cni.Check: "0.4.0", cni.GC: "1.1.0", cni.Status: "1.1.0"}

// validate returns wire.ErrNotServed unless the program allocnet-plugins would accept
// the call.
func (c *Call) validate() error {
	first, known := since[c.Env.Command]
	if !known {
		return notServed("there is no command %q", c.Env.Command)
	}
	if c.Env.Path == "" {
		return notServed("CNI_PATH is empty")
	}
	if c.attaches() {
		if err := utils.ValidateContainerID(c.Env.ContainerID); err != nil {
			return notServed("%w", err)
		}
		if err := utils.ValidateInterfaceName(c.Env.IfName); err != nil {
			return notServed("%w", err)
		}
	}
	if c.Env.Command == cni.Add {
		if err := names.ValidateNewInterface(c.Env.IfName); err != nil {
			return notServed("%w", err)
		}
	}
	var conf config
	if err := json.Unmarshal(c.Config, &conf); err != nil {
		return notServed("%w", err)
	}
	if err := utils.ValidateNetworkName(conf.Name); err != nil {
		return notServed("%w", err)
	}
	if !conf.areAbsolute() || !conf.IPAM.areAbsolute() {
		return notServed("a path of the configuration is not absolute")
	}
	supported, ok := builtin.Versions[c.Plugin]
	if !ok {
		supported = version.All
	}
	new, err := version.GreaterThanOrEqualTo(conf.CNIVersion, first)
	if err != nil || !new || !slices.Contains(supported.SupportedVersions(), conf.CNIVersion) {
		return notServed("version %q has no %s", conf.CNIVersion, c.Env.Command)
	}
	return nil
}

// attaches reports whether the command is for one attachment.
func (c *Call) attaches() bool {
	return c.Env.Command == cni.Add || c.Env.Command == cni.Del || c.Env.Command == cni.Check
}

// netns opens the network namespace of the call. It returns nil if there is none, which
// only ADD and CHECK need.
func (c *Call) netns() (*sandbox.Sandbox, error) {
	path := c.Env.Netns
	needed := c.Env.Command == cni.Add || c.Env.Command == cni.Check
	switch {
	case path == "" && !needed:
		return nil, nil
	case !filepath.IsAbs(path):
		return nil, notServed("CNI_NETNS %q is not an absolute path", path)
	}
	s, err := sandbox.Open(path)
	if err != nil {
		if needed || !isNone(err) || FileID(path) != c.NetnsID {
			return nil, notServed("%w", err)
		}
		return nil, nil
	}
	id, err := s.Identity()
	if err == nil && fileID(id.Device, id.Inode) != c.NetnsID {
		err = errors.New("the path leads the caller to another file")
	}
	if err != nil {
		return nil, errors.Join(notServed("CNI_NETNS %q: %w", path, err), s.Close())
	}
	return s, nil
}

// isNone reports whether an error means that there is no network namespace at a path.
func isNone(err error) bool {
	return errors.Is(err, sandbox.ErrNotExist) || errors.Is(err, sandbox.ErrNotNamespace) || errors.Is(err, unix.ENOTDIR)
}

// environ returns the environment of the plugin for a command.
func (c *Call) environ(command string) []string {
	e := c.Env
	return []string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + e.ContainerID, "CNI_NETNS=" + e.Netns,
		"CNI_IFNAME=" + e.IfName, "CNI_ARGS=" + e.Args, "CNI_PATH=" + e.Path,
	}
}
