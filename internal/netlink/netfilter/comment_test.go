package netfilter

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestComment(t *testing.T) {
	tests := []struct {
		name, data, want string
	}{
		{"none", "", ""},
		{"comment", "\x00\x04abc\x00", "abc"},
		{"behind another record", "\x07\x02xx\x00\x02a\x00", "a"},
		{"no zero at the end", "\x00\x01a", "a"},
		{"too short", "\x00\x09abc", ""},
		{"half a header", "\x00", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { require.Equal(t, test.want, Comment([]byte(test.data))) })
	}
}

func FuzzComment(f *testing.F) {
	f.Add([]byte("\x07\x02xx\x00\x02a\x00"))
	f.Add([]byte("\x00\xff"))
	f.Fuzz(func(t *testing.T, data []byte) { require.LessOrEqual(t, len(Comment(data)), len(data)) })
}
