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

	"github.com/allocnet/allocnet/internal/engine/pluginexec"
)

// Runner finds and runs plugin binaries.
type Runner interface {
	FindInPath(name string, paths []string) (string, error)
	ExecPlugin(ctx context.Context, path string, conf []byte, environ []string) ([]byte, error)
}

// binary runs a plugin binary.
func (e *Exec) binary(ctx context.Context, path, command string, a *CmdArgs) (*types100.Result, error) {
	if command == Repair {
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
	if err != nil || command != "ADD" {
		return nil, err
	}
	result, err := resultOf(out, conf)
	if err != nil {
		return nil, err
	}
	converted, err := types100.NewResultFromResult(result)
	if err != nil {
		return nil, err
	}
	return pluginexec.InNetns(converted, inside.Netns, a.Netns), wellFormed(converted)
}

// stdin is the configuration with runtimeConfig and prevResult.
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

// resultOf reads what a plugin wrote. A result that does not name its version has
// that of the configuration, as libcni has it.
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

// versioned is a result with its version, which is the expected one where it names
// none.
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

func wellFormed(r *types100.Result) error {
	for _, i := range r.Interfaces {
		if i == nil {
			return errors.New("result: an interface is null")
		}
	}
	for _, ip := range r.IPs {
		if ip == nil {
			return errors.New("result: an address is null")
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

// Program is the name of the program that is the native plugins as binaries, and
// Aside what it adds to the names of those whose place its links take.
const (
	Program = "allocnet-plugins"
	Aside   = ".reference"
)

// instead finds the binary that runs instead of a native plugin, which says why. It is
// not this code under the plugin's name.
func (e *Exec) instead(name string, paths []string, why error) (string, error) {
	path, err := e.findOther(name, paths)
	if err != nil {
		return "", fmt.Errorf("plugin %q: %w, and there is no binary to do it: %w", name, why, err)
	}
	e.Host.Log.Warn("running the plugin's binary", "plugin", name, "because", why)
	return path, nil
}

func (e *Exec) findOther(name string, paths []string) (string, error) {
	if path, err := e.Binary.FindInPath(name+Aside, paths); err == nil {
		return path, nil
	}
	if len(paths) == 0 {
		return "", errors.New("no directory of plugins is given")
	}
	var errs []error
	for _, dir := range paths {
		path, err := e.Binary.FindInPath(name, []string{dir})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if target, err := filepath.EvalSymlinks(path); err == nil && filepath.Base(target) == Program {
			errs = append(errs, fmt.Errorf("%s leads to %s", path, Program))
			continue
		}
		return path, nil
	}
	return "", errors.Join(errs...)
}
