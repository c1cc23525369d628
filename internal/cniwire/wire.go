package cniwire

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/allocnet/allocnet/internal/cniwire/thin"
)

// See package thin.
const (
	DefaultSocket = thin.DefaultSocket
	Path          = thin.Path
	MaxConfig     = thin.MaxConfig
	MaxRequest    = thin.MaxRequest
	Heartbeat     = thin.Heartbeat

	CodeIncompatible       = thin.CodeIncompatible
	CodeUnknownContainer   = thin.CodeUnknownContainer
	CodeInvalidEnvironment = thin.CodeInvalidEnvironment
	CodeIOFailure          = thin.CodeIOFailure
	CodeDecodingFailure    = thin.CodeDecodingFailure
	CodeInvalidConfig      = thin.CodeInvalidConfig
	CodeInvalidNetns       = thin.CodeInvalidNetns
	CodeTryAgainLater      = thin.CodeTryAgainLater
	CodeNotAvailable       = thin.CodeNotAvailable
	CodeInternal           = thin.CodeInternal

	Add     = thin.Add
	Del     = thin.Del
	Check   = thin.Check
	GC      = thin.GC
	Status  = thin.Status
	Version = thin.Version
)

// Request is one call of the plugin.
type Request struct {
	Env Env `json:"env"`
	// Config is what the plugin read from stdin.
	Config json.RawMessage `json:"config"`
	// Conflists says that the caller may bring along what the plugins are to do, Root
	// that it may say where they are. The receiver sets both: they are not part of the
	// message.
	Conflists bool `json:"-"`
	Root      bool `json:"-"`
}

// Env are the variables of the environment that allocnet looks at. No other ones
// leave the plugin.
type Env struct {
	Command     string `json:"CNI_COMMAND"`
	ContainerID string `json:"CNI_CONTAINERID,omitempty"`
	Netns       string `json:"CNI_NETNS,omitempty"`
	IfName      string `json:"CNI_IFNAME,omitempty"`
	Args        string `json:"CNI_ARGS,omitempty"`
	Path        string `json:"CNI_PATH,omitempty"`
	// NetnsOverride says, by "1" or "true", that the namespace is meant even if it is
	// the plugin's own.
	NetnsOverride string `json:"CNI_NETNS_OVERRIDE,omitempty"`
}

// ReadEnv reads the environment. The error is an *Error.
func ReadEnv(getenv func(string) string) (Env, error) {
	values, err := thin.Environ(getenv)
	if err != nil {
		return Env{}, plain(err)
	}
	named := map[string]string{}
	for i, name := range thin.Variables {
		named[name] = values[i]
	}
	return EnvOf(named), nil
}

// EnvOf takes what is known of variables by their names.
func EnvOf(v map[string]string) Env {
	return Env{
		Command: v["CNI_COMMAND"], ContainerID: v["CNI_CONTAINERID"], Netns: v["CNI_NETNS"], IfName: v["CNI_IFNAME"],
		Args: v["CNI_ARGS"], Path: v["CNI_PATH"], NetnsOverride: v["CNI_NETNS_OVERRIDE"],
	}
}

// plain is an error of package thin as one of ours.
func plain(err error) error {
	var e *thin.Error
	if errors.As(err, &e) {
		return &Error{Code: e.Code, Msg: e.Msg, Details: e.Details}
	}
	return err
}

// Response is the answer to a Request: nothing for a success without a result.
type Response struct {
	// Result is to be printed as it is.
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

// Error says code, message and details.
func (e *Error) Error() string {
	text := fmt.Sprintf("CNI error %d: %s", e.Code, e.Msg)
	if e.Details != "" {
		text += "; " + e.Details
	}
	return text
}
