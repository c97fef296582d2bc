package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// source is the Go code of the project, without its tests.
type source struct {
	root string
	// files are the parsed files, by directory relative to the root.
	files map[string][]*ast.File
	// constants are the string constants, by name: no two packages have constants of one name with different values
	// that a page quotes.
	constants map[string]string
	// texts are all strings of the code.
	texts map[string]bool
}

func readSource(t *testing.T) *source {
	t.Helper()
	root, err := framework.FindRepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	s := &source{root: root, files: map[string][]*ast.File{}, texts: map[string]bool{}, constants: map[string]string{
		"IPAddressClaimReadyAllocationFailedReason": ipamv1.IPAddressClaimReadyAllocationFailedReason,
		"IPAddressClaimReadyPoolNotReadyReason":     ipamv1.IPAddressClaimReadyPoolNotReadyReason,
		"IPAddressClaimReadyPoolExhaustedReason":    ipamv1.IPAddressClaimReadyPoolExhaustedReason,
	}}
	for _, dir := range []string{"api", "controllers", "internal"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
				err = s.read(path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *source) read(path string) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	dir, err := filepath.Rel(s.root, filepath.Dir(path))
	if err != nil {
		return err
	}
	s.files[dir] = append(s.files[dir], file)
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			for i, name := range n.Names {
				if i < len(n.Values) {
					if text := s.text(n.Values[i]); text != "" {
						s.constants[name.Name] = text
					}
				}
			}
		case *ast.BasicLit:
			if text := s.text(n); text != "" {
				s.texts[text] = true
			}
		}
		return true
	})
	return nil
}

// text returns the string value of an expression, with a verb for each part that is not constant; it is empty if
// nothing is known of the value.
func (s *source) text(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		if err == nil && e.Kind == token.STRING {
			return text
		}
	case *ast.Ident:
		return s.constants[e.Name]
	case *ast.SelectorExpr:
		return s.constants[e.Sel.Name]
	case *ast.CallExpr:
		if len(e.Args) > 0 { // fmt.Sprintf, or a function that sanitizes or shortens its text
			return s.text(e.Args[0])
		}
	case *ast.BinaryExpr:
		left, right := s.text(e.X), s.text(e.Y)
		if left != "" || right != "" {
			return orVerb(left) + orVerb(right)
		}
	}
	return ""
}

// orVerb returns text, or a verb if text is empty.
func orVerb(text string) string {
	if text == "" {
		return "%s"
	}
	return text
}

// functions calls visit for each function of some packages.
func (s *source) functions(dirs []string, visit func(*ast.FuncDecl)) {
	for _, dir := range dirs {
		for _, file := range s.files[dir] {
			for _, d := range file.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
					visit(f)
				}
			}
		}
	}
}

// called returns the name of the function or method that is called.
func called(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

// calls invokes visit for each call in a package.
func (s *source) calls(dir string, visit func(name string, args []ast.Expr)) {
	for _, file := range s.files[dir] {
		ast.Inspect(file, func(n ast.Node) bool {
			if c, ok := n.(*ast.CallExpr); ok {
				visit(called(c), c.Args)
			}
			return true
		})
	}
}

// eventPrefixes returns the prefixes of event reasons that are built from a prefix and the reason of a condition.
func (s *source) eventPrefixes() []string {
	out := map[string]bool{}
	for dir := range s.files {
		s.calls(dir, func(name string, args []ast.Expr) {
			if name == "Eventf" && len(args) > 4 {
				if begins, ok := strings.CutSuffix(s.text(args[3]), "%s"); ok {
					out[begins] = true
				}
			}
		})
	}
	return sorted(out)
}

func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }
