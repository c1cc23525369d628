package configurator

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadmeExample: the README contains the compiled example.
func TestReadmeExample(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	_, after, found := strings.Cut(string(readme), "```go\n")
	require.True(t, found)
	shown, _, found := strings.Cut(after, "```")
	require.True(t, found)
	source, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	_, body, found := strings.Cut(string(source), "func Example() {\n")
	require.True(t, found)
	body = strings.TrimSuffix(body, "}\n")
	require.Equal(t, strings.ReplaceAll(body, "\n\t", "\n"), "\t"+shown)
}
