package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxDepth bounds how deep values may be nested.
const maxDepth = 100

// Error says what is wrong with JSON, and where.
type Error struct {
	Path         string // such as ports[0].to; "" for the whole
	Line, Column int    // from 1; the column counts bytes. 0 where the value is known only by its path
	Reason       string
}

func (e *Error) Error() string {
	path := e.Path
	if path == "" {
		path = "the body"
	}
	if e.Line == 0 {
		return path + ": " + e.Reason
	}
	return fmt.Sprintf("%s (line %d, column %d): %s", path, e.Line, e.Column, e.Reason)
}

// Decode reads data, which is one JSON value, into v, a pointer to a value that
// consists of structs without embedded fields, maps, slices, pointers, strings,
// numbers, bools and json.RawMessage. Inside the latter any value is good, except
// one with duplicate keys. Errors are *Error.
func Decode(data []byte, v any) error { return decode(data, v, walker{}) }

// DecodeFold is Decode for what others write, who spell field names in any case, as
// encoding/json reads them: go-cni sends its structs without tags. Names that differ
// only in case are duplicates.
func DecodeFold(data []byte, v any) error { return decode(data, v, walker{fold: true}) }

// DecodeBut is Decode into a struct, and passes over fields of it that are not known
// where their names begin with a prefix.
func DecodeBut(prefix string, data []byte, v any) error {
	return decode(data, v, walker{passed: prefix})
}

func decode(data []byte, v any, w walker) error {
	w.data, w.dec = data, json.NewDecoder(bytes.NewReader(data))
	if at := invalidUTF8(data); at >= 0 {
		return w.errorAt(at, "", "is not UTF-8")
	}
	if err := w.syntax(); err != nil {
		return err
	}
	w.dec.UseNumber()
	if err := w.value("", reflect.TypeOf(v).Elem(), 0); err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return w.errorAt(0, "", err.Error())
	}
	return nil
}

func invalidUTF8(data []byte) int {
	if utf8.Valid(data) {
		return -1
	}
	at := 0
	for {
		r, size := utf8.DecodeRune(data[at:])
		if r == utf8.RuneError && size == 1 {
			return at
		}
		at += size
	}
}

// walker goes through the tokens of a value beside its type.
type walker struct {
	data []byte
	dec  *json.Decoder

	fold   bool   // fields are known by their names in any case
	passed string // what names of the whole's unknown fields begin with, if not ""
}

func (w *walker) errorAt(offset int, path, reason string) *Error {
	before := w.data[:min(max(offset, 0), len(w.data))]
	return &Error{
		Path: path, Reason: reason,
		Line: bytes.Count(before, []byte("\n")) + 1, Column: len(before) - bytes.LastIndexByte(before, '\n'),
	}
}

// syntax finds what is no JSON at all, or more than one value.
func (w *walker) syntax() error {
	var whole json.RawMessage
	err := json.Unmarshal(w.data, &whole)
	var syntax *json.SyntaxError
	switch {
	case err == nil:
		return nil
	case len(bytes.TrimSpace(w.data)) == 0:
		return w.errorAt(0, "", "is empty, JSON is wanted")
	case errors.As(err, &syntax) && strings.HasPrefix(syntax.Error(), "unexpected end"):
		return w.errorAt(len(w.data), "", "is cut short")
	case errors.As(err, &syntax):
		return w.errorAt(int(syntax.Offset)-1, "", syntax.Error())
	}
	return w.errorAt(0, "", err.Error())
}

// start is the offset of the token that comes next.
func (w *walker) start() int {
	at := int(w.dec.InputOffset())
	for at < len(w.data) && strings.IndexByte(" \t\r\n,:", w.data[at]) >= 0 {
		at++
	}
	return at
}

// value walks over one value, which is to become a t; nil stands for any type.
func (w *walker) value(path string, t reflect.Type, depth int) error {
	at := w.start()
	if depth > maxDepth {
		return w.errorAt(at, path, fmt.Sprintf("is nested deeper than %d", maxDepth))
	}
	token, err := w.dec.Token()
	if err != nil {
		return w.errorAt(at, path, err.Error())
	}
	t, nullable := target(t)
	if t != nil {
		if reason := mismatch(token, t, nullable); reason != "" {
			return w.errorAt(at, path, reason)
		}
	}
	switch token {
	case json.Delim('{'):
		return w.object(path, t, depth)
	case json.Delim('['):
		return w.array(path, t, depth)
	}
	return nil
}

var rawMessage = reflect.TypeFor[json.RawMessage]()

// target is the type behind pointers, nil for any, and whether null will do.
func target(t reflect.Type) (_ reflect.Type, nullable bool) {
	for t != nil && t.Kind() == reflect.Pointer {
		t, nullable = t.Elem(), true
	}
	if t == nil || t == rawMessage || t.Kind() == reflect.Interface {
		return nil, true
	}
	return t, nullable || t.Kind() == reflect.Slice || t.Kind() == reflect.Map
}

// mismatch says why a token cannot begin a value of type t.
func mismatch(token json.Token, t reflect.Type, nullable bool) string {
	want := wanted(t)
	got := ""
	switch token := token.(type) {
	case nil:
		if nullable {
			return ""
		}
		got = "null"
	case json.Delim:
		got = map[json.Delim]string{'{': "an object", '[': "an array"}[token]
	case string:
		got = "a string"
	case bool:
		got = "a boolean"
	case json.Number:
		got = want
		if reason := badNumber(token.String(), t); reason != "" {
			return reason
		}
	}
	if got == want {
		return ""
	}
	return fmt.Sprintf("must be %s, not %s", want, got)
}

func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Slice:
		return "an array"
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "a boolean"
	}
	return "a number"
}

func badNumber(number string, t reflect.Type) string {
	var err error
	switch {
	case wanted(t) != "a number":
		return fmt.Sprintf("must be %s, not a number", wanted(t))
	case t.Kind() == reflect.Float32 || t.Kind() == reflect.Float64:
		_, err = strconv.ParseFloat(number, t.Bits())
	case t.Kind() >= reflect.Uint && t.Kind() <= reflect.Uintptr:
		_, err = strconv.ParseUint(number, 10, t.Bits())
	default:
		_, err = strconv.ParseInt(number, 10, t.Bits())
	}
	if err != nil {
		return fmt.Sprintf("must be a number of type %s", t.Kind())
	}
	return ""
}

func (w *walker) array(path string, t reflect.Type, depth int) error {
	var of reflect.Type
	if t != nil {
		of = t.Elem()
	}
	for i := 0; w.dec.More(); i++ {
		if err := w.value(fmt.Sprintf("%s[%d]", path, i), of, depth+1); err != nil {
			return err
		}
	}
	_, err := w.dec.Token()
	return err
}

func (w *walker) object(path string, t reflect.Type, depth int) error {
	seen := map[string]bool{}
	for w.dec.More() {
		at := w.start()
		token, err := w.dec.Token()
		if err != nil {
			return w.errorAt(at, path, err.Error())
		}
		key := token.(string)
		inner := join(path, key)
		name, of, known := w.member(t, key)
		if seen[name] {
			return w.errorAt(at, inner, "is there twice")
		}
		seen[name] = true
		if !known && (depth > 0 || !w.passes(t, key)) {
			return w.errorAt(at, inner, "is not a known field")
		}
		if err := w.value(inner, of, depth+1); err != nil {
			return err
		}
	}
	_, err := w.dec.Token()
	return err
}

// member is one value of an object: the name of the field that it goes into, and its
// type.
func (w *walker) member(t reflect.Type, key string) (name string, of reflect.Type, known bool) {
	switch {
	case t == nil:
		return key, nil, true
	case t.Kind() == reflect.Map:
		return key, t.Elem(), true
	}
	for i := range t.NumField() {
		name := fieldName(t.Field(i))
		if name != "" && (name == key || w.fold && strings.EqualFold(name, key)) {
			return name, t.Field(i).Type, true
		}
	}
	return key, nil, false
}

// fieldName is that in JSON, if a field has any there.
func fieldName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	if name == "-" {
		return ""
	}
	return name
}

// passes reports whether a field of the whole that is not known does not matter. One
// that encoding/json would take for another does.
func (w *walker) passes(t reflect.Type, key string) bool {
	if w.passed == "" || !strings.HasPrefix(key, w.passed) {
		return false
	}
	for i := range t.NumField() {
		if strings.EqualFold(fieldName(t.Field(i)), key) {
			return false
		}
	}
	return true
}

// longestKey is how much of a key is shown.
const longestKey = 64

func join(path, key string) string {
	if len(key) > longestKey {
		key = strings.ToValidUTF8(key[:longestKey], "") + "..."
	}
	if quoted := strconv.Quote(key); key == "" || len(quoted) != len(key)+2 || strings.ContainsAny(key, ".[] ") {
		return path + "[" + quoted + "]"
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// Wrong is the error for a field that decoded well and still will not do.
func Wrong(field, reason string) error {
	return &Error{Path: field, Reason: reason}
}
