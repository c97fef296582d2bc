package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// What is tested here is that the patches do not rot. That their tests find them is what `make mutants` shows.

func patches(t *testing.T) (root string, all []mutant) {
	t.Helper()
	root, err := moduleRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if all, err = readAll("patches"); err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatal("there are no patches")
	}
	for i := range all {
		if all[i].patch, err = filepath.Abs(all[i].patch); err != nil {
			t.Fatal(err)
		}
	}
	return root, all
}

// A bug that gives an address twice or loses one must not hang on one test.
func TestTwoLevels(t *testing.T) {
	_, all := patches(t)
	for _, m := range all {
		if found := m.levels(); m.effect != "stuck" && m.effect != "exposed" && len(found) < 2 {
			t.Errorf("%s leads to a %s, and is found on level %v only", m.name, m.effect, found)
		}
	}
}

// A test that was renamed finds nothing.
func TestNamedTestsExist(t *testing.T) {
	root, all := patches(t)
	read := map[string]*framework.TestNames{}
	for _, m := range all {
		for _, c := range m.checks {
			if read[c.pkg] == nil {
				var err error
				if read[c.pkg], err = framework.ReadTestNames(filepath.Join(root, c.pkg)); err != nil {
					t.Fatal(err)
				}
			}
			n := read[c.pkg]
			top, below, _ := strings.Cut(c.test, "/")
			if !n.Functions[top] {
				t.Errorf("%s: %s has no %s", m.name, c.pkg, top)
			}
			if c.spec != "" && !n.Texts[c.spec] {
				t.Errorf("%s: %s has no spec %q", m.name, c.pkg, c.spec)
			}
			for sub := range strings.SplitSeq(below, "/") {
				if sub != "" && !n.Texts[sub] && !numbered(sub) {
					t.Errorf("%s: nothing in the tests of %s is called %q", m.name, c.pkg, sub)
				}
			}
		}
	}
}

func numbered(name string) bool {
	_, err := strconv.Atoi(name)
	return err == nil
}

// A patch must apply to the code as it is, and the result must be Go. It is checked, not built: that costs less.
func TestPatchesApplyAndCompile(t *testing.T) {
	root, all := patches(t)
	var changed []string
	for _, m := range all {
		changed = append(changed, m.packages()...)
	}
	slices.Sort(changed)
	known := list(t, root, slices.Compact(changed))
	for _, m := range all {
		t.Run(m.name, func(t *testing.T) {
			overlay, err := overlayOf(t.Context(), root, t.TempDir(), m)
			if err != nil {
				t.Fatal(err)
			}
			for _, pkg := range m.packages() {
				if err := known.check(filepath.Join(root, pkg), filepath.Dir(overlay), root); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// listed is what go list says of packages and of what they import.
type listed struct {
	// sources are the files of a package, by its directory, and exports what the compiler made of it.
	sources map[string][]string
	exports map[string]string
}

func list(t *testing.T, root string, packages []string) listed {
	t.Helper()
	args := append([]string{"list", "-export", "-deps", "-json=ImportPath,Dir,GoFiles,Export"}, packages...)
	cmd := goCommand(t.Context(), root, "", args...)
	cmd.Stderr = os.Stderr
	raw, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	out := listed{map[string][]string{}, map[string]string{}}
	for d := json.NewDecoder(bytes.NewReader(raw)); ; {
		var p struct {
			ImportPath, Dir, Export string
			GoFiles                 []string
		}
		switch err := d.Decode(&p); {
		case errors.Is(err, io.EOF):
			return out
		case err != nil:
			t.Fatal(err)
		}
		out.sources[p.Dir], out.exports[p.ImportPath] = p.GoFiles, p.Export
	}
}

// check checks the types of a package, of which files may have another version in a directory that is laid out
// like the root.
func (l listed) check(dir, patched, root string) error {
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range l.sources[dir] {
		path := filepath.Join(dir, name)
		if in, err := filepath.Rel(root, path); err == nil {
			if _, err := os.Stat(filepath.Join(patched, in)); err == nil {
				path = filepath.Join(patched, in)
			}
		}
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, file)
	}
	exported := func(path string) (io.ReadCloser, error) {
		if l.exports[path] == "" {
			return nil, errors.New("patches import nothing that the packages they change do not need anyway")
		}
		return os.Open(l.exports[path])
	}
	conf := types.Config{Importer: importer.ForCompiler(set, "gc", exported)}
	_, err := conf.Check(dir, set, files, nil)
	return err
}
