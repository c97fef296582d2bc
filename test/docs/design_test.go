package docs

import (
	"fmt"
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
	// ruleHead matches the head of a rule: the heading of a section, or the beginning of an item of a list.
	ruleHead = regexp.MustCompile(`(?m)^(?:### |- \*\*)([RPT]\d{1,2})\b`)
	// sectionHead matches the heading of a section.
	sectionHead = regexp.MustCompile(`(?m)^##+ `)
	// codeOf matches the paragraph that names the code of a rule.
	codeOf = regexp.MustCompile(`(?ms)^ *Code: (.*?)\n\n`)
	// quoted matches the name of a declaration, such as grants.Planner.PlanGrants.
	quoted = regexp.MustCompile("`((?:[a-z0-9]+/)*[A-Za-z0-9]+(?:\\.[A-Za-z0-9]+)*)`")
	// qualified matches the same with the name of its package.
	qualified = regexp.MustCompile("`((?:[a-z0-9]+/)*[a-z0-9]+(?:\\.[A-Za-z0-9]+)+)`")
)

// Each rule of docs/design.md names its code, and that exists: functions and types as package.Name, methods as
// package.Type.Method. A name that fits several declarations is ambiguous.
func TestNamedCodeOfRulesExists(t *testing.T) {
	s := readSource(t)
	text, err := os.ReadFile(filepath.Join(s.root, "docs", "design.md"))
	if err != nil {
		t.Fatal(err)
	}
	known := declarationsByName(s)
	rules := rulesOf(string(text))
	if len(rules) != 17+7+6 {
		t.Errorf("there are %d rules, not 17 of pools and Nodes, 7 of leases and 6 of hosts", len(rules))
	}
	for _, name := range slices.Sorted(maps.Keys(rules)) {
		names := 0
		for _, paragraph := range codeOf.FindAllStringSubmatch(rules[name], -1) {
			for _, m := range quoted.FindAllStringSubmatch(paragraph[1], -1) {
				names++
				if !qualified.MatchString(m[0]) {
					t.Errorf("%s: %s is without its package", name, m[1])
					continue
				}
				if err := checkDeclared(known, m[1]); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		if names == 0 {
			t.Errorf("%s: no code is named", name)
		}
	}
}

// The code that the pages for contributors name outside of rules, with its package, exists too.
func TestNamedCodeOfPagesExists(t *testing.T) {
	s := readSource(t)
	known := declarationsByName(s)
	packages := map[string]bool{}
	for dir := range s.files {
		packages[filepath.Base(dir)] = true
	}
	names := 0
	for _, page := range []string{"architecture.md", "design.md", "glossary.md"} {
		text, err := os.ReadFile(filepath.Join(s.root, "docs", page))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range qualified.FindAllStringSubmatch(string(text), -1) {
			before, _, _ := strings.Cut(m[1], ".")
			if !packages[filepath.Base(before)] || strings.HasSuffix(m[1], ".go") {
				continue // a field, or a file
			}
			names++
			if err := checkDeclared(known, m[1]); err != nil {
				t.Errorf("docs/%s: %v", page, err)
			}
		}
	}
	if names < 200 {
		t.Errorf("%d names can be read", names)
	}
}

// rulesOf returns the text of each rule, by its name. It ends with a blank line.
func rulesOf(text string) map[string]string {
	out := map[string]string{}
	heads := ruleHead.FindAllStringSubmatchIndex(text, -1)
	for i, at := range heads {
		body := text[at[1]:]
		if i+1 < len(heads) {
			body = text[at[1]:heads[i+1][0]]
		}
		if end := sectionHead.FindStringIndex(body); end != nil {
			body = body[:end[0]]
		}
		out[text[at[2]:at[3]]] = body + "\n\n"
	}
	return out
}

// declarationsByName returns the full names of the declarations of the code, by each name that a page may give them.
func declarationsByName(s *source) map[string]map[string]bool {
	out := map[string]map[string]bool{}
	for dir, files := range s.files {
		for _, file := range files {
			for _, name := range declared(file) {
				full := filepath.ToSlash(dir) + "." + name
				for _, short := range shortNames(full) {
					if out[short] == nil {
						out[short] = map[string]bool{}
					}
					out[short][full] = true
				}
			}
		}
	}
	return out
}

// checkDeclared returns an error if no declaration has a name, or several do.
func checkDeclared(known map[string]map[string]bool, name string) error {
	switch found := known[name]; {
	case len(found) == 0:
		return fmt.Errorf("there is no %s", name)
	case len(found) > 1:
		return fmt.Errorf("%s is ambiguous: %s", name, strings.Join(slices.Sorted(maps.Keys(found)), ", "))
	}
	return nil
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
