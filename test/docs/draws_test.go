package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// unseededFiles are the test files that may draw different values in each run, with the reason.
var unseededFiles = map[string]string{
	"test/chaos/main.go":             "a person runs it, and it prints its seed",
	"test/clusterctl/killed_test.go": "a person runs it, and it reports its seed",
	"test/framework/ports.go":        "which ports are free is not known before",
}

// seededConstructors are the names in package rand for a source with a seed; its other functions draw from a source
// that differs in each run.
var seededConstructors = []string{"New", "NewChaCha8", "NewPCG", "NewSource", "NewZipf", "ChaCha8", "PCG", "Rand", "Source", "Zipf"}

// Tests draw the same values in each run: a failure repeats, and no test passes by luck.
func TestDrawsAreSeeded(t *testing.T) {
	root, sources, unseeded := framework.RepoRootForTest(t), 0, map[string]bool{}
	for _, dir := range []string{"api", "cmd", "controllers", "docs", "hack", "internal", "test"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(at string, entry fs.DirEntry, err error) error {
			name, _ := filepath.Rel(root, at)
			name = filepath.ToSlash(name)
			if err != nil || entry.IsDir() || !strings.HasSuffix(name, ".go") || !strings.HasPrefix(name, "test/") && !strings.HasSuffix(name, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), at, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			d := drawsOf(file)
			sources += d.sources
			for _, text := range d.unseeded {
				if unseeded[name] = true; unseededFiles[name] == "" {
					t.Errorf("%s: %s draws something else in each run: use a source with a seed of its own", name, text)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if sources < 20 {
		t.Errorf("there are %d sources with seeds; this test does not see them", sources)
	}
	for name := range unseededFiles {
		if !unseeded[name] {
			t.Errorf("%s draws the same each time: it needs no exception", name)
		}
	}
	// rapid has a seed of its own.
	text, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`(?m)^export RAPID_SEED \?= [1-9]`).Match(text) {
		t.Error("make sets no RAPID_SEED: rapid draws something else in each run")
	}
}

// draws describes how a file draws random values.
type draws struct {
	// sources is the number of sources with a seed; unseeded lists the expressions that differ in each run.
	sources  int
	unseeded []string
}

func drawsOf(file *ast.File) (d draws) {
	random := ""
	for _, spec := range file.Imports {
		if name, _ := strconv.Unquote(spec.Path.Value); name == "math/rand" || name == "math/rand/v2" {
			if random = "rand"; spec.Name != nil {
				random = path.Base(spec.Name.Name)
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			of, ok := n.X.(*ast.Ident)
			if ok && of.Name == random && !slices.Contains(seededConstructors, n.Sel.Name) {
				d.unseeded = append(d.unseeded, types.ExprString(n))
			}
		case *ast.CallExpr:
			if seeded.MatchString(types.ExprString(n.Fun)) {
				d.sources++
				d.addUnknown(n.Args...)
			}
		case *ast.AssignStmt:
			for _, left := range n.Lhs {
				if strings.Contains(strings.ToLower(types.ExprString(left)), "seed") {
					d.addUnknown(n.Rhs...)
				}
			}
		}
		return true
	})
	return d
}

// seeded matches the calls that take a seed.
var seeded = regexp.MustCompile(`(?:^|\.)(?:NewChaCha8|NewPCG|NewSource|Uint64Var)$`)

// addUnknown records seeds that differ in each run: of the clock, of the process, of hash/maphash and of ginkgo.
func (d *draws) addUnknown(seeds ...ast.Expr) {
	for _, seed := range seeds {
		if text := types.ExprString(seed); unknown.MatchString(text) {
			d.unseeded = append(d.unseeded, text)
		}
	}
}

var unknown = regexp.MustCompile(`\b(?:time\.Now|os\.Getpid|maphash\.|GinkgoRandomSeed|\w+\.UnixNano)\b`)

func TestDrawsOf(t *testing.T) {
	const head = "package p\nimport (\n\"math/rand/v2\"\n\"time\"\n)\nfunc f() {\n"
	for body, want := range map[string][]string{
		"r := rand.New(rand.NewPCG(1, 2)); r.IntN(2)": nil,
		"rand.IntN(2)":             {"rand.IntN"},
		"f(rand.N[time.Duration])": {"rand.N"},
		"rand.New(rand.NewPCG(uint64(time.Now().Unix()), 2))":           {"uint64(time.Now().Unix())"},
		"rand.New(rand.NewPCG(1, uint64(GinkgoRandomSeed())))":          {"uint64(GinkgoRandomSeed())"},
		"seed := time.Now().UnixNano(); rand.New(rand.NewPCG(seed, 2))": {"time.Now().UnixNano()"},
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "p.go", head+body+"\n}", parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if got := drawsOf(file).unseeded; !slices.Equal(got, want) {
			t.Errorf("%s: %q, not %q", body, got, want)
		}
	}
}
