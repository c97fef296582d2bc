package docs

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// A depguard rule whose pattern matches no file forbids nothing, and depguard does not report that.
func TestImportRulesMatchFiles(t *testing.T) {
	root := framework.RepoRootForTest(t)
	rules := importRules(t, root)
	if len(rules) < 7 {
		t.Errorf("%d rules were found", len(rules))
	}
	var files []string
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") {
			files = append(files, filepath.ToSlash(path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, rule := range rules {
		for _, pattern := range rule.Files {
			if strings.HasPrefix(pattern, "!") || strings.HasPrefix(pattern, "$") {
				continue
			}
			for _, one := range alternatives(pattern) {
				if !slices.ContainsFunc(files, globOf(one).MatchString) {
					t.Errorf("%s: %s matches no file", name, one)
				}
			}
		}
	}
}

// withoutImportRule has the packages that docs/architecture.md marks as pure, but that no rule describes, with the reason.
var withoutImportRule = map[string]string{
	"internal/text": "wraps the EventRecorder of client-go",
}

// Each package that docs/architecture.md marks as pure, and each package below controllers, is in one rule: a new one
// would otherwise be free to import anything.
func TestImportRulesCoverPackages(t *testing.T) {
	root := framework.RepoRootForTest(t)
	rules := importRules(t, root)
	text, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, pure := packageTables(string(text))
	controllers, err := filepath.Glob(filepath.Join(root, "controllers", "*", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	packages := map[string]bool{}
	for name := range pure {
		packages["internal/"+name] = true
	}
	for _, file := range controllers {
		packages["controllers/"+filepath.Base(filepath.Dir(file))] = true
	}
	if len(packages) < 30 {
		t.Errorf("only %d packages were found", len(packages))
	}
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		var in []string
		for rule, files := range rules {
			for _, pattern := range files.Files {
				if !strings.HasPrefix(pattern, "!") && !strings.HasPrefix(pattern, "$") && slices.ContainsFunc(alternatives(pattern), func(one string) bool {
					return globOf(one).MatchString("/" + name + "/a.go")
				}) {
					in = append(in, rule)
				}
			}
		}
		want := 1
		if withoutImportRule[name] != "" {
			want = 0
		}
		if len(in) != want {
			t.Errorf("%s is in the rules %q of depguard, want %d", name, in, want)
		}
	}
}

// importRule is a rule of depguard.
type importRule struct{ Files []string }

// importRules returns the rules of depguard in .golangci.yml by their names.
func importRules(t *testing.T, root string) map[string]importRule {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, ".golangci.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Linters struct {
			Settings struct {
				Depguard struct {
					Rules map[string]importRule
				}
			}
		}
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	return config.Linters.Settings.Depguard.Rules
}

var braces = regexp.MustCompile(`^(.*)\{([^}]*)\}(.*)$`)

// alternatives expands the braces of a pattern.
func alternatives(pattern string) []string {
	m := braces.FindStringSubmatch(pattern)
	if m == nil {
		return []string{pattern}
	}
	var out []string
	for one := range strings.SplitSeq(m[2], ",") {
		out = append(out, alternatives(m[1]+one+m[3])...)
	}
	return out
}

// globOf compiles a pattern of depguard: two stars match any text, one star any text without a slash.
func globOf(pattern string) *regexp.Regexp {
	text := strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*\*`, "\x00")
	text = strings.ReplaceAll(text, `\*`, `[^/]*`)
	return regexp.MustCompile("^" + strings.ReplaceAll(text, "\x00", ".*") + "$")
}
