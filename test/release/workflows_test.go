package release

import (
	"cmp"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
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
	condition
	Permissions *map[string]string `json:"permissions"`
	Timeout     int                `json:"timeout-minutes"`
	Needs       string             `json:"needs"`
	Strategy    struct {
		Matrix struct {
			Part    []string            `json:"part"`
			Include []map[string]string `json:"include"`
		} `json:"matrix"`
	} `json:"strategy"`
	Steps []jobStep `json:"steps"`
}

type jobStep struct {
	condition
	Run  string         `json:"run"`
	Uses string         `json:"uses"`
	With map[string]any `json:"with"`
}

// condition holds what lets a job or a step pass without a run, or without success.
type condition struct {
	If              string `json:"if"`
	ContinueOnError any    `json:"continue-on-error"`
}

func (c condition) mustPass() bool { return c.If == "" && c.ContinueOnError == nil }

// pinned matches an action at a commit, with the version of the commit as a comment: a tag can be moved, a commit
// cannot.
var pinned = regexp.MustCompile(`^ +- uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)

func TestWorkflowConventions(t *testing.T) {
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
					if key, cached := step.With["key"].(string); cached && !strings.Contains(key, "${{ steps.go.outputs.go-version }}") {
						t.Errorf("job %s has a cache for every version of Go: %s", name, key)
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

// strongerParts are the jobs that run more than the part of `make test-all` in their place, as root.
var strongerParts = map[string]string{"host-lb-test": "test-specs-hostlb"} // with kube-proxy and nft

// The workflows run what .ci/run runs: `make verify`, and each part of `make test-all` in a job of its own.
func TestWorkflowsRunTheSameAsCI(t *testing.T) {
	if !strings.Contains(read(t, ".ci/run"), "\nmake verify test-all <") {
		t.Error(".ci/run does not run make verify test-all")
	}
	if runs := commands(parse(t, read(t, ".github/workflows/verify.yaml")).Jobs["verify"]); !slices.Contains(runs, "make verify") {
		t.Errorf("verify.yaml runs %q", runs)
	}
	jobs := parse(t, read(t, ".github/workflows/test.yaml")).Jobs
	j := jobs["test"]
	const buildTools = "make test-tools kube-proxy"
	if !slices.ContainsFunc(jobs[j.Needs].Steps, func(s jobStep) bool {
		return s.Run == buildTools && s.condition == condition{If: "steps.cache.outputs.cache-hit != 'true'"}
	}) {
		t.Errorf("the job %q of test.yaml does not run %s where nothing is cached", j.Needs, buildTools)
	}
	runs := commands(j)
	for _, run := range []string{buildTools, "${{ matrix.sudo }} make ${{ matrix.part }}"} {
		if !slices.Contains(runs, run) {
			t.Errorf("the jobs of test.yaml do not run %q, but %q", run, runs)
		}
	}
	var got []string
	for _, part := range j.Strategy.Matrix.Part {
		got = append(got, cmp.Or(strongerParts[part], part))
		if longest := longestTimeout(t, part); longest >= j.Timeout {
			t.Errorf("a job of test.yaml ends after %d minutes, the tests of %s after %d", j.Timeout, part, longest)
		}
	}
	if diff := gocmp.Diff(testParts(t), got, cmpopts.SortSlices(strings.Compare)); diff != "" {
		t.Errorf("parts of the tests (-Makefile +test.yaml):\n%s", diff)
	}
	for part := range strongerParts {
		if !slices.ContainsFunc(j.Strategy.Matrix.Include, func(with map[string]string) bool {
			return with["part"] == part && strings.HasPrefix(with["sudo"], "sudo ")
		}) {
			t.Errorf("test.yaml does not run %s as root", part)
		}
	}
}

// The parts of the tests together run what `make test-all` runs.
func TestPartsRunAllTests(t *testing.T) {
	builds := dryRun(t, "test-tools")
	var got []string
	for _, part := range testParts(t) {
		got = append(got, testRuns(t, part, builds)...)
	}
	if diff := gocmp.Diff(testRuns(t, "test-all", builds), got, cmpopts.SortSlices(strings.Compare)); diff != "" {
		t.Errorf("what tests run (-make test-all +its parts):\n%s", diff)
	}
}

func testParts(t *testing.T) []string {
	t.Helper()
	return strings.Fields(command(t, "make", "--silent", "--eval=list: ; @echo $(TEST_PARTS)", "list"))
}

// Commands that run the packages of some lists, some suites, or make.
var (
	packagesPattern = regexp.MustCompile(`^(go test .*)\$\((.*)\)$`)
	suitesPattern   = regexp.MustCompile(`^(go run .*?)((?: \./test/\w+)+) --$`)
	makePattern     = regexp.MustCompile(`^\S*make --no-print-directory -k -j2 (.*) SHORT=$`)
)

// testRuns returns the commands of a target, without those of builds, and each command once for each list of packages
// or suite.
func testRuns(t *testing.T, target string, builds []string) (out []string) {
	t.Helper()
	for _, line := range dryRun(t, target) {
		packages, suites, targets := packagesPattern.FindStringSubmatch(line), suitesPattern.FindStringSubmatch(line), makePattern.FindStringSubmatch(line)
		switch {
		case slices.Contains(builds, line):
		case packages != nil:
			for list := range strings.SplitSeq(packages[2], ";") {
				out = append(out, packages[1]+strings.TrimSpace(list))
			}
		case suites != nil:
			for suite := range strings.FieldsSeq(suites[2]) {
				out = append(out, suites[1]+" "+suite)
			}
		case targets != nil:
			for target := range strings.FieldsSeq(targets[1]) {
				out = append(out, testRuns(t, target, builds)...)
			}
		default:
			out = append(out, line)
		}
	}
	return out
}

var timeoutPattern = regexp.MustCompile(`-timeout=(\d+)m\b`)

// longestTimeout returns the longest timeout of the tests that a target runs, in minutes.
func longestTimeout(t *testing.T, target string) int {
	t.Helper()
	longest := 0
	for _, found := range timeoutPattern.FindAllStringSubmatch(strings.Join(dryRun(t, target), "\n"), -1) {
		minutes, err := strconv.Atoi(found[1])
		if err != nil {
			t.Fatal(err)
		}
		longest = max(longest, minutes)
	}
	if longest == 0 {
		t.Errorf("the tests of %s have no timeout", target)
	}
	return longest
}

// dryRun returns the commands that make would run for a target, at its full length.
func dryRun(t *testing.T, target string) (out []string) {
	t.Helper()
	text := command(t, "make", "--dry-run", "--no-print-directory", target, "SHORT=")
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			out = append(out, line)
		}
	}
	return out
}

// commands returns what a job runs in any case, and cannot fail without the job.
func commands(j job) (out []string) {
	if !j.mustPass() {
		return nil
	}
	for _, step := range j.Steps {
		if step.Run != "" && step.mustPass() {
			out = append(out, step.Run)
		}
	}
	return out
}

func parse(t *testing.T, text string) workflow {
	t.Helper()
	var w workflow
	if err := yaml.Unmarshal([]byte(text), &w); err != nil {
		t.Fatal(err)
	}
	return w
}
