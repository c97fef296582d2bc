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
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// These tests check that the patches stay up to date. `make mutants` checks that their tests detect them.

func patches(t *testing.T) (root string, all []mutant) {
	t.Helper()
	root, err := findModuleRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if all, err = readMutants("patches"); err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatal("there are no patches")
	}
	for i := range all {
		if all[i].patchPath, err = filepath.Abs(all[i].patchPath); err != nil {
			t.Fatal(err)
		}
	}
	return root, all
}

// A bug that grants an address twice or loses one must be detected on two levels of tests.
func TestTwoLevels(t *testing.T) {
	_, all := patches(t)
	for _, m := range all {
		if found := m.checkLevels(); m.effect != "stuck" && m.effect != "exposed" && len(found) < 2 {
			t.Errorf("%s leads to a %s, and is found on level %v only", m.name, m.effect, found)
		}
	}
}

// A renamed test detects nothing.
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
				// The orders of worlds have their names in test/sim.
				if sub != "" && !n.Texts[sub] && !numbered(sub) && sim.Orders[sub] == nil {
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

// A patch must apply to the current code, and the result must compile. The code is type-checked, not built, which
// costs less.
func TestPatchesApplyAndCompile(t *testing.T) {
	root, all := patches(t)
	var changed []string
	for _, m := range all {
		changed = append(changed, m.changedPackages()...)
	}
	slices.Sort(changed)
	known := list(t, root, slices.Compact(changed))
	for _, m := range all {
		t.Run(m.name, func(t *testing.T) {
			overlay, err := writeOverlay(t.Context(), root, t.TempDir(), m)
			if err != nil {
				t.Fatal(err)
			}
			for _, pkg := range m.changedPackages() {
				if err := known.check(filepath.Join(root, pkg), filepath.Dir(overlay), root); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// listedPackages holds the output of go list for packages and their imports.
type listedPackages struct {
	// sources maps the directory of a package to its files; exports maps a package to its compiled export data.
	sources map[string][]string
	exports map[string]string
}

func list(t *testing.T, root string, packages []string) listedPackages {
	t.Helper()
	args := append([]string{"list", "-export", "-deps", "-json=ImportPath,Dir,GoFiles,Export"}, packages...)
	cmd := newGoCommand(t.Context(), root, "", args...)
	cmd.Stderr = os.Stderr
	raw, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	out := listedPackages{map[string][]string{}, map[string]string{}}
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

// check type-checks a package. Files of it may have another version in the directory patched, which has the same
// layout as root.
func (l listedPackages) check(dir, patched, root string) error {
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
