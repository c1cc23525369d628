package names

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEscapeLabel: what is valid stays, and everything else becomes valid, each text another one.
func TestEscapeLabel(t *testing.T) {
	long := strings.Repeat("a", 63)
	for _, tt := range []struct{ text, want string }{
		{"web", "web"},
		{long, long},
		{"backup/periodic-1764450000", "backup-periodic-1764450000.sha256-4012c5e78fb8a3e383f0"},
		{"backup-periodic-1764450000.sha256-4012c5e78fb8a3e383f0", "backup-periodic-1764450000.sha256-4.sha256-dcbbafc5f37727eb245a"},
		{"a b", "a-b.sha256-c8687a08aa5d6ed20443"},
		{"-", "sha256-3973e022e93220f9212c"},
		{"ü", "sha256-607474ca475a9724d736"},
		{long + "a", long[:35] + ".sha256-ffe054fe7ae0cb6dc65c"},
	} {
		key, value := EscapeLabel("key", tt.text)
		require.Equal(t, "key", key)
		require.Equal(t, tt.want, value, tt.text)
		key, value = EscapeLabel(tt.text, "")
		require.Empty(t, value, "an empty value is valid")
		if !strings.Contains(tt.text, "/") { // it separates the prefix of a key
			require.Equal(t, tt.want, key, tt.text)
		}
	}
	key, _ := EscapeLabel("example.com/app", "")
	require.Equal(t, "example.com/app", key)
	key, _ = EscapeLabel("Example.com/app", "")
	require.Regexp(t, `^Example\.com-app\.sha256-`, key)
}

func FuzzEscapeLabel(f *testing.F) {
	f.Add("app", "web/periodic-1", "web")
	f.Add("a/b/c", "", "\xff")
	f.Fuzz(func(t *testing.T, key, one, other string) {
		key, escapedOne := EscapeLabel(key, one)
		_, escapedOther := EscapeLabel(key, other)
		require.NoError(t, ValidateLabels(map[string]string{key: escapedOne}))
		require.Equal(t, one == other, escapedOne == escapedOther)
	})
}
