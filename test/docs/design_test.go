package docs

import (
	"go/ast"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// codeOf matches the paragraph that names the code of a rule.
	codeOf = regexp.MustCompile(`(?ms)^Code: (.*?)\n\n`)
	// quoted matches the name of a declaration, such as grants.Planner.PlanGrants.
	quoted = regexp.MustCompile("`((?:[a-z0-9]+/)*[A-Za-z0-9]+(?:\\.[A-Za-z0-9]+)*)`")
)

// The code that docs/design.md names for a rule exists: functions and types as package.Name, methods as
// package.Type.Method. A name that fits several declarations is ambiguous.
func TestNamedCodeOfRulesExists(t *testing.T) {
	s := readSource(t)
	text, err := os.ReadFile(filepath.Join(s.root, "docs", "design.md"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]map[string]bool{}
	for dir, files := range s.files {
		for _, file := range files {
			for _, name := range declared(file) {
				full := filepath.ToSlash(dir) + "." + name
				for _, short := range shortNames(full) {
					if known[short] == nil {
						known[short] = map[string]bool{}
					}
					known[short][full] = true
				}
			}
		}
	}
	rules := strings.Split(string(text), "\n### R")[1:]
	if len(rules) != 17 {
		t.Errorf("there are %d rules, not 17", len(rules))
	}
	for _, rule := range rules {
		title, _, _ := strings.Cut(rule, "\n")
		rule, _, _ = strings.Cut(rule, "\n### ")
		names := 0
		for _, paragraph := range codeOf.FindAllStringSubmatch(rule+"\n\n", -1) {
			for _, name := range quoted.FindAllStringSubmatch(paragraph[1], -1) {
				names++
				switch found := known[name[1]]; {
				case len(found) == 0:
					t.Errorf("R%s: there is no %s", title, name[1])
				case len(found) > 1:
					t.Errorf("R%s: %s is ambiguous: %s", title, name[1], strings.Join(slices.Sorted(maps.Keys(found)), ", "))
				}
			}
		}
		if names == 0 {
			t.Errorf("R%s: no code is named", title)
		}
	}
}

// declared returns the functions, types and methods of a file; a method, also of an interface, as Type.Method.
func declared(file *ast.File) []string {
	var out []string
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				name = receiverType(d.Recv.List[0].Type) + "." + name
			}
			out = append(out, name)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				spec, ok := spec.(*ast.TypeSpec)
				if !ok {
					continue
				}
				out = append(out, spec.Name.Name)
				of, ok := spec.Type.(*ast.InterfaceType)
				if !ok {
					continue
				}
				for _, method := range of.Methods.List {
					for _, name := range method.Names {
						out = append(out, spec.Name.Name+"."+name.Name)
					}
				}
			}
		}
	}
	return out
}

// receiverType returns the name of the type of a receiver.
func receiverType(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiverType(e.X)
	case *ast.IndexExpr:
		return receiverType(e.X)
	case *ast.IndexListExpr:
		return receiverType(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// shortNames returns the names by which a page may refer to a declaration: its full name, and each end of that after a
// slash or a dot.
func shortNames(full string) []string {
	out := []string{full}
	for i, r := range full {
		if r == '/' || r == '.' {
			out = append(out, full[i+1:])
		}
	}
	return out
}

func TestShortNames(t *testing.T) {
	got := shortNames("internal/grants.Planner.PlanGrants")
	want := []string{"internal/grants.Planner.PlanGrants", "grants.Planner.PlanGrants", "Planner.PlanGrants", "PlanGrants"}
	if !slices.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
}
