package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// boxEdge matches an arrow of the picture, where each end may declare the title of its box; boxTitle matches such a
// declaration, boxHeading the heading of a table of packages, and boxPackage the first two cells of a row.
var (
	boxEdge    = regexp.MustCompile(`(?m)^ +(\w+)(?:\["[^"]+"\])? --> (\w+)(?:\["[^"]+"\])?$`)
	boxTitle   = regexp.MustCompile(`\b(\w+)\["([^"]+)"\]`)
	boxHeading = regexp.MustCompile(`(?m)^### (.+)$`)
	boxPackage = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (yes)? ?\\|")
)

const module = "github.com/butlerdotdev/cluster-api-ipam-provider-butler"

// The picture of packages has a box for each table of packages, and shows the imports between boxes, except those that
// follow from others. Each package of the product is in one table, and a package that is marked as pure takes no
// context.
func TestPackagePictureShowsImports(t *testing.T) {
	root := readSource(t).root
	text, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Packages\n")
	section, _, _ = strings.Cut(section, "\n## ")
	boxes, pure := packageTables(section)
	of := imports(t, root)
	boxOf := map[string]string{}
	for title, packages := range boxes {
		for _, name := range packages {
			if boxOf[name] != "" {
				t.Errorf("docs/architecture.md lists %s in %s and in %s", name, boxOf[name], title)
			}
			if boxOf[name] = title; of[name] == nil {
				t.Errorf("docs/architecture.md lists %s, which is no package of the product", name)
			}
		}
	}
	between := map[string][]string{}
	for name, all := range of {
		if boxOf[name] == "" {
			t.Errorf("docs/architecture.md lists %s in no box", name)
		}
		for _, imported := range all {
			switch from, to := boxOf[name], boxOf[imported]; {
			case imported == "context":
				if pure[name] {
					t.Errorf("docs/architecture.md marks %s as pure, which imports context", name)
				}
			case from != to && !slices.Contains(between[from], to):
				between[from] = append(between[from], to)
			}
		}
	}
	for _, title := range slices.Sorted(maps.Keys(boxes)) {
		if reaches(between, title, title) {
			t.Fatalf("box %s imports itself through others: %v", title, between)
		}
	}
	shown := map[string]bool{}
	titles := map[string]string{}
	for _, m := range boxTitle.FindAllStringSubmatch(section, -1) {
		titles[m[1]] = m[2]
	}
	for _, m := range boxEdge.FindAllStringSubmatch(section, -1) {
		shown[titles[m[1]]+" --> "+titles[m[2]]] = true
	}
	for _, title := range titles {
		if boxes[title] == nil {
			t.Errorf("docs/architecture.md has no table of packages for box %s", title)
		}
	}
	if len(titles) != len(boxes) || len(boxes) < 8 {
		t.Errorf("the picture has %d boxes, and there are %d tables", len(titles), len(boxes))
	}
	for _, line := range arrows(between) {
		if !shown[line] {
			t.Errorf("docs/architecture.md lacks %s", line)
		}
		delete(shown, line)
	}
	for line := range shown {
		t.Errorf("docs/architecture.md has %s, which is no import, or follows from others", line)
	}
}

// packageTables returns the packages of each box, and those that are marked as pure.
func packageTables(section string) (boxes map[string][]string, pure map[string]bool) {
	boxes, pure = map[string][]string{}, map[string]bool{}
	headings := boxHeading.FindAllStringSubmatchIndex(section, -1)
	for i, at := range headings {
		end := len(section)
		if i+1 < len(headings) {
			end = headings[i+1][0]
		}
		title := section[at[2]:at[3]]
		for _, m := range boxPackage.FindAllStringSubmatch(section[at[1]:end], -1) {
			boxes[title] = append(boxes[title], m[1])
			if m[2] != "" {
				pure[m[1]] = true
			}
		}
	}
	return boxes, pure
}

// imports returns what the packages of the product import of each other, by the names that the tables have, and
// whether they import context.
func imports(t *testing.T, root string) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, pattern := range []string{"*.go", "api/*/*.go", "cmd/*/*.go", "config/*.go", "controllers/*.go", "controllers/*/*.go", "internal/*/*.go", "internal/*/*/*.go"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			dir, err := filepath.Rel(root, filepath.Dir(name))
			if err != nil {
				t.Fatal(err)
			}
			from := packageName(filepath.ToSlash(dir))
			if from == "" {
				continue
			}
			if out[from] == nil {
				out[from] = []string{}
			}
			for _, i := range file.Imports {
				importPath, err := strconv.Unquote(i.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
				to, ours := strings.CutPrefix(importPath, module+"/")
				if ours {
					to = packageName(to)
				}
				if (ours || importPath == "context") && to != from && !slices.Contains(out[from], to) {
					out[from] = append(out[from], to)
				}
			}
		}
	}
	if len(out) < 10 {
		t.Fatalf("only %d packages import others", len(out))
	}
	return out
}

// packageName returns the name of a package in the tables, or "" for a package that supports tests.
func packageName(dir string) string {
	switch {
	case dir == ".":
		return "main"
	case strings.HasPrefix(dir, "test/"), strings.HasSuffix(dir, "test"):
		return ""
	}
	return strings.TrimPrefix(path.Clean(dir), "internal/")
}

// reaches reports whether an arrow, or several in a row, lead from one end to the other.
func reaches(of map[string][]string, from, to string) bool {
	seen := map[string]bool{}
	var follow func(string) bool
	follow = func(from string) bool {
		return slices.ContainsFunc(of[from], func(next string) bool {
			if next == to {
				return true
			}
			known := seen[next]
			seen[next] = true
			return !known && follow(next)
		})
	}
	return follow(from)
}

// arrows returns the imports that do not follow from others.
func arrows(of map[string][]string) []string {
	var out []string
	for from, all := range of {
		for _, to := range all {
			if !slices.ContainsFunc(all, func(other string) bool { return other != to && reaches(of, other, to) }) {
				out = append(out, from+" --> "+to)
			}
		}
	}
	return out
}

func TestArrowsAreTransitiveReduction(t *testing.T) {
	got := arrows(map[string][]string{"a": {"b", "c", "d"}, "b": {"c"}, "c": {"d"}})
	slices.Sort(got)
	if want := []string{"a --> b", "b --> c", "c --> d"}; !slices.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
}

// goFile matches a file of the repository that a page names, with its folder or by its name alone, and the names that
// the page expects in it.
var goFile = regexp.MustCompile("`((?:[a-z0-9]+/)*[a-z_0-9]+\\.go)`(?: \\(((?:`[A-Za-z]+`(?:, )?)+)\\))?")

// A file that a page names exists, and declares the names that the page gives for it.
func TestNamedFilesExist(t *testing.T) {
	root := readSource(t).root
	declared := map[string]map[string]bool{}
	for _, dir := range []string{"api", "controllers", "internal", "test"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(name string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(name, ".go") {
				return err
			}
			for _, known := range []string{strings.TrimPrefix(name, root+"/"), path.Base(name)} {
				if declared[known] == nil {
					declared[known] = map[string]bool{}
				}
				if err := functionsOf(name, declared[known]); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, page := range []string{"architecture.md", "design.md", "reliability.md"} {
		text, err := os.ReadFile(filepath.Join(root, "docs", page))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range goFile.FindAllStringSubmatch(string(text), -1) {
			functions, exists := declared[m[1]]
			if !exists {
				t.Errorf("docs/%s names %s, which is not there", page, m[1])
				continue
			}
			for name := range strings.SplitSeq(m[2], ", ") {
				if name = strings.Trim(name, "`"); name != "" && !functions[name] {
					t.Errorf("docs/%s says that %s declares %s, which it does not", page, m[1], name)
				}
			}
		}
	}
}

// functionsOf adds to the set the functions and methods that a file declares.
func functionsOf(name string, to map[string]bool) error {
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			to[f.Name.Name] = true
		}
	}
	return nil
}
