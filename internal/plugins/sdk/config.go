package sdk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
)

// Common are the keys that the specification defines for every plugin
// configuration. A plugin embeds it and adds its own keys.
type Common struct {
	CNIVersion    string          `json:"cniVersion"`
	Name          string          `json:"name"`
	Type          string          `json:"type"`
	Capabilities  json.RawMessage `json:"capabilities"`
	IPAM          json.RawMessage `json:"ipam"`
	DNS           json.RawMessage `json:"dns"`
	Args          json.RawMessage `json:"args"`
	RuntimeConfig json.RawMessage `json:"runtimeConfig"`
	PrevResult    json.RawMessage `json:"prevResult"`
	// An Exec reads the valid attachments of GC: see ValidKey and FormerValidKey.
	ValidAttachments json.RawMessage `json:"cni.dev/valid-attachments"`
	Attachments      json.RawMessage `json:"cni.dev/attachments"`
}

// UnknownKeyError reports a key of a configuration that the native plugin does not
// define, or a value that it does not implement.
type UnknownKeyError struct {
	Key string
	// Value is true if the plugin defines the key but does not implement its value.
	// Then the key cannot be ignored.
	Value bool
}

// Error implements error.
func (e *UnknownKeyError) Error() string {
	return fmt.Sprintf("the native plugin does not understand the key %q", e.Key)
}

// Decode reads a configuration into v, a pointer to a struct. If the error is
// an *UnknownKeyError, v is complete. Any other error has CNI code 6 and names
// the position, and v has the keys that could be read.
func Decode(conf []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(conf))
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil {
		if _, err := d.Token(); !errors.Is(err, io.EOF) {
			return decodingError(errors.New("unexpected data after the configuration"))
		}
		return nil
	}
	quoted, unknown := strings.CutPrefix(err.Error(), "json: unknown field ")
	if !unknown {
		decodeReadable(conf, v)
		return decodingError(err)
	}
	if err := DecodeKnown(conf, v); err != nil {
		return err
	}
	return &UnknownKeyError{Key: strings.Trim(quoted, `"`)}
}

// DecodeKnown is Decode, but ignores keys that v does not have.
func DecodeKnown(conf []byte, v any) error {
	err := json.Unmarshal(conf, v)
	if err == nil {
		return nil
	}
	decodeReadable(conf, v)
	return decodingError(err)
}

// decodeReadable reads every key of an object that can be read on its own.
func decodeReadable(conf []byte, v any) {
	var keys map[string]json.RawMessage
	if json.Unmarshal(conf, &keys) != nil {
		return
	}
	for key, value := range keys {
		if one, err := json.Marshal(map[string]json.RawMessage{key: value}); err == nil {
			_ = json.Unmarshal(one, v) // the caller returns the error
		}
	}
}

func decodingError(err error) error {
	return types.NewError(types.ErrDecodingFailure, "network configuration cannot be read", err.Error())
}

// FirstError returns one of a Factory's errors: the first that is not an
// UnknownKeyError; else the first with Value; else the first.
func FirstError(errs ...error) error {
	var first error
	for _, err := range errs {
		var unknown *UnknownKeyError
		if err != nil && !errors.As(err, &unknown) {
			return err
		}
		if err != nil && (first == nil || unknown.Value) {
			first = err
		}
	}
	return first
}

// IsUnknownKey reports whether an error only reports an unknown key.
func IsUnknownKey(err error) bool {
	var unknown *UnknownKeyError
	return errors.As(err, &unknown)
}

// previous returns the prevResult in the newest CNI version; nil if there is
// none. A prevResult without a version has the version of the configuration.
func (c *Common) previous() (*types100.Result, error) {
	if len(c.PrevResult) == 0 || string(c.PrevResult) == "null" {
		return nil, nil
	}
	text, _, err := versioned(c.PrevResult, c.CNIVersion)
	if err != nil {
		return nil, decodingError(fmt.Errorf("prevResult: %w", err))
	}
	result, err := create.Create(c.CNIVersion, text)
	if err != nil {
		return nil, decodingError(fmt.Errorf("prevResult: %w", err))
	}
	previous, err := types100.NewResultFromResult(result)
	if err != nil {
		return nil, decodingError(fmt.Errorf("prevResult: %w", err))
	}
	return previous, nil
}

// Runtime decodes runtimeConfig into v. It ignores keys that v does not have:
// they belong to other plugins.
func (c *Common) Runtime(v any) error { return decodePart("runtimeConfig", c.RuntimeConfig, v) }

// DecodeRuntime decodes one value of a runtimeConfig into v. An empty value
// does not change v.
func DecodeRuntime(value json.RawMessage, v any) error { return decodePart("runtimeConfig", value, v) }

// CNIArgs decodes args.cni into v, as Runtime does.
func (c *Common) CNIArgs(v any) error {
	var args struct {
		CNI json.RawMessage `json:"cni"`
	}
	if err := decodePart("args", c.Args, &args); err != nil {
		return err
	}
	return decodePart("args.cni", args.CNI, v)
}

// LoadArgs reads CNI_ARGS into v as types.LoadArgs does, but skips that slow
// call if there is nothing to read.
func LoadArgs(args string, v any) error {
	if args == "" || args == "IgnoreUnknown=true" {
		return nil
	}
	return types.LoadArgs(args, v)
}

func decodePart(name string, data json.RawMessage, v any) error {
	if len(data) == 0 {
		return nil
	}
	if err := json.Unmarshal(data, v); err != nil {
		return decodingError(fmt.Errorf("%s: %w", name, err))
	}
	return nil
}
