package client_test

import (
	"testing"

	"github.com/allocnet/allocnet/internal/testing/imports"
)

// TestImports: a program that only talks to the daemon links no engine.
func TestImports(t *testing.T) {
	imports.RequireNone(t, append(imports.OfEngines, imports.OfPrograms...)...)
}
