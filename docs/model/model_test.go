// Package model has the model of the protocol, for spin. See README.md.
package model

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every step of the model names the functions that do it; they exist, so that the model does not part from the code
// unseen.
func TestStepsNameFunctions(t *testing.T) {
	for name, least := range map[string]int{"grants.pml": 20, "overlap.pml": 8, "carve.pml": 12, "nodes.pml": 19, "hosts.pml": 11, "move.pml": 10, "arrive.pml": 9} {
		t.Run(name, func(t *testing.T) { checkStepsNameFunctions(t, name, least) })
	}
}

func checkStepsNameFunctions(t *testing.T, name string, least int) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	steps := regexp.MustCompile(`go: ([^*]+)\*/`).FindAllStringSubmatch(string(text), -1)
	if all := strings.Count(string(text), " go: "); len(steps) != all || all < least {
		t.Fatalf("%d of %d notes can be read", len(steps), all)
	}
	declared := functions(t, filepath.Join("..", "..", "internal"))
	for _, step := range steps {
		for name := range strings.SplitSeq(step[1], ",") {
			if name = strings.TrimSpace(name); !declared[name] {
				t.Errorf("there is no function %s", name)
			}
		}
	}
}

// functions returns the functions of the packages below a directory as package.function, methods as
// package.Type.method.
func functions(t *testing.T, dir string) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok {
				name := f.Name.Name
				if f.Recv != nil {
					name = receiver(f.Recv.List[0].Type) + "." + name
				}
				out[file.Name.Name+"."+name] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
