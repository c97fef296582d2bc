package framework

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
)

// TestNames are the test functions of a package, and its strings: among these are the names of specs and of subtests,
// as they are and as go test writes them.
type TestNames struct{ Functions, Texts map[string]bool }

// ReadTestNames reads the tests in a directory.
func ReadTestNames(dir string) (*TestNames, error) {
	out := &TestNames{map[string]bool{}, map[string]bool{}}
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		file, err := parser.ParseFile(token.NewFileSet(), f, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Recv == nil {
					out.Functions[n.Name.Name] = true
				}
			case *ast.BasicLit:
				if text, err := strconv.Unquote(n.Value); err == nil {
					out.Texts[text] = true
					out.Texts[strings.ReplaceAll(text, " ", "_")] = true
				}
			}
			return true
		})
	}
	return out, nil
}
