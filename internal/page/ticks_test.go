package page

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// No two ticks of an axis of the chart read the same: after a restart the first minutes have ticks every few seconds, and the
// numbers of a large pool are rounded.
func TestTicksOfTheChart(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("there is no node to run the script with; make page-test has a browser")
	}
	dir := t.TempDir() // where all is a module
	if err := os.CopyFS(dir, os.DirFS("static")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"type": "module"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ call, want string }{
		"hours":             {"times([3600, 7200, 10800])", "01:00 02:00 03:00"},
		"parts of a minute": {"times([3600, 3630, 3660])", "01:00:00 01:00:30 01:01:00"},
		"a day begins":      {"times([86390, 86400, 86410])", "23:59:50 2_Jan 00:00:10"},
		"small numbers":     {"counts([0, 1, 2])", "0 1 2"},
		"parts of one":      {"counts([0, 0.5, 1, 1.5, 2])", "0 - 1 - 2"},
		"thousands":         {"counts([0, 5000, 10000])", "0 5,000 10K"},
		"that read alike":   {"counts([131000, 131020, 131040])", "131K - -"},
		"more than letters": {"counts([0, 2.5e15, 5e15])", "0 2.5e15 5e15"},
	} {
		t.Run(name, func(t *testing.T) {
			script := "import { counts, times } from './ticks.js'; console.log(" + tc.call + ".map((s) => s.replace(' ', '_') || '-').join(' '))"
			run := exec.CommandContext(t.Context(), node, "--input-type=module", "--eval", script)
			run.Dir, run.Env = dir, append(os.Environ(), "TZ=UTC")
			out, err := run.CombinedOutput()
			if got := strings.TrimSpace(string(out)); err != nil || got != tc.want {
				t.Errorf("%v: %s, not %s", err, got, tc.want)
			}
		})
	}
}
