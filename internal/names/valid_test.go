package names

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestValidate(t *testing.T) {
	climbing := []string{"", ".", "..", "../x", "a/b", "/", "a\x00b", "a\nb", "\x1b[31ma"}
	for _, c := range []struct {
		what      string
		validate  func(string) error
		good, bad []string
	}{
		{"container", ValidateContainer, []string{"a", "A-1.b_2"}, append(climbing, "-a", ".a", "a b", "a:b")},
		{"network", ValidateNetwork, []string{"a", "A-1.b_2"}, append(climbing, "-a", ".a", "a b", "a:b")},
		{"interface", ValidateInterface, []string{"eth0", "eth0.100", "br-1", "a@b"}, []string{"", ".", "..", "../x", "a/b", "a b", "a:b", strings.Repeat("a", 16)}},
		{"new interface", ValidateNewInterface, []string{"eth0", "eth0.100", "br-1", "a@b", "all0", "defaults"}, []string{"", "..", "a/b", "all", "default", "a%d", "%", strings.Repeat("a", 16)}},
		{"type", ValidatePluginType, []string{"bridge", "host-local", ".x", "a b"}, append(climbing, `a\b`, "a:b", strings.Repeat("a", 256))},
		{"chain", ValidateChain, []string{"CNI-ADMIN", "a:b"}, []string{"", "a\x00b", "a\nb", "-F", "!x", "a b", `a"b`, strings.Repeat("a", 29)}},
	} {
		for _, name := range c.good {
			require.NoError(t, c.validate(name), "%s %q", c.what, name)
		}
		for _, name := range c.bad {
			err := c.validate(name)
			require.Error(t, err, "%s %q", c.what, name)
			require.NotRegexp(t, `[[:cntrl:]]`, err.Error(), "%s %q", c.what, name)
		}
	}
}
