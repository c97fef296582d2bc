// Package advice holds the next steps that messages name against the tests that carry them out: conditions, events,
// refusals of webhooks and flags, what the plugin prints, and log lines. Advice that no test carries out is a guess.
package advice

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// imperative are the verbs with which a next step begins.
const imperative = "add|annotate|apply|ask|check|choose|compare|correct|create|delete|describe|drain|edit|end|exclude|find out|give|grant|hand|have|import|" +
	"increase|install|keep|label|leave|let|look|lower|make|mark|mount|move|name|narrow|pass|put|raise|read|reduce|release|remove|rename|repeat|replace|reserve|" +
	"restart|restore|resume|run|see|serve|set|shorten|split|start|stop|take|trust|try|turn|unpause|unset|update|upgrade|use|wait|widen|write|" +
	"kubectl (?:annotate|butler-ipam|delete|describe|get|label|patch)"

var (
	// begins is where a step begins: at the beginning of a text, or of a clause.
	begins = regexp.MustCompile("(?:^|[;:.,(] |, (?:or|and|then) |\\b(?:or|then|else|first|moment|yes), |\\bThen |\\b(?:or|and|else) )(`?(?:" + imperative + ")\\b)")
	// capital is one at the beginning of a sentence.
	capital = regexp.MustCompile(`(?:^|[.?!] )(?:[A-Z])`)
	ends    = regexp.MustCompile(`[;.](?: |$)|: `)
)

// stepsOf are the steps that a text names.
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
		step = strings.TrimRight(strings.TrimSpace(step), ",;:(")
		if strings.Contains(step, " ") {
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

// named are the steps that the product names, by the directory of the code.
func named(t *testing.T) map[string]map[string]bool {
	t.Helper()
	root := framework.Root(t)
	out := map[string]map[string]bool{}
	for _, dir := range []string{"api", "cmd", "controllers", "internal"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasPrefix(entry.Name(), "zz_generated") {
				return err
			}
			from, err := filepath.Rel(root, filepath.Dir(path))
			if err != nil {
				return err
			}
			if from = filepath.ToSlash(from); strings.HasSuffix(from, "test") { // of what tests are made
				return nil
			}
			texts, err := textsOf(path)
			for _, text := range texts {
				for _, step := range stepsOf(text) {
					if out[from] == nil {
						out[from] = map[string]bool{}
					}
					out[from][step] = true
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// textsOf are the strings of a file that are no import, no tag, no help of a command and no description of a flag or a
// metric.
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
			key, is := n.Key.(*ast.Ident)
			return !is || !slices.Contains([]string{"Use", "Short", "Long", "Example", "Help", "Name"}, key.Name)
		case *ast.CallExpr:
			f, is := n.Fun.(*ast.SelectorExpr)
			return !is || !describes.MatchString(f.Sel.Name)
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

// describes are the methods with which flags and metrics are declared.
var describes = regexp.MustCompile(`^(?:(?:String|Bool|Duration|Int|Int32|Uint|Float64|StringSlice|StringArray)?VarP?|(?:String|Bool|Duration|Int)P?|NewDesc)$`)

// textOf is the text that an expression gives, with a verb in place of what is not known; empty where it gives none.
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

func TestDump(t *testing.T) {
	all := named(t)
	n := 0
	for _, dir := range slices.Sorted(maps.Keys(all)) {
		t.Logf("## %s", dir)
		for _, s := range slices.Sorted(maps.Keys(all[dir])) {
			t.Logf("%q", s)
			n++
		}
	}
	t.Logf("total %d", n)
}
