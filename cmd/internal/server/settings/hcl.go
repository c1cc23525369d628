package settings

import (
	"cmp"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// parse applies a file. Values are literals, without variables and functions.
func parse(to *Settings, name string, data []byte) []error {
	file, diagnostics := hclsyntax.ParseConfig(data, name, hcl.InitialPos)
	if diagnostics.HasErrors() {
		return syntaxErrors(name, diagnostics)
	}
	p := parsing{to: to, name: name}
	body := file.Body.(*hclsyntax.Body)
	p.attributes("", body)
	seen := map[string]int{}
	for _, b := range body.Blocks {
		line := b.TypeRange.Start.Line
		switch {
		case !slices.ContainsFunc(table, func(s setting) bool { return s.block == b.Type }):
			p.problem(line, b.Type, "there is no such block: "+known("", b.Type))
			continue
		case b.Type == poolBlock && len(b.Labels) == 1:
			p.pool(b)
			continue
		case len(b.Labels) > 0:
			p.problem(line, b.Type, "has a label: write only "+b.Type+" {")
		case seen[b.Type] > 0:
			p.problem(line, b.Type, fmt.Sprintf("is already in line %d: merge the two blocks", seen[b.Type]))
		}
		seen[b.Type] = line
		p.attributes(b.Type, b.Body)
		for _, inner := range b.Body.Blocks {
			p.problem(inner.TypeRange.Start.Line, b.Type+"."+inner.Type, "there is no such block: "+known(b.Type, inner.Type))
		}
	}
	slices.SortStableFunc(p.errs, func(a, b error) int { return cmp.Compare(a.(*Error).Line, b.(*Error).Line) })
	return p.errs
}

// poolBlock is the block that can have a label, the name of a network.
const poolBlock = "pool"

// pool applies a block pool "NETWORK" { size = N }.
func (p *parsing) pool(b *hclsyntax.Block) {
	key := fmt.Sprintf("%s %q", poolBlock, b.Labels[0])
	size := ""
	for name, a := range b.Body.Attributes {
		line := a.NameRange.Start.Line
		got, ok := literal(a.Expr, number)
		switch {
		case name != "size":
			p.problem(line, key+"."+name, "there is no such setting: the block of a network has only size")
		case !ok:
			p.problem(line, key+".size", "must be "+string(number)+", such as size = 32")
		default:
			size = got[0]
		}
	}
	line := b.TypeRange.Start.Line
	for _, inner := range b.Body.Blocks {
		p.problem(inner.TypeRange.Start.Line, key+"."+inner.Type, "there is no such block: the block of a network has only size")
	}
	if size == "" {
		if len(b.Body.Attributes) == 0 {
			p.problem(line, key, "has no size: write for example size = 32")
		}
		return
	}
	v := poolsOf(&p.to.Pool.Networks)
	if err := v.set(append(v.get(), b.Labels[0]+"="+size)); err != nil {
		p.problem(line, key, err.Error())
	}
}

func syntaxErrors(name string, diagnostics hcl.Diagnostics) []error {
	var errs []error
	for _, d := range diagnostics {
		e := &Error{Origin: name, Problem: strings.TrimSuffix(d.Summary+": "+d.Detail, ".")}
		if d.Subject != nil {
			e.Line = d.Subject.Start.Line
		}
		errs = append(errs, e)
	}
	return errs
}

// parsing is one run of parse.
type parsing struct {
	to   *Settings
	name string
	errs []error
}

func (p *parsing) problem(line int, key, problem string) {
	p.errs = append(p.errs, &Error{Origin: p.name, Line: line, Key: key, Problem: problem})
}

// attributes applies the attributes of a block, or of the top level if block is "".
func (p *parsing) attributes(block string, body *hclsyntax.Body) {
	for name, a := range body.Attributes {
		line := a.NameRange.Start.Line
		i := slices.IndexFunc(table, func(s setting) bool { return s.block == block && s.name == name })
		if i < 0 {
			key := strings.TrimPrefix(block+"."+name, ".")
			p.problem(line, key, "there is no such setting: "+known(block, name))
			continue
		}
		v := table[i].in(p.to)
		got, ok := literal(a.Expr, v.kind())
		if !ok {
			p.problem(line, table[i].key(), "must be "+string(v.kind())+example(&table[i]))
			continue
		}
		p.errs = append(p.errs, problems(p.name, line, &table[i], v.set(got))...)
	}
}

// literal returns the value of an expression of the given kind; ok is false for any other
// expression.
func literal(e hclsyntax.Expression, k kind) ([]string, bool) {
	if k == texts {
		tuple, ok := e.(*hclsyntax.TupleConsExpr)
		if !ok {
			return nil, false
		}
		var all []string
		for _, one := range tuple.Exprs {
			got, ok := literal(one, text)
			if !ok {
				return nil, false
			}
			all = append(all, got...)
		}
		return all, true
	}
	switch of := e.(type) {
	case *hclsyntax.TemplateExpr:
		if !of.IsStringLiteral() {
			return nil, false
		}
	case *hclsyntax.LiteralValueExpr, *hclsyntax.UnaryOpExpr: // a sign
	default:
		return nil, false
	}
	v, diagnostics := e.Value(nil)
	types := map[kind]cty.Type{text: cty.String, number: cty.Number, boolean: cty.Bool}
	if diagnostics.HasErrors() || v.IsNull() || v.Type() != types[k] {
		return nil, false
	}
	return plain(v)
}

// plain returns a text, number or boolean as text.
func plain(v cty.Value) ([]string, bool) {
	switch v.Type() {
	case cty.Bool:
		return []string{strconv.FormatBool(v.True())}, true
	case cty.Number: // it may have too many digits to print
		n, accuracy := v.AsBigFloat().Int64()
		return []string{strconv.FormatInt(n, 10)}, accuracy == big.Exact
	default:
		return []string{v.AsString()}, true
	}
}

// example returns the default of a setting in the syntax of the file.
func example(s *setting) string {
	defaults := Default()
	v := s.in(&defaults)
	if shown := join(v.kind(), v.get()); shown != "" {
		return fmt.Sprintf(", such as %s = %s", s.name, quoted(v))
	}
	return ""
}

// quoted returns a value in the syntax of the file.
func quoted(v value) string {
	got := v.get()
	switch v.kind() {
	case texts:
		for i := range got {
			got[i] = fmt.Sprintf("%q", got[i])
		}
		return "[" + strings.Join(got, ", ") + "]"
	case text:
		return fmt.Sprintf("%q", got[0])
	default:
		return got[0]
	}
}
