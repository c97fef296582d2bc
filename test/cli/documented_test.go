package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cli"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var session = regexp.MustCompile("(?s)\n```console\n(.*?)\n```\n")

// documented runs the commands that a page shows after a $, and compares their output, except times.
func documented(t *testing.T, page string) {
	t.Helper()
	root, err := framework.FindRepoRoot()
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
			var both bytes.Buffer // stdout and stderr interleaved, as a terminal shows them
			cli.Run(t.Context(), append(strings.Fields(line), "--kubeconfig="+cp.Kubeconfig), cli.EnvFromStreams(strings.NewReader(""), &both, &both, time.Now))
			got := timeless(strings.TrimSpace(both.String()))
			if want = timeless(strings.TrimSpace(want)); got != want {
				t.Errorf("%s shows for %s\n%s\nit is\n%s", page, line, want, got)
			}
		}
	}
}
