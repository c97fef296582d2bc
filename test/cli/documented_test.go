package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var session = regexp.MustCompile("(?s)\n```console\n(.*?)\n```\n")

// documented runs the commands that a page shows behind a $, and compares what they print, times left out.
func documented(t *testing.T, page string) {
	t.Helper()
	root, err := framework.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", page))
	if err != nil {
		t.Fatal(err)
	}
	blocks := session.FindAllStringSubmatch(string(text), -1)
	if len(blocks) == 0 {
		t.Fatalf("%s shows no command", page)
	}
	for _, block := range blocks {
		for shown := range strings.SplitSeq("\n"+block[1], "\n$ kubectl butler-ipam ") {
			if shown == "" {
				continue
			}
			line, want, _ := strings.Cut(shown, "\n")
			out, errOut, _ := run(t, strings.Fields(line)...)
			got := timeless(strings.TrimSpace(out + errOut))
			if want = timeless(strings.TrimSpace(want)); got != want {
				t.Errorf("%s shows for %s\n%s\nit is\n%s", page, line, want, got)
			}
		}
	}
}
