package testbed

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/skip"
)

// Contract contains the tests of a package that hold with and without a pool,
// by name. The package's TestContract runs them with pools.
type Contract map[string]ContractTest

// ContractTest is a test that runs with pools, too.
type ContractTest struct {
	Run func(*testing.T)
	// Always makes make test run the test with pools; make pools runs all of them.
	Always bool
	// Bypasses reports that all allocations request what no slot has, or that their
	// network cannot have a pool.
	Bypasses bool
}

// contract is the contract that runs.
var contract Contract

// Run runs the tests once more, with allocations from pools: make test some of
// them, make pools all. Call it in TestContract.
func (c Contract) Run(t *testing.T) {
	contract = c
	for _, name := range slices.Sorted(maps.Keys(c)) {
		test := c[name]
		t.Run(name, func(t *testing.T) {
			if !test.Always && os.Getenv("ALLOCNET_POOLS") == "" {
				skip.LeaveTo(t, "make pools")
			}
			test.Run(t)
		})
	}
}

// RequireComplete requires that every test of the package in the working
// directory is in the contract, or among the others, with the reason.
func (c Contract) RequireComplete(t *testing.T, others map[string]string) {
	t.Helper()
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	var tests []string
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range f.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") && f.Name.Name != "TestMain" {
				tests = append(tests, f.Name.Name)
			}
		}
	}
	for _, name := range tests {
		_, with := c[name]
		_, without := others[name]
		require.True(t, with != without, "%s is to be in contract or in withoutPools", name)
	}
	require.Len(t, tests, len(c)+len(others), "a test that does not exist")
}

// WithPools reports whether the test runs with pools.
func WithPools(t testing.TB) bool {
	_, pooled := contractOf(t)
	return pooled
}

// contractOf returns the entry in the contract of a test that runs with pools.
func contractOf(t testing.TB) (test ContractTest, pooled bool) {
	name, found := strings.CutPrefix(t.Name(), "TestContract/")
	name, _, _ = strings.Cut(name, "/")
	return contract[name], found
}

// withPools returns the engines and backends of a test: with pools, the native ones only.
func withPools(t testing.TB, ways []Way) []Way {
	if _, pooled := contractOf(t); !pooled {
		return ways
	}
	return slices.DeleteFunc(slices.Clone(ways), func(w Way) bool { return w.Engine == configurator.EngineExec })
}
