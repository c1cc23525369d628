package thin

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestVerify(t *testing.T) {
	const ips = `"ips":[ {"address":"10.0.0.2/24"}]`
	for _, test := range []struct {
		name, command, body, reason string
	}{
		{"a result", Add, `{"result":{"cniVersion":"1.0.0",` + ips + `}}`, ""},
		{"an error", Add, `{"error":{"code":7,"msg":"m","details":"d"}}`, ""},
		{"an error of DEL", Del, `{"error":{"code":7,"msg":"\ud83d\ude00"}}`, ""},
		{"DEL is done", Del, `{}`, ""},
		{"CHECK is done", Check, "\n{}\n", ""},
		{"nothing for ADD", Add, `{}`, "no result"},
		{"null for ADD", Add, `{"result":null}`, "no result"},
		{"another version", Add, `{"result":{"cniVersion":"0.4.0",` + ips + `}}`, `a result in version "0.4.0", not "1.0.0"`},
		{"no version", Add, `{"result":{` + ips + `}}`, `a result in version "", not "1.0.0"`},
		{"a result without addresses", Add, `{"result":{"cniVersion":"1.0.0"}}`, ""},
		{"a result of DEL", Del, `{"result":{"cniVersion":"1.0.0",` + ips + `}}`, "a result, where DEL has none"},
		{"null for STATUS", Status, `{"result":null}`, "a result, where STATUS has none"},
		{"two answers", Add, `{"result":{"cniVersion":"1.0.0",` + ips + `},"error":{"code":7,"msg":"m"}}`, "both a result and an error"},
		{"null for an error", Del, `{"error":null}`, "an error without a code or a message"},
		{"an error without a code", Del, `{"error":{"code":0,"msg":"m"}}`, "an error without a code or a message"},
		{"an error without a message", Del, `{"error":{"code":7}}`, "an error without a code or a message"},
	} {
		t.Run(test.name, func(t *testing.T) {
			answer, err := readBody([]byte(test.body), "/socket")
			require.NoError(t, err)
			err = answer.Verify(test.command, "1.0.0")
			if test.reason == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, ErrHung)
			require.EqualError(t, err, "answer to "+test.command+": allocnetd does not answer: "+test.reason)
		})
	}
	for _, body := range []string{"", "null", "[]", `{"result":{},"result":{}}`, `{"error":{},"error":{}}`, `{}{}`} {
		_, err := readBody([]byte(body), "/socket")
		require.ErrorIs(t, err, ErrHung, body)
	}
}
