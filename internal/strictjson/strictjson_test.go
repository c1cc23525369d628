package strictjson

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

type outer struct {
	Name  string            `json:"name,omitempty"`
	Inner *inner            `json:"inner,omitempty"`
	List  []inner           `json:"list"`
	Map   map[string]string `json:"map"`
	Own   own               `json:"own"`
	Quiet string
}

type inner struct {
	Number uint8    `json:"number"`
	Flag   bool     `json:"flag"`
	Words  []string `json:"words"`
	More   []own    `json:"more"`
}

// own decodes itself, as a nested document with places of its own.
type own struct{ Value string }

func (o *own) UnmarshalJSON(data []byte) error {
	v := struct {
		Value string `json:"value"`
	}{}
	if err := Unmarshal(data, &v); err != nil {
		return err
	}
	if v.Value == "bad" {
		return errors.New("bad value")
	}
	o.Value = v.Value
	return nil
}

func TestUnmarshal(t *testing.T) {
	var got outer
	require.NoError(t, Unmarshal([]byte(` {"name":"a","inner":{"number":255,"flag":true,"words":[]},
		"list":[{},{"more":[{"value":"x"}]}],"map":{"k":""},"own":null}`), &got))
	require.Equal(t, outer{
		Name: "a", Inner: &inner{Number: 255, Flag: true, Words: []string{}},
		List: []inner{{}, {More: []own{{"x"}}}}, Map: map[string]string{"k": ""},
	}, got)
}

func TestErrorsNameThePlace(t *testing.T) {
	for text, want := range map[string]string{
		``:                                `not a JSON document: unexpected end of JSON input`,
		`{} {}`:                           `not a JSON document: invalid character '{' after top-level value`,
		`[]`:                              `not an object`,
		`{"Name":"a"}`:                    `unknown field "Name"`,
		`{"":"a"}`:                        `unknown field ""`,
		`{"Quiet":"a"}`:                   `unknown field "Quiet"`,
		`{"name":"","name":""}`:           `field "name" occurs twice`,
		`{"name":1}`:                      `name: 1 is not a string`,
		`{"inner":{"number":256}}`:        `inner.number: 256 is not a number from 0 to 255`,
		`{"inner":{"flag":"x"}}`:          `inner.flag: "x" is not true or false`,
		`{"inner":[]}`:                    `inner: not an object`,
		`{"list":{}}`:                     `list: not a list`,
		`{"list":[{},null]}`:              `list[1]: null is not possible in a list`,
		`{"list":[{},{"words":["a",2]}]}`: `list[1].words[1]: 2 is not a string`,
		`{"list":[{},{"oops":1}]}`:        `list[1]: unknown field "oops"`,
		`{"map":{"a":"b","a":"c"}}`:       `map: field "a" occurs twice`,
		`{"map":{"a":null}}`:              `map: the value of "a" is not a string`,
		`{"own":{"value":"bad"}}`:         `own: bad value`,
		`{"list":[{"more":[{"value":"x"},{"v":"x"}]}]}`: `list[0].more[1]: unknown field "v"`,
		`{"list":[{"more":[{"value":1}]}]}`:             `list[0].more[0].value: 1 is not a string`,
	} {
		var got outer
		err := Unmarshal([]byte(text), &got)
		require.EqualError(t, err, want, text)
		var placed *Error
		require.ErrorAs(t, err, &placed, text)
	}
}

// FuzzUnmarshal checks that accepted documents are those of encoding/json.
func FuzzUnmarshal(f *testing.F) {
	f.Add(`{"name":"a","inner":{"number":1,"words":["x"]},"list":[{}],"map":{"k":"v"}}`)
	f.Fuzz(func(t *testing.T, text string) {
		var got, want outer
		if Unmarshal([]byte(text), &got) == nil {
			require.NoError(t, json.Unmarshal([]byte(text), &want))
		}
	})
}
