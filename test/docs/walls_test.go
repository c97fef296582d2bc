package docs

import (
	"io/fs"
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
	root, err := framework.FindRepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, ".golangci.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Linters struct {
			Settings struct {
				Depguard struct {
					Rules map[string]struct{ Files []string }
				}
			}
		}
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	rules := config.Linters.Settings.Depguard.Rules
	if len(rules) < 7 {
		t.Errorf("%d rules were found", len(rules))
	}
	var files []string
	err = filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
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
