package docs

import (
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	// codeOf is the paragraph that names the code of a rule.
	codeOf = regexp.MustCompile(`(?ms)^Code: (.*?)\n\n`)
	// ofTheProtocol are the packages whose names need no package before them.
	ofTheProtocol = regexp.MustCompile(`^internal/(grants|allocator|term|fence|nodeipam|kinds/\w+)$`)
	quoted        = regexp.MustCompile("`([A-Za-z]+(?:\\.[A-Za-z]+)?)`")
)

// What docs/design.md names as the code of a rule exists: functions, methods and types of the protocol, and those of
// other packages as package.Name.
func TestCodeOfTheRulesExists(t *testing.T) {
	s := readSource(t)
	text, err := os.ReadFile(filepath.Join(s.root, "docs", "design.md"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for dir, files := range s.files {
		for _, file := range files {
			for _, name := range declared(file) {
				known[path.Base(dir)+"."+name] = true
				if ofTheProtocol.MatchString(dir) {
					known[name] = true
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
				if names++; !known[name[1]] {
					t.Errorf("R%s: there is no %s", title, name[1])
				}
			}
		}
		if names == 0 {
			t.Errorf("R%s: no code is named", title)
		}
	}
}

// declared are the functions, methods and types of a file.
func declared(file *ast.File) []string {
	var out []string
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			out = append(out, d.Name.Name)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if spec, is := spec.(*ast.TypeSpec); is {
					out = append(out, spec.Name.Name)
				}
			}
		}
	}
	return out
}
