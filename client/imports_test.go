package client_test

import (
	"slices"
	"testing"

	"github.com/allocnet/allocnet/internal/testing/imports"
)

// TestImports: a program that only talks to the daemon links no engine.
func TestImports(t *testing.T) {
	imports.RequireNone(t, slices.Concat(imports.OfEngines, imports.OfPrograms, []string{"net/http", "crypto/tls"})...)
}
