package skip

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../../.."

// TestReasonsAreDocumented: tests are skipped by this package only, and CONTRIBUTING.md names each command to
// which it leaves tests.
func TestReasonsAreDocumented(t *testing.T) {
	guide, err := os.ReadFile(filepath.Join(root, "CONTRIBUTING.md"))
	require.NoError(t, err)
	_, table, found := strings.Cut(string(guide), "| skipped because |")
	require.True(t, found)
	commands := map[string]bool{}
	eachCall(t, func(place, receiver, method string, args []ast.Expr) {
		switch method {
		case "Skip", "Skipf", "SkipNow":
			require.True(t, passesOn(place), "%s: %s.%s: the package skip does that", place, receiver, method)
		case "LeaveTo":
			command, err := strconv.Unquote(args[1].(*ast.BasicLit).Value)
			require.NoError(t, err, place)
			commands[command] = true
		}
	})
	require.Contains(t, commands, "make hosts")
	for command := range commands {
		require.Contains(t, table, "| `"+command+" runs it` |")
	}
}

// passesOn reports whether a file skips a test because the same test was skipped in another process, or is this
// package's.
func passesOn(place string) bool {
	return strings.HasPrefix(place, "internal/testing/testhost/elsewhere.go:") || strings.HasPrefix(place, "internal/testing/skip/skip.go:")
}

// eachCall calls use with each call of a method, or of a function of a package, in the tree.
func eachCall(t *testing.T, use func(place, receiver, method string, args []ast.Expr)) {
	t.Helper()
	positions := token.NewFileSet()
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		file, err := parser.ParseFile(positions, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			var receiver, method string
			switch fn := call.Fun.(type) {
			case *ast.SelectorExpr:
				method = fn.Sel.Name
				if x, ok := fn.X.(*ast.Ident); ok {
					receiver = x.Name
				}
			case *ast.Ident:
				method = fn.Name
			}
			name, err := filepath.Rel(root, path)
			require.NoError(t, err)
			use(name+":"+strconv.Itoa(positions.Position(call.Pos()).Line), receiver, method, call.Args)
			return true
		})
		return nil
	}))
}

// outcome is a TB that records how the test ended.
type outcome string

func (*outcome) Helper()                 {}
func (o *outcome) Skipf(string, ...any)  { *o = "skipped" }
func (o *outcome) Fatalf(string, ...any) { *o = "failed" }

func TestUnless(t *testing.T) {
	for _, test := range []struct {
		can            bool
		required, want string
	}{{true, "", ""}, {true, "1", ""}, {false, "", "skipped"}, {false, "1", "failed"}} {
		for variable, unless := range map[string]func(TB, bool, string, ...any){RequireVariable: Unless, KernelVariable: UnlessKernel} {
			t.Setenv(variable, test.required)
			var o outcome
			unless(&o, test.can, "the kernel lacks %s", "it")
			require.EqualValues(t, test.want, o, variable)
		}
	}
}

// TestInTurn: of the subtests of a test, -short runs one in n.
func TestInTurn(t *testing.T) {
	for n := 1; n < 5; n++ {
		has := 0
		for i := range n {
			if Has(t, i, n) {
				has++
			}
		}
		if testing.Short() {
			require.Equal(t, 1, has)
		} else {
			require.Equal(t, n, has)
		}
	}
}
