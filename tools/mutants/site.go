package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/go/packages"
)

// The kinds of mutants.
const (
	kindCondition = "condition" // a condition, or an operand of && or ||, is negated
	kindCall      = "call"      // a call that is a statement is dropped
	kindBoundary  = "boundary"  // a comparison includes its boundary, or excludes it
	kindInt       = "int"       // an integer literal is one larger
	kindString    = "string"    // a string literal has one character more
)

// Site is a place that a mutant changes. All but ID and Line identify it, also in a
// later version of the tree.
type Site struct {
	ID       int    `json:"id"`
	Kind     string `json:"kind"`
	File     string `json:"file"` // relative to the tree
	Function string `json:"function"`
	Text     string `json:"text"`    // the changed expression or statement
	Source   string `json:"source"`  // its first line, without indentation
	Ordinal  int    `json:"ordinal"` // among sites that are otherwise the same
	Line     int    `json:"line"`

	edits []edit
	node  ast.Node
}

// key identifies a site; with anywhere, in any file of its directory.
func (s *Site) key(anywhere bool) string {
	file := s.File
	if anywhere {
		file = filepath.Dir(file)
	}
	return fmt.Sprintf("%s\x00%s\x00%s\x00%s\x00%s\x00%d", file, s.Function, s.Kind, s.Text, s.Source, s.Ordinal)
}

// edit replaces the bytes from start to end of a file.
type edit struct {
	start, end int
	text       func(id int) string
	outer      int // of edits at one offset, those of wider nodes enclose the others
	closing    bool
}

// excluded are the packages that get no mutants.
var excluded = regexp.MustCompile(`/(integration|examples|internal/testing|internal/bench|internal/mutant)(/|$)`)

// loadPackages returns the packages of the library and the programs, with their types.
func loadPackages(tree string) ([]*packages.Package, error) {
	pkgs, err := packages.Load(&packages.Config{
		Dir: tree,
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports |
			packages.NeedTypes | packages.NeedSyntax | packages.NeedTypesInfo | packages.NeedModule,
	}, "./...", "./cmd/...")
	if err != nil {
		return nil, fmt.Errorf("load packages: %w", err)
	}
	var mutated []*packages.Package
	for _, p := range pkgs {
		if len(p.Errors) > 0 {
			return nil, fmt.Errorf("load package %s: %w", p.PkgPath, p.Errors[0])
		}
		// A package that imports testing serves tests only.
		if excluded.MatchString(p.PkgPath) || p.Imports["testing"] != nil {
			continue
		}
		mutated = append(mutated, p)
	}
	return mutated, nil
}

// finder collects the sites of one file.
type finder struct {
	pkg      *packages.Package
	file     *ast.File
	path     string
	content  []byte
	lines    []string
	parents  []ast.Node
	sites    []*Site
	ordinals map[string]int
}

// findSites returns all sites of a file.
func findSites(p *packages.Package, file *ast.File, path string, content []byte) []*Site {
	if ast.IsGenerated(file) {
		return nil
	}
	f := &finder{pkg: p, file: file, path: path, content: content, lines: strings.Split(string(content), "\n"), ordinals: map[string]int{}}
	ast.Inspect(file, f.visit)
	return f.sites
}

func (f *finder) visit(n ast.Node) bool {
	if n == nil {
		f.parents = f.parents[:len(f.parents)-1]
		return true
	}
	descend := true
	switch n := n.(type) {
	case *ast.GenDecl:
		descend = n.Tok == token.VAR
	case *ast.ArrayType, *ast.StructType, *ast.InterfaceType, *ast.FuncType:
		descend = false
	case *ast.IfStmt:
		f.condition(n.Cond)
	case *ast.ForStmt:
		if n.Cond != nil {
			f.condition(n.Cond)
		}
	case *ast.BinaryExpr:
		f.binary(n)
	case *ast.ExprStmt:
		f.call(n)
	case *ast.BasicLit:
		f.literal(n)
	}
	if descend {
		f.parents = append(f.parents, n)
	}
	return descend
}

func (f *finder) condition(e ast.Expr) {
	f.add(kindCondition, e, wrap(f, e, func(id int) string { return fmt.Sprintf("mutant.Bool(%d, ", id) }, ")", 1))
}

func (f *finder) binary(e *ast.BinaryExpr) {
	comparison := map[token.Token]string{token.LSS: "Less", token.LEQ: "LessOrEqual", token.GTR: "Greater", token.GEQ: "GreaterOrEqual"}
	switch e.Op {
	case token.LAND, token.LOR:
		for _, operand := range []ast.Expr{e.X, e.Y} {
			if b, ok := ast.Unparen(operand).(*ast.BinaryExpr); ok && (b.Op == token.LAND || b.Op == token.LOR) {
				continue
			}
			f.condition(operand)
		}
	case token.LSS, token.LEQ, token.GTR, token.GEQ:
		if f.pkg.TypesInfo.Types[e].Value != nil {
			return
		}
		edits := wrap(f, e, func(id int) string { return fmt.Sprintf("mutant.%s(%d, ", comparison[e.Op], id) }, ")", 0)
		at := f.offset(e.OpPos)
		edits = append(edits, edit{start: at, end: at + len(e.Op.String()), text: func(int) string { return "," }})
		f.add(kindBoundary, e, edits)
	}
}

func (f *finder) call(s *ast.ExprStmt) {
	call, ok := s.X.(*ast.CallExpr)
	if !ok {
		return
	}
	switch f.parents[len(f.parents)-1].(type) {
	case *ast.BlockStmt, *ast.CaseClause, *ast.CommClause:
	default:
		return
	}
	if name, ok := call.Fun.(*ast.Ident); ok && name.Name == "panic" {
		return
	}
	f.add(kindCall, s, wrap(f, s, func(id int) string { return fmt.Sprintf("if !mutant.Drop(%d) { ", id) }, " }", 0))
}

// textFunctions are functions whose string arguments are for people.
var textFunctions = regexp.MustCompile(`^(fmt|errors|log|strings\.NewReplacer)\.|(?i)\.?(errorf?|warnf?|infof?|debugf?|print(f|ln)?|wrapf?|logf?|fail(f|ed)?)$`)

func (f *finder) literal(l *ast.BasicLit) {
	for _, parent := range f.parents {
		if call, ok := parent.(*ast.CallExpr); ok && l.Kind == token.STRING && textFunctions.MatchString(types.ExprString(call.Fun)) {
			return
		}
	}
	name, ok := f.typeName(f.pkg.TypesInfo.Types[l].Type, l.Kind)
	if !ok {
		return
	}
	switch l.Kind {
	case token.INT:
		f.add(kindInt, l, wrap(f, l, func(id int) string { return fmt.Sprintf("mutant.Int[%s](%d, ", name, id) }, ")", 0))
	case token.STRING:
		// Texts for people are not what tests compare.
		if value, err := strconv.Unquote(l.Value); err != nil || value == "" || strings.ContainsAny(value, " \n%") {
			return
		}
		f.add(kindString, l, wrap(f, l, func(id int) string { return fmt.Sprintf("mutant.String[%s](%d, ", name, id) }, ")", 0))
	}
}

// typeName returns how the file writes the type of a literal, if it can.
func (f *finder) typeName(t types.Type, kind token.Token) (string, bool) {
	basic, ok := t.Underlying().(*types.Basic)
	wanted := types.BasicInfo(types.IsInteger)
	if kind == token.STRING {
		wanted = types.IsString
	}
	if !ok || basic.Info()&wanted == 0 || basic.Info()&types.IsUntyped != 0 {
		return "", false
	}
	known := true
	name := types.TypeString(t, func(p *types.Package) string {
		if p == f.pkg.Types {
			return ""
		}
		for _, spec := range f.file.Imports {
			if path, _ := strconv.Unquote(spec.Path.Value); path != p.Path() {
				continue
			}
			if spec.Name != nil {
				known = known && spec.Name.Name != "_" && spec.Name.Name != "."
				return spec.Name.Name
			}
			return p.Name()
		}
		known = false
		return p.Name()
	})
	return name, known
}

// wrap returns the edits that put text around a node.
func wrap(f *finder, n ast.Node, before func(int) string, after string, layer int) []edit {
	start, end := f.offset(n.Pos()), f.offset(n.End())
	outer := 2*(end-start) + layer
	return []edit{
		{start: start, end: start, text: before, outer: outer},
		{start: end, end: end, text: func(int) string { return after }, outer: outer, closing: true},
	}
}

func (f *finder) offset(p token.Pos) int { return f.pkg.Fset.Position(p).Offset }

func (f *finder) add(kind string, n ast.Node, edits []edit) {
	position := f.pkg.Fset.Position(n.Pos())
	text := string(f.content[f.offset(n.Pos()):f.offset(n.End())])
	s := &Site{
		Kind: kind, File: f.path, Function: f.function(), Text: strings.Join(strings.Fields(text), " "),
		Source: strings.TrimSpace(f.lines[position.Line-1]), Line: position.Line, edits: edits, node: n,
	}
	s.Ordinal = f.ordinals[s.key(false)]
	f.ordinals[s.key(false)]++
	f.sites = append(f.sites, s)
}

// function returns the name of the declaration around the current node.
func (f *finder) function() string {
	for _, parent := range f.parents {
		switch d := parent.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				return d.Name.Name
			}
			receiver := types.ExprString(d.Recv.List[0].Type)
			return strings.TrimPrefix(receiver, "*") + "." + d.Name.Name
		case *ast.ValueSpec:
			return "var " + d.Names[0].Name
		}
	}
	return ""
}

// rewrite returns the content of a file with the mutants of its sites. The lines
// keep their numbers.
func rewrite(content []byte, file *ast.File, offset func(token.Pos) int, importPath string, sites []*Site) []byte {
	type placed struct {
		edit
		id int
	}
	var edits []placed
	for _, s := range sites {
		for _, e := range s.edits {
			edits = append(edits, placed{e, s.ID})
		}
	}
	slices.SortStableFunc(edits, func(a, b placed) int {
		switch {
		case a.start != b.start:
			return a.start - b.start
		case a.closing != b.closing: // what ends here ends before the next begins
			if a.closing {
				return -1
			}
			return 1
		case a.closing:
			return a.outer - b.outer
		}
		return b.outer - a.outer
	})
	var out []byte
	at := offset(file.Name.End())
	out = append(out, content[:at]...)
	out = append(out, fmt.Sprintf("; import mutant %q", importPath)...)
	for _, e := range edits {
		out = append(out, content[at:e.start]...)
		out = append(out, e.text(e.id)...)
		at = e.end
	}
	return append(out, content[at:]...)
}
