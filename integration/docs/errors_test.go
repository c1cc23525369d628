package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/wire"
)

// exportedErrors returns the names of a package's exported error variables and
// types.
func exportedErrors(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(top, dir, "*.go"))
	require.NoError(t, err)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		for _, declared := range parsed.Decls {
			switch d := declared.(type) {
			case *ast.GenDecl:
				names = append(names, exportedVariables(d)...)
			case *ast.FuncDecl:
				if name := errorType(d); ast.IsExported(name) {
					names = append(names, name)
				}
			}
		}
	}
	return names
}

// exportedVariables returns the variables of a declaration that have names of
// errors.
func exportedVariables(d *ast.GenDecl) (names []string) {
	for _, s := range d.Specs {
		if v, ok := s.(*ast.ValueSpec); ok && d.Tok == token.VAR {
			for _, n := range v.Names {
				if strings.HasPrefix(n.Name, "Err") {
					names = append(names, n.Name)
				}
			}
		}
	}
	return names
}

// errorType returns the type whose method Error a function is, or "".
func errorType(d *ast.FuncDecl) string {
	if d.Name.Name != "Error" || d.Recv == nil {
		return ""
	}
	receiver := d.Recv.List[0].Type
	if pointer, ok := receiver.(*ast.StarExpr); ok {
		receiver = pointer.X
	}
	if name, ok := receiver.(*ast.Ident); ok {
		return name.Name
	}
	return ""
}

// TestErrorsAreExplained checks that docs/troubleshooting.md contains every
// error of the library, and every kind of error of the API and the command
// line.
func TestErrorsAreExplained(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(top, "docs/troubleshooting.md"))
	require.NoError(t, err)
	text, total := string(data), 0
	for _, dir := range []string{".", "portmap", "sandbox", "cleanup", "client"} {
		pkg := filepath.Base(dir)
		if dir == "." {
			pkg = "allocnet"
		}
		for _, name := range exportedErrors(t, dir) {
			require.Contains(t, text, "`"+pkg+"."+name+"`")
			total++
		}
	}
	require.Greater(t, total, 30, "errors were found")
	for _, kind := range wire.Kinds {
		require.Contains(t, text, "`"+kind.Word+"`", "kind of the API")
	}
	bin, err := documented()
	require.NoError(t, err)
	help, err := exec.Command(filepath.Join(bin, "allocnet"), "help", "kinds").Output()
	require.NoError(t, err)
	_, after, found := strings.Cut(string(help), "\nKinds:\n")
	require.True(t, found)
	kinds, _, _ := strings.Cut(after, "\n\n")
	for line := range strings.Lines(kinds) {
		require.Contains(t, text, "`"+strings.Fields(line)[0]+"`", "kind of the command line")
	}
}
