package configurator_test

import (
	"testing"

	"github.com/allocnet/allocnet/internal/testing/imports"
)

// TestImports: the library does not depend on what only the programs need.
func TestImports(t *testing.T) {
	imports.RequireNone(t, imports.OfPrograms...)
}
