// Package filetree makes directory trees from text, which tests keep as samples of formats.
// Names that a tree may have, and links, cannot be files of a Go module.
package filetree

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Make makes a tree below a directory. Each line of the description is one of
//
//	file PATH "CONTENT"
//	link PATH "TARGET"
//	attribute PATH NAME "VALUE"
//	time PATH "TIME"
//
// with strings as in Go, and times of modification as in RFC 3339. Lines that begin with #
// are comments.
func Make(t testing.TB, dir, description string) {
	t.Helper()
	text, err := os.ReadFile(description)
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.IndexByte(line, '"')
		require.Positive(t, at, line)
		words := strings.Fields(line[:at])
		value, err := strconv.Unquote(strings.TrimSpace(line[at:]))
		require.NoError(t, err, line)
		path := filepath.Join(dir, words[1])
		switch words[0] {
		case "file":
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
			require.NoError(t, os.WriteFile(path, []byte(value), 0o600))
		case "link":
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
			require.NoError(t, os.Symlink(value, path))
		case "attribute":
			require.NoError(t, unix.Setxattr(path, words[2], []byte(value), 0))
		case "time":
			when, err := time.Parse(time.RFC3339Nano, value)
			require.NoError(t, err)
			require.NoError(t, os.Chtimes(path, when, when))
		default:
			require.Fail(t, "unknown line", line)
		}
	}
}
