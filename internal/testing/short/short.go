// Package short leaves out parts of tests with the flag -short, with which make test runs them: of the
// combinations of a matrix, some. make test FULL=1 runs all of them.
package short

import (
	"hash/crc32"
	"strings"
	"testing"
)

// Skip skips a test, or a part of one, with -short.
func Skip(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("make test FULL=1 runs it")
	}
}

// InTurn skips, with -short, the subtest with the number i of a test, unless it is one in n. Which one of the n
// depends on the test's name, so the tests of a package run different combinations.
func InTurn(t testing.TB, i, n int) {
	t.Helper()
	if !Has(t, i, n) {
		Skip(t)
	}
}

// Has reports whether InTurn would not skip the subtest.
func Has(t testing.TB, i, n int) bool {
	name, _, _ := strings.Cut(t.Name(), "/")
	return !testing.Short() || (int(crc32.ChecksumIEEE([]byte(name)))+i)%n == 0
}
