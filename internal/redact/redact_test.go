package redact

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestObjects(t *testing.T) {
	for text, want := range map[string]string{
		"plain":                "plain",
		`a {"b":1} c`:          "a {...} c",
		"a {\n\t\"b\":1} c":    "a {...} c",
		"a { 80, 443 } and {}": "a { 80, 443 } and {}",
		`netplugin: {"cniVersion":"1.0.0","password":"x","a":{}}: unknown`: "netplugin: {...}: unknown",
		`{ 80 } of {"password":"x"} and {"a":"b"}.`:                        "{ 80 } of {...} and {...}.",
		`cut: {"ipam":{"type":"y"},"password":"x","mo`:                     "cut: {...}",
		`a {"k":"s"}: bad; b {"password":"x","mo`:                          "a {...}: bad; b {...}",
		`a {"k":"}","password":"x\\"}"} b`:                                 "a {...} b",
		`{'cniVersion':'1','password':'x'} b`:                              "{...}",
		`cut off: {"password":"x`:                                          "cut off: {...}",
		`turned } {"secret`:                                                `turned } {...}`,
	} {
		require.Equal(t, want, Objects(text))
	}
	quoted := "{\n \"password\": \"hunter2\"}"
	for range 3 {
		quoted = strconv.Quote(quoted)
		require.NotContains(t, Objects("quoted "+quoted), "hunter2")
	}
}
