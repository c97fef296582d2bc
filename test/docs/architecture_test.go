package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// edge matches a line of the picture: importer and imported package.
var edge = regexp.MustCompile(`(?m)^ +(\w+) --> (\w+)$`)

const module = "github.com/butlerdotdev/cluster-api-ipam-provider-butler"

// The picture of packages shows the direct imports of the product, except those that follow from others.
func TestPackagePictureShowsImports(t *testing.T) {
	root := readSource(t).root
	text, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{}
	for _, m := range edge.FindAllStringSubmatch(string(text), -1) {
		shown[m[1]+" --> "+m[2]] = true
	}
	for _, line := range arrows(imports(t, root)) {
		if !shown[line] {
			t.Errorf("docs/architecture.md lacks %s", line)
		}
		delete(shown, line)
	}
	for line := range shown {
		t.Errorf("docs/architecture.md has %s, which is no import, or follows from others", line)
	}
}

// imports returns the imports of the packages of the product, by the name that the picture gives each package.
func imports(t *testing.T, root string) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, pattern := range []string{"*.go", "api/*/*.go", "cmd/*/*.go", "controllers/*.go", "controllers/*/*.go", "internal/*/*.go", "internal/*/*/*.go"} {
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
			from := pictured(filepath.ToSlash(dir))
			if from == "" {
				continue
			}
			for _, i := range file.Imports {
				importPath, err := strconv.Unquote(i.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
				if of, ok := strings.CutPrefix(importPath, module+"/"); ok && !slices.Contains(out[from], pictured(of)) {
					out[from] = append(out[from], pictured(of))
				}
			}
		}
	}
	if len(out) < 10 {
		t.Fatalf("only %d packages import others", len(out))
	}
	return out
}

// pictured returns the name of a package in the picture, or "" for a package that supports tests.
func pictured(dir string) string {
	switch {
	case dir == ".":
		return "main"
	case dir == "cmd/butler-host-lb":
		return "host"
	case strings.HasPrefix(dir, "cmd/"):
		return "plugin"
	case strings.HasPrefix(dir, "api/"):
		return "api"
	case strings.HasPrefix(dir, "test/faults"), strings.HasSuffix(dir, "test"):
		return ""
	}
	return strings.NewReplacer("/", "_", "-", "_").Replace(strings.TrimPrefix(path.Clean(dir), "internal/"))
}

// arrows returns the imports that do not follow from others.
func arrows(of map[string][]string) []string {
	var reaches func(from, to string) bool
	reaches = func(from, to string) bool {
		return slices.ContainsFunc(of[from], func(next string) bool { return next == to || reaches(next, to) })
	}
	var out []string
	for from, all := range of {
		for _, to := range all {
			if !slices.ContainsFunc(all, func(other string) bool { return other != to && reaches(other, to) }) {
				out = append(out, from+" --> "+to)
			}
		}
	}
	return out
}

func TestArrows(t *testing.T) {
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
