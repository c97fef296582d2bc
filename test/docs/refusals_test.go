package docs

import (
	"go/ast"
	"slices"
)

// refusing are the packages that refuse claims and allocations.
var refusing = []string{"internal/allocator", "internal/grants", "internal/kinds/blocks", "internal/kinds/claims", "internal/kinds/leases"}

// refusal is a reason with its message, as a format.
type refusal struct{ reason, format string }

// refusals returns all refusals that the allocator has for claims and allocations.
func (s *source) refusals() []refusal {
	makers := s.makers()
	seen := map[refusal]bool{}
	s.functions(refusing, func(f *ast.FuncDecl) {
		if _, ok := makers[f.Name.Name]; ok {
			return
		}
		ast.Inspect(f.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if reason, ok := makers[called(n)]; ok {
					seen[refusal{reason, s.text(n.Args[0])}] = true
				}
			case *ast.CompositeLit:
				if reason, message := s.literal(n); reason != "" {
					for _, format := range s.formats(f, message) {
						seen[refusal{reason, format}] = true
					}
				}
			}
			return true
		})
	})
	var out []refusal
	for r := range seen {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b refusal) int {
		return slices.Compare([]string{a.reason, a.format}, []string{b.reason, b.format})
	})
	return out
}

// makers returns the functions that make a refusal from a format, with their reasons.
func (s *source) makers() map[string]string {
	out := map[string]string{}
	s.functions(refusing, func(f *ast.FuncDecl) {
		params := f.Type.Params.List
		if f.Recv != nil || len(params) == 0 {
			return
		}
		if _, variadic := params[len(params)-1].Type.(*ast.Ellipsis); !variadic {
			return
		}
		ast.Inspect(f.Body, func(n ast.Node) bool {
			if c, ok := n.(*ast.CompositeLit); ok {
				if reason, _ := s.literal(c); reason != "" {
					out[f.Name.Name] = reason
				}
			}
			return true
		})
	})
	return out
}

// literal returns the reason of a refusal that is a composite literal, and the expression of its message.
func (s *source) literal(c *ast.CompositeLit) (string, ast.Expr) {
	name := c.Type
	if of, ok := name.(*ast.SelectorExpr); ok {
		name = of.Sel
	}
	if name, ok := name.(*ast.Ident); !ok || name.Name != "Refusal" || len(c.Elts) != 2 {
		return "", nil
	}
	reason, of := c.Elts[0].(*ast.KeyValueExpr)
	message, ok := c.Elts[1].(*ast.KeyValueExpr)
	if !of || !ok {
		return "", nil
	}
	return s.text(reason.Value), message.Value
}

// formats returns the possible texts of an expression: for a variable, all values that the function assigns to it.
func (s *source) formats(f *ast.FuncDecl, e ast.Expr) []string {
	name, ok := e.(*ast.Ident)
	if !ok {
		return []string{s.text(e)}
	}
	var out []string
	ast.Inspect(f.Body, func(n ast.Node) bool {
		if a, ok := n.(*ast.AssignStmt); ok {
			for i, to := range a.Lhs {
				if to, ok := to.(*ast.Ident); ok && to.Name == name.Name && i < len(a.Rhs) {
					out = append(out, s.text(a.Rhs[i]))
				}
			}
		}
		return true
	})
	return out
}
