// Package imports finds out which packages a package links.
package imports

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// RequireNone fails where the package in the current directory depends on one of the
// forbidden packages, or on one below them.
func RequireNone(t *testing.T, forbidden ...string) {
	t.Helper()
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	require.NoError(t, err)
	deps := strings.Fields(string(out))
	require.NotEmpty(t, deps)
	found := slices.DeleteFunc(deps, func(dep string) bool {
		return !slices.ContainsFunc(forbidden, func(f string) bool { return dep == f || strings.HasPrefix(dep, f+"/") })
	})
	require.Empty(t, found, "forbidden dependencies")
}

// OfPrograms are what the programs need and the library must not have.
var OfPrograms = []string{
	"github.com/allocnet/allocnet/cmd", "github.com/getkin/kin-openapi", "github.com/hashicorp/hcl", "github.com/prometheus",
	"github.com/spf13", "go.opentelemetry.io/otel/exporters", "go.opentelemetry.io/otel/sdk", "google.golang.org/grpc",
	"github.com/stretchr/testify",
}

// OfEngines are what the engines need, and what only talks to the daemon must not have.
var OfEngines = []string{
	"github.com/allocnet/allocnet/cleanup", "github.com/allocnet/allocnet/configurator", "github.com/allocnet/allocnet/internal/engine",
	"github.com/allocnet/allocnet/internal/iptables", "github.com/allocnet/allocnet/internal/netlink", "github.com/allocnet/allocnet/internal/plugins",
	"github.com/allocnet/allocnet/internal/state", "github.com/containerd/go-cni", "github.com/containernetworking/cni/libcni",
	"github.com/coreos/go-iptables", "github.com/godbus/dbus", "github.com/google/nftables", "github.com/hashicorp/go-hclog",
	"github.com/mdlayher", "github.com/vishvananda", "go.opentelemetry.io",
}
