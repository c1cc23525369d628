package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/cmd/internal/cni"
)

func TestVerify(t *testing.T) {
	const ips = `"ips":[ {"address":"10.0.0.2/24"}]`
	for _, test := range []struct {
		name, command, body, reason string
	}{
		{"a result", cni.Add, `{"result":{"cniVersion":"1.0.0",` + ips + `}}`, ""},
		{"an error", cni.Add, `{"error":{"code":7,"msg":"m","details":"d"}}`, ""},
		{"an error of DEL", cni.Del, `{"error":{"code":7,"msg":"\ud83d\ude00"}}`, ""},
		{"DEL is done", cni.Del, `{}`, ""},
		{"CHECK is done", cni.Check, "\n{}\n", ""},
		{"nothing for ADD", cni.Add, `{}`, "no result"},
		{"null for ADD", cni.Add, `{"result":null}`, "no result"},
		{"another version", cni.Add, `{"result":{"cniVersion":"0.4.0",` + ips + `}}`, `a result in version "0.4.0", not "1.0.0"`},
		{"no version", cni.Add, `{"result":{` + ips + `}}`, `a result in version "", not "1.0.0"`},
		{"a result without addresses", cni.Add, `{"result":{"cniVersion":"1.0.0"}}`, ""},
		{"a result of DEL", cni.Del, `{"result":{"cniVersion":"1.0.0",` + ips + `}}`, "a result, but DEL has none"},
		{"null for STATUS", cni.Status, `{"result":null}`, "a result, but STATUS has none"},
		{"two answers", cni.Add, `{"result":{"cniVersion":"1.0.0",` + ips + `},"error":{"code":7,"msg":"m"}}`, "both a result and an error"},
		{"null for an error", cni.Del, `{"error":null}`, "an error without a code or a message"},
		{"an error without a code", cni.Del, `{"error":{"code":0,"msg":"m"}}`, "an error without a code or a message"},
		{"an error without a message", cni.Del, `{"error":{"code":7}}`, "an error without a code or a message"},
	} {
		t.Run(test.name, func(t *testing.T) {
			answer, err := readAnswer([]byte(test.body))
			require.NoError(t, err)
			err = answer.verify(test.command, "1.0.0")
			if test.reason == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, errNoAnswer)
			require.EqualError(t, err, "answer to "+test.command+": allocnetd does not answer: "+test.reason)
		})
	}
	for _, body := range []string{"", "null", "[]", `{"result":{},"result":{}}`, `{"error":{},"error":{}}`, `{}{}`} {
		_, err := readAnswer([]byte(body))
		require.Error(t, err, body)
	}
}

func TestPrint(t *testing.T) {
	for _, test := range []struct {
		name   string
		answer *answer
		out    string
		code   int
	}{
		{"a result as it is", &answer{Result: []byte(`{ "a": 1 }`)}, `{ "a": 1 }`, 0},
		{"no result", &answer{}, ``, 0},
		{"an error as it is", &answer{Error: []byte(`{ "code": 7 }`)}, `{ "code": 7 }`, 1},
		{"an error", answerOf(&cni.Error{Code: 7, Msg: "m"}, "0.4.0"), `{"cniVersion":"0.4.0","code":7,"msg":"m"}`, 1},
		{"an error of no version", answerOf(&cni.Error{Code: 7, Msg: "m"}, ""), `{"cniVersion":"1.1.0","code":7,"msg":"m"}`, 1},
		{"an error without a code", answerOf(errors.New("m"), "0.2.0"), `{"cniVersion":"1.1.0","code":999,"msg":"m"}`, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out bytes.Buffer
			require.Equal(t, test.code, test.answer.print(&out))
			require.Equal(t, test.out, out.String())
		})
	}
	require.Equal(t, 1, (&answer{Result: []byte(`{}`)}).print(brokenPipe{}))
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestMembers(t *testing.T) {
	m, ok := membersOf([]byte(` { "a" : "x" , "b":[1,{"c":null}],"a":-0.5e+7, "\/":1, "\u0064":true, "D":null}` + "\n"))
	require.True(t, ok)
	require.True(t, m.repeated)
	got := map[string]string{}
	for key, value := range m.values {
		got[key] = string(value)
	}
	require.Equal(t, map[string]string{"a": "-0.5e+7", "b": `[1,{"c":null}]`, "/": "1", "d": "true", "D": "null"}, got)
	m, ok = membersOf([]byte(`{"a":"\u0061\n\/","b":7,"c":null}`))
	require.True(t, ok)
	text, ok := m.text("a")
	require.True(t, ok)
	require.Equal(t, "a\n/", text)
	for _, key := range []string{"b", "c", "d"} {
		_, ok = m.text(key)
		require.False(t, ok, key)
	}
}

// FuzzMembers: what is an object, and what is in it, is as in encoding/json.
func FuzzMembers(f *testing.F) {
	for _, seed := range []string{`{"a":[true,false,null,-1.5e-3,"\u00e9\\"]}`, `{"a":01}`, `{"a":1,}`, `{} {}`, "{\"\x1f\":1}", `[{}]`, `{"a":"\x"}`, `{"a":tru`, `null`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, ok := membersOf(data)
		var want map[string]json.RawMessage
		err := json.Unmarshal(data, &want)
		require.Equal(t, err == nil && want != nil, ok)
		if ok {
			require.Equal(t, want, m.values)
		}
	})
}
