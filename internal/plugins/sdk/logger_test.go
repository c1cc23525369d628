package sdk

import (
	"errors"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
)

var _ Logger = hclog.Logger(nil)

func TestLines(t *testing.T) {
	var out strings.Builder
	log := lines{name: "bridge", to: &out}
	log.Warn("key is ignored", "plugin", "bridge", "because", errors.New(`unknown key "x"`))
	log.Error("panic", "stack", "a\nb", "odd")
	require.Equal(t, `[WARN] bridge: key is ignored plugin="bridge" because="unknown key \"x\""`+"\n"+
		`[ERROR] bridge: panic stack="a\nb"`+"\n", out.String())
}
