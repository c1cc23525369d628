package hostsnap

import (
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// describeExprs describes the expressions of a rule in order, without the
// values of counters.
func describeExprs(exprs []expr.Any) string {
	var words []string
	for _, e := range exprs {
		switch e := e.(type) {
		case *expr.Counter:
			words = append(words, "Counter")
		case *expr.Quota:
			words = append(words, describe(reflect.ValueOf(expr.Quota{Bytes: e.Bytes, Over: e.Over})))
		case *expr.Lookup:
			stable := *e
			stable.SetName, stable.SetID = stableName(e.SetName), 0
			words = append(words, describe(reflect.ValueOf(stable)))
		default:
			words = append(words, describe(reflect.ValueOf(e)))
		}
	}
	return strings.Join(words, " ")
}

// describeElement describes an element of a set or a map, without its remaining
// time.
func describeElement(element nftables.SetElement) string {
	words := []string{describeBytes(element.Key)}
	if len(element.KeyEnd) > 0 {
		words = append(words, "to", describeBytes(element.KeyEnd))
	}
	if element.IntervalEnd {
		words = append(words, "end")
	}
	switch {
	case element.VerdictData != nil:
		words = append(words, ":", describe(reflect.ValueOf(element.VerdictData)))
	case len(element.Val) > 0:
		words = append(words, ":", describeBytes(element.Val))
	}
	if element.Timeout != 0 {
		words = append(words, "timeout", element.Timeout.String())
	}
	if element.Comment != "" {
		words = append(words, "comment", strconv.Quote(element.Comment))
	}
	return strings.Join(words, " ")
}

// describe describes a value by its type names and its fields that are not
// zero.
func describe(v reflect.Value) string {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return "nil"
		}
		return describe(v.Elem())
	case reflect.Struct:
		return v.Type().Name() + "{" + describeFields(v) + "}"
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return describeBytes(bytesOf(v))
		}
		var words []string
		for i := range v.Len() {
			words = append(words, describe(v.Index(i)))
		}
		return "[" + strings.Join(words, " ") + "]"
	case reflect.String:
		return strconv.Quote(v.String())
	}
	return fmt.Sprint(v)
}

func describeFields(v reflect.Value) string {
	var words []string
	for i := range v.NumField() {
		if field := v.Type().Field(i); field.IsExported() && !v.Field(i).IsZero() {
			words = append(words, field.Name+":"+describe(v.Field(i)))
		}
	}
	return strings.Join(words, " ")
}

// bytesOf copies a slice or an array of bytes. An array need not be
// addressable.
func bytesOf(v reflect.Value) []byte {
	data := make([]byte, v.Len())
	for i := range data {
		data[i] = byte(v.Index(i).Uint())
	}
	return data
}

// printable matches data that is most likely text padded with zeros, such as
// the name of a link.
var printable = regexp.MustCompile(`^[!-~]{3,}\x00*$`)

// describeBytes returns text unchanged, and other data, such as addresses and
// ports, in hexadecimal.
func describeBytes(data []byte) string {
	if printable.Match(data) && len(data) > 4 {
		return strconv.Quote(strings.TrimRight(string(data), "\x00"))
	}
	return fmt.Sprintf("%x", data)
}

// anonymous matches the names of anonymous sets, which the kernel numbers.
var anonymous = regexp.MustCompile(`^(__(?:set|map))\d+$`)

// stableName removes the kernel's number from the name of an anonymous set.
func stableName(name string) string {
	return anonymous.ReplaceAllString(name, "$1")
}
