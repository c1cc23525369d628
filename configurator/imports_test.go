package configurator_test

import (
	"testing"

	"github.com/allocnet/allocnet/internal/testing/imports"
)

// TestImports: an embedder does not inherit what the programs need.
func TestImports(t *testing.T) {
	imports.RequireNone(t, imports.OfPrograms...)
}
