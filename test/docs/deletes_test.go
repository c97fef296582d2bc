package docs

import (
	"go/ast"
	"go/types"
	"slices"
	"strings"
	"testing"
)

// Whatever is deleted is deleted as it was read (R3), which is what package exact is for. It alone asks a client to delete.
func TestOnlyPackageExactDeletes(t *testing.T) {
	notClients := []string{"exact.Delete", "s.Blocks.Delete"} // the latter is a function of ours, by package exact
	found := 0
	for dir, files := range readSource(t).files {
		if strings.HasSuffix(dir, "internal/exact") {
			continue
		}
		for _, file := range files {
			ast.Inspect(file, func(n ast.Node) bool {
				call, is := n.(*ast.CallExpr)
				if !is {
					return true
				}
				of, is := call.Fun.(*ast.SelectorExpr)
				if !is || !slices.Contains([]string{"Delete", "DeleteAllOf", "DeleteCollection"}, of.Sel.Name) || !takesContext(call) {
					return true
				}
				if text := types.ExprString(of); !slices.Contains(notClients, text) {
					t.Errorf("%s calls %s: let exact.Delete do it", dir, text)
				} else if text == "exact.Delete" {
					found++
				}
				return true
			})
		}
	}
	if found < 20 {
		t.Errorf("there are %d deletions; this test does not see them", found)
	}
}

// takesContext reports whether a call has a context first, as all requests have: the other functions of the name delete
// from maps and metrics.
func takesContext(call *ast.CallExpr) bool {
	if len(call.Args) < 2 {
		return false
	}
	name, is := call.Args[0].(*ast.Ident)
	return is && strings.HasPrefix(strings.ToLower(name.Name), "ctx") || strings.Contains(types.ExprString(call.Args[0]), "ontext")
}
