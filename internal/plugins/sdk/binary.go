package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/engine/pluginexec"
)

// Runner finds and runs plugin binaries.
type Runner interface {
	FindInPath(name string, paths []string) (string, error)
	ExecPlugin(ctx context.Context, path string, conf []byte, environ []string) ([]byte, error)
}

// binary runs the binary of a plugin. It does nothing for commands that binaries, or those of the CNI
// version, do not have, nor for a GC that the binary does not have.
func (e *Exec) binary(ctx context.Context, name, path, command string, a *CmdArgs) (*types100.Result, error) {
	if command == Repair || command == "CHECK" && a.Conf.lacksCheck() {
		return nil, nil
	}
	inside := *a
	inside.Netns = e.pathForBinaries(a.Netns)
	inside.PrevResult = pluginexec.InNetns(a.PrevResult, a.Netns, inside.Netns)
	conf, err := inside.stdin()
	if err != nil {
		return nil, err
	}
	out, err := e.Binary.ExecPlugin(ctx, path, conf, inside.environ(command))
	if command == "GC" && pluginexec.LacksCommand(err) {
		e.Host.Log.Warn("the plugin has no GC: nothing of it is removed", "plugin", name, "because", err)
		return nil, nil
	}
	if err != nil || command != "ADD" {
		return nil, reportedBy(name, err)
	}
	result, err := resultOf(out, conf)
	var converted *types100.Result
	if err == nil {
		converted, err = types100.NewResultFromResult(result)
	}
	if err != nil {
		return nil, fmt.Errorf("%w of plugin %q: %w", allocnet.ErrInvalidResult, name, err)
	}
	if err := wellFormed(converted); err != nil {
		return nil, fmt.Errorf("%w of plugin %q: %w", allocnet.ErrInvalidResult, name, err)
	}
	return pluginexec.InNetns(converted, inside.Netns, a.Netns), nil
}

// reportedBy returns the error of a binary with the name of the plugin. Errors about running it name
// its path already.
func reportedBy(name string, err error) error {
	var reported *types.Error
	if errors.As(err, &reported) && reported.Code != types.ErrUnknown {
		return named(name, err)
	}
	return err
}

// stdin returns the configuration with runtimeConfig and prevResult.
func (a *CmdArgs) stdin() ([]byte, error) {
	conf, err := a.Conf.with(a.Runtime)
	if err != nil || a.PrevResult == nil {
		return conf, err
	}
	previous, err := a.PrevResult.GetAsVersion(a.Conf.CNIVersion)
	if err != nil {
		return nil, fmt.Errorf("convert result to version %s: %w", a.Conf.CNIVersion, err)
	}
	return WithKey(conf, "prevResult", previous)
}

// resultOf parses the output of a plugin. A result without a version has the
// version of the configuration, as in libcni.
func resultOf(out, conf []byte) (types.Result, error) {
	expected, err := create.DecodeVersion(conf)
	if err != nil {
		return nil, err
	}
	out, version, err := versioned(out, expected)
	if err != nil {
		return nil, fmt.Errorf("read the plugin's result: %w", err)
	}
	return create.Create(version, out)
}

// versioned returns a result with its version; the expected version is added if
// the result has none.
func versioned(result []byte, expected string) (with []byte, version string, err error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(result, &object); err != nil {
		return nil, "", err
	}
	if json.Unmarshal(object["cniVersion"], &version) == nil && version != "" {
		return result, version, nil
	}
	if object == nil { // the text was null
		object = map[string]json.RawMessage{}
	}
	object["cniVersion"] = json.RawMessage(strconv.Quote(expected))
	with, err = json.Marshal(object)
	return with, expected, err
}

// wellFormed returns an error if a result has a null interface or address, which
// plugins do not expect.
func wellFormed(r *types100.Result) error {
	for _, i := range r.Interfaces {
		if i == nil {
			return errors.New("an interface is null")
		}
	}
	for _, ip := range r.IPs {
		if ip == nil {
			return errors.New("an address is null")
		}
	}
	return nil
}

// WithKey adds a key to a JSON object that does not have it.
func WithKey(object []byte, key string, value any) ([]byte, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	end := strings.LastIndexByte(string(object), '}')
	if end < 0 {
		return nil, decodingError(fmt.Errorf("no object to add %q to", key))
	}
	with := slices.Concat(object[:end], []byte(`,"`+key+`":`), text, object[end:])
	return with, nil
}

// Program is the file name of the program that runs the native plugins as
// binaries. Shim is that of the program that has allocnetd run them, and executes
// Program otherwise. Aside is the suffix of a reference plugin's binary after a link
// to one of the two replaced it.
const (
	Program = "allocnet-plugins"
	Shim    = Program + "-shim"
	Aside   = ".reference"
)

// findFallback returns the path of the binary to run because of why. It never
// returns Program under the name of the plugin.
func (e *Exec) findFallback(name string, paths []string, why error) (string, error) {
	path, err := e.findForeign(name, paths)
	if err != nil {
		return "", fmt.Errorf("plugin %q: %w, and no binary can replace it: %w", name, why, err)
	}
	e.Host.Log.Warn("running the plugin's binary", "plugin", name, "because", why)
	return path, nil
}

// findForeign returns the path of a plugin's binary: one with the suffix Aside, or else
// the first one that is not a link to Program or Shim.
func (e *Exec) findForeign(name string, paths []string) (string, error) {
	if path, err := e.Binary.FindInPath(name+Aside, paths); err == nil {
		return path, nil
	}
	if len(paths) == 0 {
		return "", errors.New("no plugin directory is given")
	}
	var errs []error
	for _, dir := range paths {
		path, err := e.Binary.FindInPath(name, []string{dir})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if target, err := filepath.EvalSymlinks(path); err == nil && isOwn(filepath.Base(target)) {
			errs = append(errs, fmt.Errorf("%s is a link to %s", path, filepath.Base(target)))
			continue
		}
		return path, nil
	}
	return "", errors.Join(errs...)
}

// isOwn reports whether a file name is that of Program or Shim.
func isOwn(file string) bool { return file == Program || file == Shim }
