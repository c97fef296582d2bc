package docs

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	code = regexp.MustCompile(`\b([A-Z])(\d{1,2})\b(?:-([A-Z])(\d{1,2})\b)?`)
	// textCodes matches the codes in the name or the reason of a test case: before a colon, or in brackets.
	textCodes = regexp.MustCompile(`^"(?:[A-Z]\d{1,2}, )*[A-Z]\d{1,2}:|\((?:[A-Z]\d{1,2}, )*[A-Z]\d{1,2}\)`)
	// requirement matches a line of docs/requirements.md.
	requirement = regexp.MustCompile(`(?m)^- \*\*([A-Z]\d{1,2})\*\* \S`)
	// rule matches an invariant or a rule of docs/design.md, level a level of docs/reliability.md: a row of a table,
	// a heading, or an item of a list.
	rule  = regexp.MustCompile(`(?m)^(?:\| |#+ |- \*\*)([IRPT]\d{1,2})\b`)
	level = regexp.MustCompile(`(?m)^\| (L\d) `)
)

// Each code in a comment, or in the name of a test, resolves: requirements in docs/requirements.md (in tests alone),
// invariants and rules in docs/design.md, levels of tests in docs/reliability.md. Comments of the product describe
// behaviour in words, and therefore name rules alone. And each requirement has a test.
func TestReferencesResolve(t *testing.T) {
	root := readSource(t).root
	requirements := codesIn(t, filepath.Join(root, "docs", "requirements.md"), requirement)
	rules := codesIn(t, filepath.Join(root, "docs", "design.md"), rule)
	levels := codesIn(t, filepath.Join(root, "docs", "reliability.md"), level)
	tested := map[string]bool{}
	for _, c := range references(t, root) {
		switch {
		case rules[c.code], levels[c.code]:
		case !c.test:
			t.Errorf("%s names %s: say it in words", c.at, c.code)
		case !requirements[c.code]:
			t.Errorf("%s names %s, which has no line in docs/requirements.md", c.at, c.code)
		}
		if c.test {
			tested[c.code] = true
		}
	}
	for r := range requirements {
		if !tested[r] {
			t.Errorf("docs/requirements.md has %s, which no test names", r)
		}
	}
}

func codesIn(t *testing.T, path string, pattern *regexp.Regexp) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, m := range pattern.FindAllStringSubmatch(string(text), -1) {
		out[m[1]] = true
	}
	if len(out) == 0 {
		t.Fatalf("%s has no codes", path)
	}
	return out
}

// reference is a code in a comment, or in a text of a test.
type reference struct {
	code, at string
	// test reports whether the reference is in a test or in test support.
	test bool
}

func references(t *testing.T, root string) []reference {
	t.Helper()
	var out []reference
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if rel == "bin" || rel == ".git" {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		test := strings.HasSuffix(rel, "_test.go") || strings.HasPrefix(rel, "test"+string(filepath.Separator))
		refer := func(text string, at token.Pos) {
			for _, c := range codesOf(text) {
				out = append(out, reference{code: c, at: fmt.Sprintf("%s:%d", rel, files.Position(at).Line), test: test})
			}
		}
		for _, group := range file.Comments {
			refer(group.Text(), group.Pos())
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if text, ok := n.(*ast.BasicLit); ok && test && text.Kind == token.STRING {
				refer(strings.Join(textCodes.FindAllString(text.Value, -1), " "), text.Pos())
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// codesOf returns the codes in a text; B11-B13 is three codes.
func codesOf(text string) []string {
	var out []string
	for _, m := range code.FindAllStringSubmatch(text, -1) {
		from, _ := strconv.Atoi(m[2])
		to, _ := strconv.Atoi(cmp.Or(m[4], m[2]))
		if m[3] != "" && m[3] != m[1] {
			to = from
		}
		for n := from; n <= to; n++ {
			out = append(out, m[1]+strconv.Itoa(n))
		}
	}
	return out
}

func TestCodesOf(t *testing.T) {
	got := codesOf("// B9, B11-B13: of IPv4 (R2), 10 of 24 per IPv6.")
	if want := []string{"B9", "B11", "B12", "B13", "R2"}; !slices.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
}
