package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/allocnet/allocnet/internal/strictjson"
)

// maxDepth bounds how deep values may be nested.
const maxDepth = 100

// Error is an error in JSON with its position.
type Error struct {
	Path         string // such as ports[0].to; "" for the whole value
	Line, Column int    // from 1, the column in bytes; 0 if only the path is known
	Reason       string
}

// Error implements error.
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
// numbers, bools, json.RawMessage and types that implement json.Unmarshaler. A
// json.RawMessage accepts any value without duplicate keys, and so does a json.Unmarshaler
// unless its own decoding refuses it. Errors are *Error.
func Decode(data []byte, v any) error { return decode(data, v, walker{}) }

// DecodeFold is like Decode, but accepts the names of fields in any case, as
// encoding/json does, because go-cni encodes structs without tags. Names that differ
// only in case are duplicates.
func DecodeFold(data []byte, v any) error { return decode(data, v, walker{fold: true}) }

// DecodeBut is like Decode into a struct, but ignores unknown fields of the struct whose
// names begin with a prefix.
func DecodeBut(prefix string, data []byte, v any) error {
	return decode(data, v, walker{passed: prefix})
}

// decode validates data with w and then decodes it with encoding/json.
func decode(data []byte, v any, w walker) error {
	w.data = data
	if at := invalidUTF8(data); at >= 0 {
		return w.errorAt(at, nil, "is not UTF-8")
	}
	if err := w.syntax(); err != nil {
		return err
	}
	if err := w.value(nil, reflect.TypeOf(v).Elem(), 0); err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return w.errorAt(0, nil, err.Error())
	}
	return nil
}

// invalidUTF8 returns the position of the first byte that is not UTF-8, or -1.
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

// walker compares a value with its type. The syntax must be valid.
type walker struct {
	data []byte
	at   int // position of the next byte

	fold   bool   // names of fields match in any case
	passed string // prefix of ignored fields of the whole value; "" for none
}

// place is the position of a value in the whole value, which is nil.
type place struct {
	in    *place
	key   string
	index int // instead of a key, if not below 0
}

func (p *place) String() string {
	switch {
	case p == nil:
		return ""
	case p.index >= 0:
		return fmt.Sprintf("%s[%d]", p.in, p.index)
	}
	return join(p.in.String(), p.key)
}

func (w *walker) errorAt(offset int, p *place, reason string) *Error {
	before := w.data[:min(max(offset, 0), len(w.data))]
	return &Error{
		Path: p.String(), Reason: reason,
		Line: bytes.Count(before, []byte("\n")) + 1, Column: len(before) - bytes.LastIndexByte(before, '\n'),
	}
}

// syntax returns an error unless the data is one JSON value.
func (w *walker) syntax() error {
	if json.Valid(w.data) {
		return nil
	}
	var syntax *json.SyntaxError
	err := json.Unmarshal(w.data, new(json.RawMessage))
	switch {
	case len(bytes.TrimSpace(w.data)) == 0:
		return w.errorAt(0, nil, "is empty, JSON is wanted")
	case errors.As(err, &syntax) && strings.HasPrefix(syntax.Error(), "unexpected end"):
		return w.errorAt(len(w.data), nil, "is cut short")
	case errors.As(err, &syntax):
		return w.errorAt(int(syntax.Offset)-1, nil, syntax.Error())
	}
	return w.errorAt(0, nil, "is not JSON")
}

// next skips white space and separators, and returns the next byte.
func (w *walker) next() byte {
	for strings.IndexByte(" \t\r\n,:", w.data[w.at]) >= 0 {
		w.at++
	}
	return w.data[w.at]
}

// token reads the next string, number or literal.
func (w *walker) token() []byte {
	from := w.at
	if w.next() == '"' {
		for w.at++; w.data[w.at] != '"'; w.at++ {
			if w.data[w.at] == '\\' {
				w.at++
			}
		}
		w.at++
		return w.data[from:w.at]
	}
	for w.at < len(w.data) && strings.IndexByte(" \t\r\n,:]}", w.data[w.at]) < 0 {
		w.at++
	}
	return w.data[from:w.at]
}

// value checks one value that is decoded into a t; nil stands for any type.
func (w *walker) value(p *place, t reflect.Type, depth int) error {
	begin := w.next()
	at := w.at
	if depth > maxDepth {
		return w.errorAt(at, p, fmt.Sprintf("is nested deeper than %d", maxDepth))
	}
	if own := own(t); own != nil && begin != 'n' {
		return w.own(p, own, depth)
	}
	t, nullable := target(t)
	if t != nil {
		if got, want := kinds[begin], wanted(t); got != want && !(got == "null" && nullable) {
			return w.errorAt(at, p, fmt.Sprintf("must be %s, not %s", want, got))
		}
	}
	switch begin {
	case '{':
		return w.object(p, t, depth)
	case '[':
		return w.array(p, t, depth)
	}
	token := w.token()
	if t != nil && kinds[begin] == "a number" && !fits(string(token), t) {
		return w.errorAt(at, p, fmt.Sprintf("must be a number of type %s", t.Kind()))
	}
	return nil
}

// own returns the type behind pointers if it decodes itself; else nil.
func own(t reflect.Type) reflect.Type {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil || t == rawMessage || !reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return nil
	}
	return t
}

// own checks a value that a t decodes itself, as strictly as package strictjson does.
func (w *walker) own(p *place, t reflect.Type, depth int) error {
	at := w.at
	if err := w.value(p, nil, depth); err != nil {
		return err
	}
	err := reflect.New(t).Interface().(json.Unmarshaler).UnmarshalJSON(w.data[at:w.at])
	if err == nil {
		return nil
	}
	fault := w.errorAt(at, p, err.Error())
	var inner *strictjson.Error
	if errors.As(err, &inner) && inner.Place != "" {
		separator := "."
		if fault.Path == "" || strings.HasPrefix(inner.Place, "[") {
			separator = ""
		}
		fault.Path, fault.Reason = fault.Path+separator+inner.Place, inner.Err.Error()
	}
	return fault
}

// kinds are the kinds of values by their first byte.
var kinds = [256]string{
	'{': "an object", '[': "an array", '"': "a string", 't': "a boolean", 'f': "a boolean", 'n': "null",
	'-': "a number", '0': "a number", '1': "a number", '2': "a number", '3': "a number", '4': "a number",
	'5': "a number", '6': "a number", '7': "a number", '8': "a number", '9': "a number",
}

var rawMessage = reflect.TypeFor[json.RawMessage]()

// target returns the type behind pointers, nil for any, and whether null is accepted.
func target(t reflect.Type) (_ reflect.Type, nullable bool) {
	for t != nil && t.Kind() == reflect.Pointer {
		t, nullable = t.Elem(), true
	}
	if t == nil || t == rawMessage || t.Kind() == reflect.Interface {
		return nil, true
	}
	return t, nullable || t.Kind() == reflect.Slice || t.Kind() == reflect.Map
}

// wanted returns the kind of the values that are decoded into a t.
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

// fits reports whether a t can hold a number.
func fits(number string, t reflect.Type) bool {
	var err error
	switch {
	case t.Kind() == reflect.Float32 || t.Kind() == reflect.Float64:
		_, err = strconv.ParseFloat(number, t.Bits())
	case t.Kind() >= reflect.Uint && t.Kind() <= reflect.Uintptr:
		_, err = strconv.ParseUint(number, 10, t.Bits())
	default:
		_, err = strconv.ParseInt(number, 10, t.Bits())
	}
	return err == nil
}

// array checks the elements of an array that is decoded into a t.
func (w *walker) array(p *place, t reflect.Type, depth int) error {
	var of reflect.Type
	if t != nil {
		of = t.Elem()
	}
	w.at++
	for i := 0; w.next() != ']'; i++ {
		if err := w.value(&place{in: p, index: i}, of, depth+1); err != nil {
			return err
		}
	}
	w.at++
	return nil
}

// object checks the keys and values of an object that is decoded into a t.
func (w *walker) object(p *place, t reflect.Type, depth int) error {
	seen := map[string]bool{}
	w.at++
	for w.next() != '}' {
		at := w.at
		inner := &place{in: p, key: textOf(w.token()), index: -1}
		name, of, known := w.member(t, inner.key)
		if seen[name] {
			return w.errorAt(at, inner, "is there twice")
		}
		seen[name] = true
		if !known && (depth > 0 || !w.passes(t, inner.key)) {
			return w.errorAt(at, inner, "is not a known field")
		}
		if err := w.value(inner, of, depth+1); err != nil {
			return err
		}
	}
	w.at++
	return nil
}

// textOf returns the text of a JSON string.
func textOf(token []byte) (text string) {
	if bytes.IndexByte(token, '\\') < 0 {
		return string(token[1 : len(token)-1])
	}
	_ = json.Unmarshal(token, &text) // its syntax is valid
	return text
}

// member returns the field of t for a key: its name and its type.
func (w *walker) member(t reflect.Type, key string) (name string, of reflect.Type, known bool) {
	switch {
	case t == nil:
		return key, nil, true
	case t.Kind() == reflect.Map:
		return key, t.Elem(), true
	}
	for _, f := range fieldsOf(t) {
		if f.name == key || w.fold && strings.EqualFold(f.name, key) {
			return f.name, f.of, true
		}
	}
	return key, nil, false
}

// field is a field of a struct with a name in JSON.
type field struct {
	name string // in JSON
	of   reflect.Type
}

// fields caches the []field of each reflect.Type.
var fields sync.Map

// fieldsOf returns the fields of a struct that have a name in JSON.
func fieldsOf(t reflect.Type) []field {
	if known, ok := fields.Load(t); ok {
		return known.([]field)
	}
	var all []field
	for i := range t.NumField() {
		f := t.Field(i)
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			all = append(all, field{name, f.Type})
		}
	}
	fields.Store(t, all)
	return all
}

// passes reports whether an unknown field of the whole value is ignored. A field is not
// ignored if encoding/json would decode it into another one.
func (w *walker) passes(t reflect.Type, key string) bool {
	return w.passed != "" && strings.HasPrefix(key, w.passed) &&
		!slices.ContainsFunc(fieldsOf(t), func(f field) bool { return strings.EqualFold(f.name, key) })
}

// longestKey is the number of bytes of a key that are shown.
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

// Wrong returns the error for a field that was decoded but is not acceptable.
func Wrong(field, reason string) error {
	return &Error{Path: field, Reason: reason}
}
