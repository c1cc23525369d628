package redact

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestBound(t *testing.T) {
	require.Equal(t, "act: cause\nsecond", Bound("act: cause\nsecond"))
	long := Bound(`network "` + strings.Repeat("ü", 32<<10) + `": is not there`)
	require.Less(t, len(long), 2200)
	require.True(t, utf8.ValidString(long))
	require.Regexp(t, `^network "ü+\[\.\.\. 63\d+ bytes \.\.\.\]ü+": is not there$`, long)
	many := strings.Split(Bound(strings.Repeat("cause\n", 515)+"cause"), "\n")
	require.Len(t, many, mostLines+1)
	require.Equal(t, "... and 452 more lines", many[mostLines])
	require.Equal(t, Bound(long), long, "what is bounded stays")
}
