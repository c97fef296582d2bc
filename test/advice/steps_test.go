// Package advice compares the next steps that messages suggest with the tests that carry them out: messages of
// conditions, events, refusals of webhooks, schemas, policies and flags, output of the plugin, and log lines. Advice
// that no test carries out is a guess.
package advice

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// imperative matches the verbs with which a next step begins.
const imperative = "add|adopt|annotate|apply|ask|change|check|choose|compare|correct|create|delete|describe|drain|edit|end|exclude|exempt|find out|fix|give|grant|hand|have|import|" +
	"increase|install|keep|label|leave|let|look|lower|make|mark|mount|move|name|narrow|pass|prevent|put|raise|read|reduce|release|remove|rename|renew|repeat|replace|request|reserve|" +
	"restart|restore|resume|run|see|serve|set|shorten|split|start|stop|take|trust|try|turn|unpause|unset|update|upgrade|use|wait|widen|write|" +
	"kubectl (?:annotate|butler-ipam|delete|describe|get|label|patch)"

var (
	// begins matches the start of a step: at the start of a text, or of a clause.
	begins = regexp.MustCompile("(?:^|[;:.,(] |, (?:or|and|then) |\\b(?:or|then|else|first|moment|yes), |\\bThen |\\b(?:or|and|else) )(`?(?:" + imperative + ") )")
	// capital matches a capital letter at the start of a sentence.
	capital = regexp.MustCompile(`(?:^|[.?!] )(?:[A-Z])`)
	// noStep matches texts that begin like a step, but are a statement.
	noStep = regexp.MustCompile(`^(?:(?:start|end)(?: %s)? is |end must |lower case|request is |use it$|name counts )`)
	ends   = regexp.MustCompile(`[;.](?: |$)|: `)
)

// stepsOf returns the steps in a text.
func stepsOf(text string) []string {
	lowered := capital.ReplaceAllStringFunc(text, strings.ToLower)
	if !strings.Contains(lowered, " ") {
		return nil
	}
	at := begins.FindAllStringSubmatchIndex(lowered, -1)
	var out []string
	for i, m := range at {
		from, to := m[2], len(lowered)
		if i+1 < len(at) {
			to = at[i+1][0]
		}
		step := lowered[from:to]
		if end := ends.FindStringIndex(step); end != nil {
			step = step[:end[0]]
		}
		step = strings.TrimRight(strings.Join(strings.Fields(step), " "), ",;:(")
		if strings.Contains(step, " ") && !noStep.MatchString(step) {
			out = append(out, step)
		}
	}
	return out
}

func TestStepsOf(t *testing.T) {
	for text, want := range map[string][]string{
		"%s does not exist; create it, or correct spec.poolRef": {"create it", "correct spec.poolRef"},
		"Nothing is free. Wait until then; or stop it":          {"wait until then", "stop it"},
		"kept for whom the manager has to wait":                 nil,
		"set":                                                   nil,
	} {
		if got := stepsOf(text); !slices.Equal(got, want) {
			t.Errorf("%q: %q, not %q", text, got, want)
		}
	}
}

// countSteps counts the messages that suggest each step, by the directory of the code and the step.
func countSteps(t *testing.T) map[string]map[string]int {
	t.Helper()
	root := framework.RepoRootForTest(t)
	out := map[string]map[string]int{}
	for _, dir := range []string{"api", "cmd", "controllers", "internal"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasPrefix(entry.Name(), "zz_generated") {
				return err
			}
			from, err := filepath.Rel(root, filepath.Dir(path))
			if err != nil {
				return err
			}
			if from = filepath.ToSlash(from); strings.HasSuffix(from, "test") { // code that supports tests
				return nil
			}
			texts, err := textsOf(path)
			for _, text := range texts {
				count(out, from, text)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"config/crd/bases", "config/policy"} {
		for text := range refusalsOf(t, filepath.Join(root, filepath.FromSlash(dir))) {
			count(out, dir, text)
		}
	}
	return out
}

func count(out map[string]map[string]int, dir, text string) {
	steps := strings.Join(stepsOf(text), " / ")
	if steps == "" {
		return
	}
	if out[dir] == nil {
		out[dir] = map[string]int{}
	}
	out[dir][steps]++
}

// textsOf returns the strings of a file, except imports, tags, the help of commands, and descriptions of flags and
// metrics.
func textsOf(path string) ([]string, error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var out []string
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.Field:
			return n.Tag == nil
		case *ast.KeyValueExpr:
			key, ok := n.Key.(*ast.Ident)
			return !ok || !slices.Contains([]string{"Use", "Short", "Long", "Example", "Help", "Name", "Description"}, key.Name)
		case *ast.CallExpr:
			f, ok := n.Fun.(*ast.SelectorExpr)
			return !ok || !describes.MatchString(f.Sel.Name)
		case *ast.BasicLit, *ast.BinaryExpr:
			if text := textOf(n.(ast.Expr)); text != "" {
				out = append(out, text)
				return false
			}
		}
		return true
	})
	return out, nil
}

// describes matches the methods that declare flags and metrics.
var describes = regexp.MustCompile(`^(?:(?:String|Bool|Duration|Int|Int32|Uint|Float64|StringSlice|StringArray)?VarP?|(?:String|Bool|Duration|Int)P?|NewDesc)$`)

// textOf returns the text of an expression, with a verb for each part that is not constant; it is empty if the
// expression is no text.
func textOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			text, _ := strconv.Unquote(e.Value)
			return text
		}
	case *ast.ParenExpr:
		return textOf(e.X)
	case *ast.BinaryExpr:
		left, right := textOf(e.X), textOf(e.Y)
		if e.Op != token.ADD || left == "" && right == "" {
			return ""
		}
		return orVerb(left) + orVerb(right)
	}
	return ""
}

func orVerb(text string) string {
	if text == "" {
		return "%s"
	}
	return text
}

// row is a step that a message suggests, and the tests that carry it out. If there is nothing to do on an object that
// this project serves, noTestReason has the reason why there is no test.
type row struct {
	steps        string
	testedBy     []string
	noTestReason string
	// times is the number of messages of the directory with exactly this step; zero means one.
	times int
}

// W29: a message that suggests a next step suggests one that helps: a test carries it out. The author of a new
// message adds a row, and the test.
func TestAdvisedStepsAreTested(t *testing.T) {
	all := countSteps(t)
	if len(all) < 30 {
		t.Errorf("steps are found in %d directories alone", len(all))
	}
	for dir, rows := range table {
		for _, r := range rows {
			switch n := all[dir][r.steps]; {
			case n == 0:
				t.Errorf("%s: no message names %q", dir, r.steps)
			case n != max(r.times, 1):
				t.Errorf("%s: %d messages name %q, and %d are known", dir, n, r.steps, max(r.times, 1))
			}
			delete(all[dir], r.steps)
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(all)) {
		for _, steps := range slices.Sorted(maps.Keys(all[dir])) {
			t.Errorf("%s: no row names the test that carries out %q", dir, steps)
		}
	}
}

// The tests that the table names exist.
func TestTableNamesTests(t *testing.T) {
	root, read := framework.RepoRootForTest(t), map[string]*framework.TestNames{}
	for dir, rows := range table {
		for _, r := range rows {
			if (len(r.testedBy) == 0) == (r.noTestReason == "") {
				t.Errorf("%s: %q has tests, or a reason why there is none", dir, r.steps)
			}
			for _, by := range r.testedBy {
				pkg, name, _ := strings.Cut(by, ": ")
				if read[pkg] == nil {
					names, err := framework.ReadTestNames(filepath.Join(root, filepath.FromSlash(pkg)))
					if err != nil {
						t.Fatal(err)
					}
					read[pkg] = names
				}
				if !read[pkg].Functions[name] && !read[pkg].Texts[name] {
					t.Errorf("%s: %q is carried out by %s, which is not there", dir, r.steps, by)
				}
			}
		}
	}
}

var (
	page    = regexp.MustCompile(`\bdocs/([a-z-]+\.md)(?:#([a-z0-9-]+))?`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	dropped = regexp.MustCompile("[^a-z0-9 -]")
)

// Pages, and parts of pages, that a message names exist.
func TestNamedPagesExist(t *testing.T) {
	root, count := framework.RepoRootForTest(t), 0
	for _, dir := range []string{"cmd", "controllers", "internal"} {
		files, err := filepath.Glob(filepath.Join(root, dir, "*", "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			texts, err := textsOf(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range page.FindAllStringSubmatch(strings.Join(texts, "\n"), -1) {
				count++
				text, err := os.ReadFile(filepath.Join(root, "docs", m[1]))
				if err != nil {
					t.Errorf("%s: %v", file, err)
				}
				if m[2] != "" && !slices.Contains(anchorsOf(string(text)), m[2]) {
					t.Errorf("%s: docs/%s has no %s", file, m[1], m[2])
				}
			}
		}
	}
	if count < 10 {
		t.Errorf("%d pages are named", count)
	}
}

// anchorsOf returns the anchors of the headings of a page, as links name them.
func anchorsOf(text string) (out []string) {
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		out = append(out, strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return out
}
