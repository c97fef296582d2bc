package framework

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
)

// TestNames holds the test functions and the string literals of a package. The literals include the names of specs
// and subtests, as written and as go test prints them.
type TestNames struct{ Functions, Texts map[string]bool }

// ReadTestNames parses the test files in a directory.
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
