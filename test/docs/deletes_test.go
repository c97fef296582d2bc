package docs

import (
	"go/ast"
	"go/types"
	"slices"
	"strings"
	"testing"
)

// Every delete is of the object as it was read (R3: with UID and resourceVersion as preconditions), which package
// exact ensures. No other package calls the Delete of a client.
func TestOnlyPackageExactDeletes(t *testing.T) {
	found := 0
	for dir, files := range readSource(t).files {
		if strings.HasSuffix(dir, "internal/exact") {
			continue
		}
		for _, file := range files {
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				of, ok := call.Fun.(*ast.SelectorExpr)
				if !ok || !takesContext(call) {
					return true
				}
				if text := types.ExprString(of); text == "exact.DeleteWithPreconditions" {
					found++
				} else if slices.Contains([]string{"Delete", "DeleteAllOf", "DeleteCollection"}, of.Sel.Name) {
					t.Errorf("%s calls %s: let exact.DeleteWithPreconditions do it", dir, text)
				}
				return true
			})
		}
	}
	if found < 20 {
		t.Errorf("there are %d deletions; this test does not see them", found)
	}
}

// takesContext reports whether the first argument of a call is a context, as in all requests: the other functions of
// the name delete from maps and metrics.
func takesContext(call *ast.CallExpr) bool {
	if len(call.Args) < 2 {
		return false
	}
	name, ok := call.Args[0].(*ast.Ident)
	return ok && strings.HasPrefix(strings.ToLower(name.Name), "ctx") || strings.Contains(types.ExprString(call.Args[0]), "ontext")
}
