// Package strictjson decodes JSON documents from users. Unlike encoding/json, it refuses
// unknown and repeated fields, compares the names of fields exactly, and names the place of
// an error in the document, such as "egress.rules[2].services[0]".
package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// Error is an error at a place of a document. Place is "" for the document itself.
type Error struct {
	Place string
	Err   error
}

// Error returns the place and the cause.
func (e *Error) Error() string {
	if e.Place == "" {
		return e.Err.Error()
	}
	return e.Place + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// At returns err with place before its own place, if it has one, and nil for nil.
func At(place string, err error) error {
	var inner *Error
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &inner) || inner.Place == "":
		return &Error{Place: place, Err: err}
	case strings.HasPrefix(inner.Place, "["):
		return &Error{Place: place + inner.Place, Err: inner.Err}
	default:
		return &Error{Place: place + "." + inner.Place, Err: inner.Err}
	}
}

// Unmarshal decodes data into the variable that v points to: structs with json tags, slices,
// maps of strings to strings, pointers, strings, numbers, booleans, and types that implement
// json.Unmarshaler. null is the same as a field that is left out. Errors are *Errors.
func Unmarshal(data []byte, v any) error { return decoder{}.unmarshal(data, v) }

// UnmarshalWithoutNull is Unmarshal for documents in which null is an error, because what is left out
// has a meaning of its own.
func UnmarshalWithoutNull(data []byte, v any) error {
	return decoder{refusesNull: true}.unmarshal(data, v)
}

type decoder struct{ refusesNull bool }

func (d decoder) unmarshal(data []byte, v any) error {
	var raw json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return &Error{Err: fmt.Errorf("not a JSON document: %w", err)}
	}
	err := d.decode(raw, reflect.ValueOf(v).Elem())
	if placed := (*Error)(nil); err != nil && !errors.As(err, &placed) {
		return &Error{Err: err}
	}
	return err
}

func (d decoder) decode(raw json.RawMessage, v reflect.Value) error {
	if string(raw) == "null" {
		if d.refusesNull {
			return errors.New("null is not possible here: leave the field out, or give it a value")
		}
		return nil
	}
	if custom, ok := v.Addr().Interface().(json.Unmarshaler); ok {
		return custom.UnmarshalJSON(raw)
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return d.decode(raw, v.Elem())
	case reflect.Struct:
		return d.decodeStruct(raw, v)
	case reflect.Slice:
		return d.decodeSlice(raw, v)
	case reflect.Map:
		return decodeMap(raw, v)
	}
	if err := json.Unmarshal(raw, v.Addr().Interface()); err != nil {
		return fmt.Errorf("%.64s is not %s", raw, describe(v.Type()))
	}
	return nil
}

func describe(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Uint16:
		return "a number from 0 to 65535"
	case reflect.Uint8:
		return "a number from 0 to 255"
	default:
		return "a whole number of this range"
	}
}

func (d decoder) decodeStruct(raw json.RawMessage, v reflect.Value) error {
	known := map[string]reflect.Value{}
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		known[name] = v.Field(i)
	}
	return eachField(raw, func(name string, value json.RawMessage) error {
		field, ok := known[name]
		if !ok || name == "" {
			return fmt.Errorf("unknown field %.64q", name)
		}
		return At(name, d.decode(value, field))
	})
}

func decodeMap(raw json.RawMessage, v reflect.Value) error {
	m := map[string]string{}
	err := eachField(raw, func(key string, value json.RawMessage) error {
		var text string
		if len(value) == 0 || value[0] != '"' || json.Unmarshal(value, &text) != nil {
			return fmt.Errorf("the value of %.64q is not a string", key)
		}
		m[key] = text
		return nil
	})
	if err == nil {
		v.Set(reflect.ValueOf(m).Convert(v.Type()))
	}
	return err
}

func (d decoder) decodeSlice(raw json.RawMessage, v reflect.Value) error {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return errors.New("not a list")
	}
	v.Set(reflect.MakeSlice(v.Type(), len(list), len(list)))
	for i, element := range list {
		if string(element) == "null" {
			return At(fmt.Sprintf("[%d]", i), errors.New("null is not possible in a list"))
		}
		if err := At(fmt.Sprintf("[%d]", i), d.decode(element, v.Index(i))); err != nil {
			return err
		}
	}
	return nil
}

// eachField calls do for each field of a JSON object, in the order of the document.
func eachField(raw json.RawMessage, do func(name string, value json.RawMessage) error) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return errors.New("not an object")
	}
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return err
		}
		name := t.(string)
		if seen[name] {
			return fmt.Errorf("field %.64q occurs twice", name)
		}
		seen[name] = true
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return err
		}
		if err := do(name, value); err != nil {
			return err
		}
	}
	return nil
}
