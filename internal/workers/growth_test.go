package workers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestWorkOfAJobDoesNotGrowWithOwners checks that a job takes as much work with a hundred owners with waiting jobs as
// with ten. It counts statements by Go's coverage, including those of the packages that could search for a job.
func TestWorkOfAJobDoesNotGrowWithOwners(t *testing.T) {
	few, many := statementsOfAJob(t, 10), statementsOfAJob(t, 100)
	if t.Logf("%.1f and %.1f statements", few, many); few < 5 || many > 1.5*few {
		t.Errorf("with 10 owners a job takes %.1f statements, with 100 it takes %.1f", few, many)
	}
}

// statementsOfAJob returns how many statements BenchmarkManyOwners runs for each job with the given number of owners.
func statementsOfAJob(t *testing.T, owners int) float64 {
	t.Helper()
	profile := filepath.Join(t.TempDir(), "profile")
	cmd := exec.CommandContext(t.Context(), "go", "test", ".", "-run=^$", fmt.Sprintf("-bench=^BenchmarkManyOwners$/^%d$", owners), "-benchtime=1x",
		"-covermode=atomic", "-coverpkg=.,slices,maps,container/list", "-coverprofile="+profile)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(profile)
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	_, blocks, _ := strings.Cut(string(text), "\n")
	for block := range strings.Lines(blocks) {
		var place string
		var statements, times int
		if _, err := fmt.Sscan(block, &place, &statements, &times); err != nil {
			t.Fatalf("%q: %v", block, err)
		}
		sum += statements * times
	}
	return float64(sum) / float64(2*jobsOfAnOwner*owners)
}
