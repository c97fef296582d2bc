package page

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Scripts that need no browser run in node, where that is installed; make page-test runs all of them in a browser.

// scripts returns a function that runs a script beside those of the page and returns its output.
func scripts(t *testing.T) func(t *testing.T, script string) string {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("there is no node to run scripts with")
	}
	dir := t.TempDir() // a directory in which every file is a module
	if err := os.CopyFS(dir, os.DirFS("static")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"type": "module"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(t *testing.T, script string) string {
		t.Helper()
		run := exec.CommandContext(t.Context(), node, "--input-type=module", "--eval", script)
		run.Dir, run.Env = dir, append(os.Environ(), "TZ=UTC")
		out, err := run.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
}

// TestTicksOfTheChart checks that no two ticks of an axis of the chart have the same text: after a restart the first
// minutes have ticks every few seconds, and the numbers of a large pool are rounded.
func TestTicksOfTheChart(t *testing.T) {
	run := scripts(t)
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
			if got := run(t, script); got != tc.want {
				t.Errorf("%s, not %s", got, tc.want)
			}
		})
	}
}

// TestLayoutOfTheMap checks that two ranges of a pool share no row of its map, and no cell unless there are too many of
// them, and that a position and a number always lead to the same cell.
func TestLayoutOfTheMap(t *testing.T) {
	run := scripts(t)
	const (
		two   = "new Layout([{base: 0, n: 5}, {base: 5, n: 40}], {start: 0, n: 45}, 1)"
		large = "new Layout([{base: 0, n: 300}, {base: 300, n: 1000}], {start: 0, n: 1300}, 256)"
		many  = "new Layout(Array.from({length: 30}, (_, i) => ({base: i, n: 1})), {start: 0, n: 30}, 1)"
	)
	for name, tc := range map[string]struct{ of, columns, ask, want string }{
		"a row for each range":      {two, "16, 1", "[l.rows, l.cells, l.cellAt(4, 0), l.cellAt(5, 0), l.cellAt(0, 1), l.cellAt(8, 3)]", "[4,45,4,-1,5,-1]"},
		"each has a label":          {two, "16, 1", "l.labels().map((a) => [a.row, a.number])", "[[0,0],[1,5],[2,21],[3,37]]"},
		"with room for the label":   {two, "16, 2", "[l.rows, ...l.labels().map((a) => [a.row, a.number])]", "[5,[0,0],[2,5],[4,37]]"},
		"down and up":               {two, "16, 1", "[l.below(3, 1), l.below(20, -1), l.below(5, -1), l.below(40, 1), l.below(2, -1), l.below(36, 1)]", "[8,4,0,44,0,44]"},
		"no cell has two ranges":    {large, "16, 1", "[l.cells, ...[1, 2, 5].map((i) => Object.values(l.within(i))), l.cellOf(299), l.cellOf(300)]", "[6,[256,299],[300,555],[1068,1299],1,2]"},
		"too many":                  {many, "16, 1", "[l.parts.length, l.rows, l.cellAt(0, 1)]", "[1,2,16]"},
		"nothing":                   {"new Layout([], {start: 0, n: 0}, 1)", "16, 1", "[l.rows, l.cells, l.cellAt(0, 0), l.labels()]", "[0,0,-1,[]]"},
		"a part of it":              {"new Layout([{base: 0, n: 300}, {base: 300, n: 1000}], {start: 256, n: 44}, 1)", "16, 1", "[l.cells, l.rows, ...Object.values(l.within(43))]", "[44,3,299,299]"},
		"places lead back to cells": {two, "7, 2", "Array.from({length: 45}, (_, i) => l.place(i)).every((p, i) => l.cellAt(p.column, p.row) === i && l.cellOf(l.within(i).first) === i)", "true"},
	} {
		t.Run(name, func(t *testing.T) {
			script := "import { Layout } from './layout.js'; const l = " + tc.of + "; l.arrange(" + tc.columns + "); console.log(JSON.stringify(" + tc.ask + "))"
			if got := run(t, script); got != tc.want {
				t.Errorf("%s, not %s", got, tc.want)
			}
		})
	}
}

// TestCountsOfTheMap checks that the used units of a cell are counted up to the end of its range.
func TestCountsOfTheMap(t *testing.T) {
	const script = "import { Runs } from './runs.js'; console.log([...new Runs([1, 6, 0]).counts(0, 5, 4, 1), ...new Runs([1, 6, 0]).counts(5, 9, 4, 1)].join(' '))"
	if got := scripts(t)(t, script); got != "3 1 2" {
		t.Errorf("%s of the cells are used", got)
	}
}
