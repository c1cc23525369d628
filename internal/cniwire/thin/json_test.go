package thin

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMembers(t *testing.T) {
	var got []string
	ok := Members([]byte(` { "a" : "x" , "b":[1,{"c":null}],"a":-0.5e+7, "\/":1, "\u0064":true}`+"\n"), func(key string, value []byte) {
		got = append(got, key+" "+string(value))
	})
	require.True(t, ok)
	require.Equal(t, []string{`a "x"`, `b [1,{"c":null}]`, "a -0.5e+7", "d true"}, got)
	deep := strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth)
	require.True(t, Members([]byte(`{"a":`+deep[1:len(deep)-1]+`}`), func(string, []byte) {}))
	require.False(t, Members([]byte(`{"a":`+deep+`}`), func(string, []byte) {}))
}

func TestText(t *testing.T) {
	for value, want := range map[string]string{`"a"`: "a", `"\u0061\n"`: "a\n", `""`: ""} {
		text, ok := Text([]byte(value))
		require.True(t, ok)
		require.Equal(t, want, text)
	}
	for _, value := range []string{"7", "null", "", `"\/"`, "`a`", "'a'"} {
		_, ok := Text([]byte(value))
		require.False(t, ok, value)
	}
}

// FuzzMembers: what is an object, and what is in it, is as encoding/json has it.
func FuzzMembers(f *testing.F) {
	for _, seed := range []string{`{"a":[true,false,null,-1.5e-3,"\u00e9\\"]}`, `{"a":01}`, `{"a":1,}`, `{} {}`, "{\"\x1f\":1}", `[{}]`, `{"a":"\x"}`, `{"a":tru`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		last := map[string]string{}
		ok := Members(data, func(key string, value []byte) { last[key] = string(value) })
		if strings.Count(string(data), "[")+strings.Count(string(data), "{") > maxDepth {
			return
		}
		var want map[string]json.RawMessage
		err := json.Unmarshal(data, &want)
		require.Equal(t, err == nil && want != nil, ok)
		for key, value := range last {
			if ok && json.Valid([]byte(`"`+key+`"`)) && strings.ToValidUTF8(key, "") == key {
				require.Equal(t, string(want[key]), value)
			}
		}
	})
}

// FuzzError: an error is JSON, whatever it says, and says it.
func FuzzError(f *testing.F) {
	f.Add(uint(7), "a \"quoted\"\n\\ \x00\x7f text", "\xff")
	f.Fuzz(func(t *testing.T, code uint, msg, details string) {
		var got struct {
			CNIVersion   string
			Code         uint
			Msg, Details string
		}
		e := &Error{Code: code, Msg: msg, Details: details}
		require.NoError(t, json.Unmarshal(e.JSON("1.0.0"), &got))
		require.Equal(t, []any{"1.0.0", code}, []any{got.CNIVersion, got.Code})
		if strings.ToValidUTF8(msg, "") == msg {
			require.Equal(t, msg, got.Msg)
		}
	})
}

func TestVersions(t *testing.T) {
	for version, want := range map[string]string{"0.4.0": "0.4.0", "0.2.0": "1.1.0", "": "1.1.0"} {
		require.Equal(t, `{"cniVersion":"`+want+`","supportedVersions":["0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}`, string(VersionResult(version)))
		require.Equal(t, `{"cniVersion":"`+want+`","code":7,"msg":"m"}`, string((&Error{Code: 7, Msg: "m"}).JSON(version)))
	}
}
