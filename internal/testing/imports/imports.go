// Package imports checks the dependencies of a package.
package imports

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// RequireNone fails the test if the package in the current directory depends on
// a forbidden package, or on one below it.
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

// OfPrograms are packages that only the programs may depend on, not the
// library.
var OfPrograms = []string{
	"github.com/allocnet/allocnet/cmd", "github.com/getkin/kin-openapi", "github.com/hashicorp/hcl", "github.com/prometheus",
	"github.com/spf13", "go.opentelemetry.io/otel/exporters", "go.opentelemetry.io/otel/sdk", "google.golang.org/grpc",
	"github.com/stretchr/testify",
}

// OfEngines are packages that only the engines need. The client of the daemon
// must not depend on them.
var OfEngines = []string{
	"github.com/allocnet/allocnet/cleanup", "github.com/allocnet/allocnet/configurator", "github.com/allocnet/allocnet/internal/engine",
	"github.com/allocnet/allocnet/internal/iptables", "github.com/allocnet/allocnet/internal/netlink", "github.com/allocnet/allocnet/internal/plugins",
	"github.com/allocnet/allocnet/internal/state", "github.com/containerd/go-cni", "github.com/containernetworking/cni/libcni",
	"github.com/godbus/dbus", "github.com/google/nftables", "github.com/hashicorp/go-hclog",
	"github.com/mdlayher", "github.com/vishvananda", "go.opentelemetry.io",
}
