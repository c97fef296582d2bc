package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// link matches a link to a page or to a section of it.
	link = regexp.MustCompile(`\[[^]]+\]\(([a-z-]+\.md)(?:#([^)]+))?\)`)
	// heading matches a heading of a page, notAnchor what is not part of its anchor.
	heading   = regexp.MustCompile(`(?m)^#+ (.+)$`)
	notAnchor = regexp.MustCompile(`[^a-z0-9 _-]`)
)

// The glossary explains each term once, in alphabetical order, and links to the section that defines it. Other pages
// link to the glossary once at most.
func TestGlossaryTerms(t *testing.T) {
	pages := readPages(t)
	tables := tablesOf("glossary.md", pages["glossary.md"])
	if len(tables) != 1 || len(tables[0].rows) < 40 {
		t.Fatal("docs/glossary.md is not one table of terms")
	}
	before := ""
	for _, row := range tables[0].rows {
		term := strings.ToLower(row["Term"])
		if term <= before {
			t.Errorf("docs/glossary.md has %q after %q", term, before)
		}
		before = term
		links := link.FindAllStringSubmatch(row["Defined in"], -1)
		if row["Meaning"] == "" || len(links) == 0 {
			t.Errorf("docs/glossary.md has no meaning, or no link, for %q", term)
		}
		for _, m := range links {
			if text, ok := pages[m[1]]; !ok || (m[2] != "" && !slices.Contains(anchorsOf(text), m[2])) {
				t.Errorf("docs/glossary.md links to %s#%s for %q, which does not exist", m[1], m[2], term)
			}
		}
	}
	readme, err := os.ReadFile(filepath.Join(readSource(t).root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	pages["README.md"] = string(readme)
	linking := 0
	for page, text := range pages {
		switch n := strings.Count(text, "glossary.md)"); {
		case n > 1:
			t.Errorf("%s links to the glossary %d times", page, n)
		case n == 1:
			linking++
		}
	}
	if linking < 25 {
		t.Errorf("%d pages link to the glossary", linking)
	}
}

// anchorsOf returns the anchors of the headings of a page.
func anchorsOf(text string) []string {
	var out []string
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		out = append(out, strings.ReplaceAll(notAnchor.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return out
}
