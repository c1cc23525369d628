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

// Common are the keys that every plugin may find in its configuration: those of
// the specification. A plugin embeds it and adds its own.
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
	// ValidAttachments comes with GC only.
	ValidAttachments []types.GCAttachment `json:"cni.dev/valid-attachments"`
	// Attachments is what the specification called the same by mistake once.
	Attachments []types.GCAttachment `json:"cni.dev/attachments"`
}

// UnknownKeyError says that a configuration has a key that the native plugin
// does not know, or a value of a known one that it does not implement.
type UnknownKeyError struct {
	Key string
	// Value is true if the plugin knows the key and does not implement its value. Such a
	// key cannot be ignored.
	Value bool
}

func (e *UnknownKeyError) Error() string {
	return fmt.Sprintf("the native plugin does not understand the key %q", e.Key)
}

// Decode reads a configuration into v, a pointer to a struct, and all of it
// also when the error is an *UnknownKeyError. Any other error is one of CNI code
// 6, and names the place; v then has what could be read.
func Decode(conf []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(conf))
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil {
		if _, err := d.Token(); !errors.Is(err, io.EOF) {
			return decodingError(errors.New("something follows the configuration"))
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

// DecodeKnown is Decode of those keys that v has.
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
			_ = json.Unmarshal(one, v) // the caller has the error
		}
	}
}

func decodingError(err error) error {
	return types.NewError(types.ErrDecodingFailure, "network configuration cannot be read", err.Error())
}

// FirstError chooses one of a Factory's errors: the first that is no UnknownKeyError;
// without one, the first with Value; without one, the first.
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

// IsUnknownKey reports whether an error only says that a key was not
// understood.
func IsUnknownKey(err error) bool {
	var unknown *UnknownKeyError
	return errors.As(err, &unknown)
}

// previous is the prevResult in the newest version; nil where there is none. A
// runtime need not say its version, which is the configuration's.
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

// Runtime decodes runtimeConfig, or one part of it, into v. Keys that are not
// v's belong to other plugins.
func (c *Common) Runtime(v any) error { return decodePart("runtimeConfig", c.RuntimeConfig, v) }

// DecodeRuntime decodes one value of a runtimeConfig into v; none changes nothing.
func DecodeRuntime(value json.RawMessage, v any) error { return decodePart("runtimeConfig", value, v) }

// CNIArgs decodes args.cni into v, in the same way.
func (c *Common) CNIArgs(v any) error {
	var args struct {
		CNI json.RawMessage `json:"cni"`
	}
	if err := decodePart("args", c.Args, &args); err != nil {
		return err
	}
	return decodePart("args.cni", args.CNI, v)
}

// LoadArgs reads CNI_ARGS into v as types.LoadArgs does, which takes its time where
// there is nothing for v.
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
