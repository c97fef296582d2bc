package release

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// workflow holds the fields of a workflow that the tests read. actionlint checks the rest.
type workflow struct {
	Permissions *map[string]string `json:"permissions"`
	Concurrency map[string]any     `json:"concurrency"`
	Jobs        map[string]job     `json:"jobs"`
}

type job struct {
	Permissions *map[string]string `json:"permissions"`
	Timeout     int                `json:"timeout-minutes"`
	Needs       string             `json:"needs"`
	Steps       []struct {
		Run  string         `json:"run"`
		Uses string         `json:"uses"`
		With map[string]any `json:"with"`
	} `json:"steps"`
}

// pinned matches an action at a commit, with the version of the commit as a comment: a tag can be moved, a commit
// cannot.
var pinned = regexp.MustCompile(`^ +- uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)

func TestWorkflows(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(framework.RepoRootForTest(t), ".github", "workflows", "*"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no workflows: %v", err)
	}
	series := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read(t, "go.mod"))[1]
	for _, path := range paths {
		name := filepath.Base(path)
		t.Run(name, func(t *testing.T) {
			text := read(t, ".github/workflows/"+name)
			w := parse(t, text)
			if w.Permissions == nil || len(*w.Permissions) > 0 {
				t.Error("it gives rights to each of its jobs")
			}
			if w.Concurrency["group"] == nil {
				t.Error("it has no concurrency group")
			}
			for name, j := range w.Jobs {
				if j.Permissions == nil || j.Timeout == 0 {
					t.Errorf("job %s has no permissions or no timeout of its own", name)
				}
				for _, step := range j.Steps {
					if strings.HasPrefix(step.Uses, "actions/setup-go@") && step.With["go-version"] != series+".x" {
						t.Errorf("job %s uses Go %v; go.mod has %s", name, step.With["go-version"], series)
					}
				}
			}
			for line := range strings.SplitSeq(text, "\n") {
				if strings.Contains(line, "uses:") && !pinned.MatchString(line) {
					t.Errorf("it names no commit and its version: %s", strings.TrimSpace(line))
				}
			}
		})
	}
}

func parse(t *testing.T, text string) workflow {
	t.Helper()
	var w workflow
	if err := yaml.Unmarshal([]byte(text), &w); err != nil {
		t.Fatal(err)
	}
	return w
}
