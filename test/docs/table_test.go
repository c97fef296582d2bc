package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// table is a table of a page: each row maps the head of a column to its cell.
type table struct {
	page string
	rows []map[string]string
	// first is the head of the first column.
	first string
}

// readPages reads the pages for users, by name.
func readPages(t *testing.T) map[string]string {
	t.Helper()
	root, err := framework.FindRepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(path)] = string(text)
	}
	return out
}

// tablesOf reads the tables of a page.
func tablesOf(page, text string) []table {
	var out []table
	var heads []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case !strings.HasPrefix(line, "|"):
			heads = nil
		case heads == nil:
			heads = cells(line)
			out = append(out, table{page: page, first: heads[0]})
		case strings.Trim(line, "|-: ") != "":
			row := map[string]string{}
			for i, cell := range cells(line) {
				if i < len(heads) {
					row[heads[i]] = cell
				}
			}
			last := &out[len(out)-1]
			last.rows = append(last.rows, row)
		}
	}
	return out
}

func cells(line string) []string {
	var out []string
	for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
		out = append(out, strings.TrimSpace(cell))
	}
	return out
}
