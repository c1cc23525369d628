// Package skip skips tests and parts of them. Nothing else in the tests does, so that the table in
// CONTRIBUTING.md has all reasons.
package skip

import (
	"hash/crc32"
	"os"
	"strings"
	"testing"
)

// RequireVariable names the environment variable that, with the value 1, makes tests fail that this host
// cannot run.
const RequireVariable = "ALLOCNET_REQUIRE_KERNEL"

// TB is a part of testing.TB.
type TB interface {
	Helper()
	Skipf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Unless skips a test if this host cannot run it, and gives the reason. If all tests are required, it fails.
func Unless(t TB, can bool, format string, args ...any) {
	t.Helper()
	switch {
	case can:
	case Required():
		t.Fatalf(format, args...)
	default:
		t.Skipf(format, args...)
	}
}

// Required reports whether tests fail that this host cannot run.
func Required() bool { return os.Getenv(RequireVariable) == "1" }

// KernelVariable names the environment variable that make kernels sets, with the value 1, on the kernels that
// it boots.
const KernelVariable = "ALLOCNET_KERNELS"

// UnlessKernel skips a test that needs more than this kernel has. On the kernels of make kernels it fails, and
// gives the reason.
func UnlessKernel(t TB, can bool, format string, args ...any) {
	t.Helper()
	switch {
	case can:
	case os.Getenv(KernelVariable) == "1":
		t.Fatalf(format, args...)
	default:
		LeaveTo(t, "make kernels")
	}
}

// LeaveTo skips a test that another command runs, such as "make hosts".
func LeaveTo(t TB, command string) {
	t.Helper()
	t.Skipf("%s runs it", command)
}

// InShort skips a test, or a part of one, with the flag -short, with which make test runs the tests: of the
// combinations of a matrix, some.
func InShort(t TB) {
	t.Helper()
	if testing.Short() {
		LeaveTo(t, "make test FULL=1")
	}
}

// InTurn skips, with -short, the subtest with the number i of a test, unless it is one in n. Which one of the n
// depends on the test's name, so the tests of a package run different combinations.
func InTurn(t testing.TB, i, n int) {
	t.Helper()
	if !Has(t, i, n) {
		InShort(t)
	}
}

// Has reports whether InTurn would not skip the subtest.
func Has(t testing.TB, i, n int) bool {
	name, _, _ := strings.Cut(t.Name(), "/")
	return !testing.Short() || (int(crc32.ChecksumIEEE([]byte(name)))+i)%n == 0
}
