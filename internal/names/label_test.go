package names

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestValidateLabels(t *testing.T) {
	long := strings.Repeat("a", 63)
	many := map[string]string{}
	for i := range MaxLabels + 1 {
		many["k"+strings.Repeat("x", i%60)+string(rune('a'+i/60))] = ""
	}
	require.Len(t, many, MaxLabels+1)
	for _, labels := range []map[string]string{
		nil, {"app": "web"}, {"app": ""}, {"example.com/app": "web-1.2_3"}, {long: long}, {"A": "9"}, {"a.b/c_d.e-f": "x"},
	} {
		require.NoError(t, ValidateLabels(labels), "%v", labels)
	}
	for want, labels := range map[string]map[string]string{
		`257 labels: at most 256`:           many,
		`label ""`:                          {"": "x"},
		`label "-a"`:                        {"-a": "x"},
		`label "a-"`:                        {"a-": "x"},
		`label "a b"`:                       {"a b": "x"},
		`label "a=b"`:                       {"a=b": "x"},
		`label "a/b/c": the key`:            {"a/b/c": "x"},
		`label "/a": what precedes`:         {"/a": "x"},
		`label "Example.com/a"`:             {"Example.com/a": "x"},
		`label "example..com/a"`:            {"example..com/a": "x"},
		`label "` + long + `a"`:             {long + "a": "x"},
		`label "app": the value "a\n"`:      {"app": "a\n"},
		`label "app": the value " web"`:     {"app": " web"},
		`label "app": the value "` + long:   {"app": long + "a"},
		`label "a": the value "ü"`:          {"b": "-", "a": "ü"},
		`what precedes '/' must be a DNS`:   {strings.Repeat("a", 254) + "/b": "x"},
		`label "a\n": the key must be at m`: {"a\n": "x"},
	} {
		require.ErrorContains(t, ValidateLabels(labels), want)
	}
}
