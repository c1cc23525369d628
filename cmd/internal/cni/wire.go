package cni

import (
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"
)

// The protocol between the CNI plugin and the daemon: the plugin sends one POST of a
// [Request] to Path on the daemon's unix socket, in HTTP/1.1, and gets a [Response].
// While an operation waits or runs, the daemon sends a line feed every Keepalive. JSON
// allows white space before a value, and the plugin can distinguish a slow daemon from
// one that hangs.
const (
	// Path is the path of the requests.
	Path = "/cni"
	// MaxConfig is the maximum size of a configuration, in bytes, and MaxRequest that
	// of a request.
	MaxConfig  = 512 << 10
	MaxRequest = 1 << 20
	// Keepalive is the interval between the daemon's line feeds.
	Keepalive = 500 * time.Millisecond
)

// The codes of the CNI specification that allocnet itself returns.
const (
	CodeIncompatible       uint = 1
	CodeUnknownContainer   uint = 3
	CodeInvalidEnvironment uint = 4
	CodeIOFailure          uint = 5
	CodeDecodingFailure    uint = 6
	CodeInvalidConfig      uint = 7
	CodeInvalidNetns       uint = 8
	CodeTryAgainLater      uint = 11
	CodeNotAvailable       uint = 50
	CodeInternal           uint = 999
)

// The commands of the CNI specification.
const (
	Add     = "ADD"
	Del     = "DEL"
	Check   = "CHECK"
	GC      = "GC"
	Status  = "STATUS"
	Version = "VERSION"
)

// Request is one call of the plugin.
type Request struct {
	Env Env `json:"env"`
	// Config is what the plugin read from stdin.
	Config json.RawMessage `json:"config"`
	// Conflists reports whether the caller may supply plugin configurations, and Root
	// whether it may supply the directories of plugins. The receiver sets both: they
	// are not part of the message.
	Conflists bool `json:"-"`
	Root      bool `json:"-"`
}

// Env holds the environment variables that allocnet reads. The plugin sends no others.
type Env struct {
	Command     string `json:"CNI_COMMAND"`
	ContainerID string `json:"CNI_CONTAINERID,omitempty"`
	Netns       string `json:"CNI_NETNS,omitempty"`
	IfName      string `json:"CNI_IFNAME,omitempty"`
	Args        string `json:"CNI_ARGS,omitempty"`
	Path        string `json:"CNI_PATH,omitempty"`
	// NetnsOverride, if "1" or "true", permits the plugin's own namespace as Netns.
	NetnsOverride string `json:"CNI_NETNS_OVERRIDE,omitempty"`
}

// ReadEnv reads the environment. The error is an *Error: a value is not UTF-8, or
// there is no command.
func ReadEnv(getenv func(string) string) (Env, error) {
	values := map[string]string{}
	for _, name := range []string{
		"CNI_COMMAND", containerID, netns, ifName, "CNI_ARGS", "CNI_PATH", "CNI_NETNS_OVERRIDE",
	} {
		values[name] = getenv(name)
		if !utf8.ValidString(values[name]) {
			return Env{}, badEnv("%s is not UTF-8", name)
		}
	}
	e := EnvOf(values)
	if e.Command == "" {
		return e, &Error{
			Code: CodeInvalidEnvironment, Msg: "CNI_COMMAND is not set",
			Details: "this program is a CNI plugin: a container runtime calls it, with its command in the environment and a configuration on stdin",
		}
	}
	return e, nil
}

// EnvOf returns the Env of variables by their names. Other variables are ignored.
func EnvOf(v map[string]string) Env {
	return Env{
		Command: v["CNI_COMMAND"], ContainerID: v[containerID], Netns: v[netns], IfName: v[ifName],
		Args: v["CNI_ARGS"], Path: v["CNI_PATH"], NetnsOverride: v["CNI_NETNS_OVERRIDE"],
	}
}

// Response is the answer to a Request. It is empty for a success without a result.
type Response struct {
	// Result is printed unchanged.
	Result json.RawMessage `json:"result,omitempty"`
	Error  *Error          `json:"error,omitempty"`
}

// Error is an error as a runtime gets it.
type Error struct {
	CNIVersion string `json:"cniVersion"`
	Code       uint   `json:"code"`
	Msg        string `json:"msg"`
	Details    string `json:"details,omitempty"`
}

// Error returns code, message and details.
func (e *Error) Error() string {
	text := fmt.Sprintf("CNI error %d: %s", e.Code, e.Msg)
	if e.Details != "" {
		text += "; " + e.Details
	}
	return text
}
