package strict

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/policy"
)

type inner struct {
	To    int      `json:"to"`
	Names []string `json:"names"`
}

type sample struct {
	ID     string            `json:"id"`
	Ports  []inner           `json:"ports,omitempty"`
	Args   map[string]string `json:"args"`
	Inner  *inner            `json:"inner"`
	Raw    json.RawMessage   `json:"raw"`
	Many   []json.RawMessage `json:"many"`
	Small  uint8             `json:"small"`
	Half   float64           `json:"half"`
	Yes    bool              `json:"yes"`
	Hidden string            `json:"-"`
}

func TestDecodes(t *testing.T) {
	const text = ` {"id":"a","ports":[{"to":1,"names":["x"]},{"to":-2}],"args":{"K":"v","k":""},"inner":{"to":3},
		"raw":{"any":[1,{"thing":null}]},"many":[1,"2",null],"small":255,"half":0.5,"yes":true} `
	var got, want sample
	require.NoError(t, Decode([]byte(text), &got))
	require.NoError(t, json.Unmarshal([]byte(text), &want))
	require.Equal(t, want, got)
	require.NoError(t, Decode([]byte(`{"ports":null,"args":null,"inner":null,"raw":null,"many":null}`), &got))
}

func TestRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  `the body (line 1, column 1): is empty, JSON is wanted`,
		" \n":                               `the body (line 1, column 1): is empty, JSON is wanted`,
		"null":                              `the body (line 1, column 1): must be an object, not null`,
		"[]":                                `the body (line 1, column 1): must be an object, not an array`,
		`"id"`:                              `the body (line 1, column 1): must be an object, not a string`,
		`{"id":"a"`:                         `the body (line 1, column 10): is cut short`,
		`{"id":"a",}`:                       `the body (line 1, column 11): invalid character '}' looking for beginning of object key string`,
		`{"id":"a"} {}`:                     `the body (line 1, column 12): invalid character '{' after top-level value`,
		"{\"id\":\"a\",\n \"id\":\"b\"}":    `id (line 2, column 2): is there twice`,
		`{"ID":"a"}`:                        `ID (line 1, column 2): is not a known field`,
		`{"-":"a"}`:                         `- (line 1, column 2): is not a known field`,
		`{"hidden":"a"}`:                    `hidden (line 1, column 2): is not a known field`,
		`{"":1}`:                            `[""] (line 1, column 2): is not a known field`,
		`{"id":1}`:                          `id (line 1, column 7): must be a string, not a number`,
		`{"id":null}`:                       `id (line 1, column 7): must be a string, not null`,
		`{"ports":{}}`:                      `ports (line 1, column 10): must be an array, not an object`,
		`{"ports":[{},{"to":"1"}]}`:         `ports[1].to (line 1, column 20): must be a number, not a string`,
		`{"ports":[{"to":1.5}]}`:            `ports[0].to (line 1, column 17): must be a number of type int`,
		`{"ports":[{"to":1e2}]}`:            `ports[0].to (line 1, column 17): must be a number of type int`,
		`{"ports":[{"names":["",2]}]}`:      `ports[0].names[1] (line 1, column 24): must be a string, not a number`,
		`{"ports":[{"nope":[]}]}`:           `ports[0].nope (line 1, column 12): is not a known field`,
		`{"args":{"a.b":1}}`:                `args["a.b"] (line 1, column 16): must be a string, not a number`,
		`{"args":{"k":"","k":""}}`:          `args.k (line 1, column 17): is there twice`,
		`{"args":{"k":"","\u006b":""}}`:     `args.k (line 1, column 17): is there twice`,
		`{"raw":[{"a":1,"a":2}]}`:           `raw[0].a (line 1, column 16): is there twice`,
		`{"many":[{},{"a":{"b":1,"b":2}}]}`: `many[1].a.b (line 1, column 25): is there twice`,
		`{"small":256}`:                     `small (line 1, column 10): must be a number of type uint8`,
		`{"small":-1}`:                      `small (line 1, column 10): must be a number of type uint8`,
		`{"half":1e999}`:                    `half (line 1, column 9): must be a number of type float64`,
		`{"yes":"true"}`:                    `yes (line 1, column 8): must be a boolean, not a string`,
		"{\"id\":\"\xff\"}":                 `the body (line 1, column 8): is not UTF-8`,
		`{"raw":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`: `raw` + strings.Repeat("[0]", 100) + ` (line 1, column 108): is nested deeper than 100`,
		`{"` + strings.Repeat("k", 100) + `":1}`:                              `["` + strings.Repeat("k", 64) + `..."] (line 1, column 2): is not a known field`,
	} {
		var got sample
		err := Decode([]byte(text), &got)
		require.EqualError(t, err, want, text)
		var e *Error
		require.ErrorAs(t, err, &e)
		require.Zero(t, got, "nothing is decoded of %s", text)
	}
	require.EqualError(t, Wrong("live", "is missing"), "live: is missing")
}

// TestFolds reads names in any case, each once.
func TestFolds(t *testing.T) {
	var got, want sample
	const text = `{"ID":"a","Ports":[{"TO":1,"Names":null}],"ARGS":{"K":"v","k":""},"raw":{"A":1,"a":2}}`
	require.NoError(t, DecodeFold([]byte(text), &got))
	require.NoError(t, json.Unmarshal([]byte(text), &want))
	require.Equal(t, want, got)
	for text, want := range map[string]string{
		`{"id":"a","ID":"b"}`:         `ID (line 1, column 11): is there twice`,
		`{"Ports":[{"To":1,"tO":2}]}`: `Ports[0].tO (line 1, column 19): is there twice`,
		`{"aRgs":{"k":"","k":""}}`:    `aRgs.k (line 1, column 17): is there twice`,
		`{"Inner":{"nope":1}}`:        `Inner.nope (line 1, column 11): is not a known field`,
		`{"Hidden":""}`:               `Hidden (line 1, column 2): is not a known field`,
		`{"Small":-1}`:                `Small (line 1, column 10): must be a number of type uint8`,
		"{\"in\u212aer\":1}":          "in\u212aer (line 1, column 2): is not a known field",
		`{"RAW":1,"raw":2}`:           `raw (line 1, column 10): is there twice`,
	} {
		require.EqualError(t, DecodeFold([]byte(text), &sample{}), want, text)
	}
}

// TestPassesOver what begins so, in the whole alone.
func TestPassesOver(t *testing.T) {
	decode := func(text string, v any) error { return DecodeBut("x/", []byte(text), v) }
	type reserved struct {
		Known int             `json:"x/known"`
		Inner *reserved       `json:"inner"`
		Raw   json.RawMessage `json:"raw"`
	}
	var got reserved
	require.NoError(t, decode(`{"x/new":{"a":[1]},"x/known":1,"x/":null,"inner":{"x/known":2},"raw":{"x/any":1}}`, &got))
	require.Equal(t, []int{1, 2}, []int{got.Known, got.Inner.Known})
	for text, want := range map[string]string{
		`{"y":1}`:                 `y (line 1, column 2): is not a known field`,
		`{"X/new":1}`:             `X/new (line 1, column 2): is not a known field`,
		`{"x/Known":1}`:           `x/Known (line 1, column 2): is not a known field`,
		`{"x/a":1,"x/a":1}`:       `x/a (line 1, column 10): is there twice`,
		`{"x/a":{"b":1,"b":1}}`:   `x/a.b (line 1, column 15): is there twice`,
		`{"inner":{"x/new":1}}`:   `inner.x/new (line 1, column 11): is not a known field`,
		`{"x/known":"not a one"}`: `x/known (line 1, column 12): must be a number, not a string`,
	} {
		require.EqualError(t, decode(text, &reserved{}), want, text)
	}
	require.Error(t, Decode([]byte(`{"x/new":1}`), &got))
}

// TestOwnDecoding: the errors of a type that decodes itself have their place in the whole value.
func TestOwnDecoding(t *testing.T) {
	type owner struct {
		Policy *policy.Policy  `json:"policy"`
		Many   []policy.Policy `json:"many"`
		Peer   *policy.Peer    `json:"peer"`
	}
	var got owner
	require.NoError(t, Decode([]byte(`{"policy":{"egress":{"rules":[{"peers":[{"labels":{"app":"db"}},{"cidr":"10.0.0.0/8"}]}]}},"many":[{}],"peer":null}`), &got))
	require.Equal(t, "label:app=db", got.Policy.Egress.Rules[0].Peers[0].String())
	require.Len(t, got.Many, 1)
	for text, want := range map[string]string{
		`{"policy":{"egress":{"rules":[{"peers":[{"cidr":"x"}]}]}}}`: `policy.egress.rules[0].peers[0].cidr (line 1, column 11): "x" is not a network in CIDR notation, such as 10.0.0.0/8 or fd00::/8`,
		`{"policy":{"x":1}}`:                   `policy (line 1, column 11): `,
		`{"many":[{},{"egress":{"x":1}}]}`:     `many[1].egress (line 1, column 13): `,
		`{"policy":{"egress":{},"egress":{}}}`: `policy.egress (line 1, column 24): is there twice`,
		`{"policy":3}`:                         `policy (line 1, column 11): `,
	} {
		require.ErrorContains(t, Decode([]byte(text), &owner{}), want, text)
	}
}

// FuzzDecode holds what is decoded against encoding/json.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"id":"a","ports":[{"to":1,"names":["x"]}],"args":{"K":"v"},"raw":{"a":[1]},"small":1,"half":1e3,"yes":true}`,
		`{"id":"a","id":"b"}`, `[`, `{"ports":[{"to":"1"}]}`, "\xff", `{"args":{"\ud800":""}}`, `{"raw":1}{}`, `{"inner":{"to":-0}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var got, want sample
		if err := Decode(data, &got); err != nil {
			var e *Error
			require.ErrorAs(t, err, &e)
			return
		}
		require.NoError(t, json.Unmarshal(data, &want))
		require.Equal(t, want, got)
		var folded sample
		require.NoError(t, DecodeFold(data, &folded))
		require.Equal(t, want, folded)
		again, err := json.Marshal(got)
		require.NoError(t, err)
		var back sample
		require.NoError(t, Decode(again, &back), "%s", again)
		require.True(t, reflect.DeepEqual(got.Args, back.Args) && got.ID == back.ID)
	})
}
