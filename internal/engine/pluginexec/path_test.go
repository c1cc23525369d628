package pluginexec

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCompletePath(t *testing.T) {
	for path, want := range map[string]string{
		"/bin":                   "/bin:/usr/local/sbin:/usr/sbin:/sbin",
		"/sbin:/usr/sbin:/x":     "/sbin:/usr/sbin:/x:/usr/local/sbin",
		"":                       "/usr/local/sbin:/usr/sbin:/sbin",
		"/usr/local/sbin:/a:/b/": "/usr/local/sbin:/a:/b/:/usr/sbin:/sbin",
	} {
		require.Equal(t, want, CompletePath(path), path)
	}
}
