// Command mutants tests the tests: it puts known bugs back into the code, one at a time, and runs the tests that must
// detect each.
//
// A bug is a patch in patches. Its head names the origin of the bug, its effect, and the tests that detect it with
// the output that they print. The working tree stays unchanged: the flag -overlay makes the go command read the
// patched files instead of the real ones, so the build cache is shared, and a manager that a test builds has the bug
// too.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
)

func main() {
	all := flag.Bool("all", false, "run the slow tests too: those of level L2 and above start API servers")
	run := flag.String("run", "", "only the patches whose name matches this regular expression")
	verbose := flag.Bool("v", false, "print what the failing tests say")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := testMutants(ctx, *run, *all, *verbose)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// testMutants runs the tests of each patch and prints the table. It returns an error if a bug is not detected.
func testMutants(ctx context.Context, run string, all, verbose bool) error {
	only, err := regexp.Compile(run)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	root, err := findModuleRoot(ctx)
	if err != nil {
		return err
	}
	mutants, err := readMutants(filepath.Join(root, "test", "mutants", "patches"))
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)

	r := runner{root: root, tmpDir: tmp, baselineErrors: map[string]error{}, programs: map[string]testProgram{}}
	var rows []tableRow
	missed := 0
	for _, m := range mutants {
		if !only.MatchString(m.name) {
			continue
		}
		for _, c := range m.checks {
			if c.isSlow() && !all {
				continue
			}
			got, err := r.checkMutant(ctx, m, c)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				missed++
				got.outcome = "**no**"
				fmt.Printf("MISSED  %s, %s %s: %v\n", m.name, c.level, c.displayName(), err)
			} else {
				fmt.Printf("caught  %s, %s %s: %.1f s\n", m.name, c.level, c.displayName(), got.seconds)
			}
			if verbose {
				fmt.Println(got.output)
			}
			rows = append(rows, got.tableRow)
		}
		if err := r.removeMutant(m); err != nil {
			return err
		}
	}
	if len(rows) == 0 {
		return errors.New("no patch has that name")
	}
	fmt.Printf("\n%s", formatTable(rows))
	if missed > 0 {
		return fmt.Errorf("\n%d of %d tests did not find the bug they are there for", missed, len(rows))
	}
	return nil
}

// runner runs tests with and without a patch.
type runner struct {
	root, tmpDir string
	// baselineErrors has the result of each test without a patch, nil for a test that passed.
	baselineErrors map[string]error
	// programs are the test programs compiled so far, by patch and package.
	programs map[string]testProgram
}

type testProgram struct {
	overlay, path string
	err           error
}

// buildProgram compiles the test program of a package once, with a patch or without one.
func (r *runner) buildProgram(ctx context.Context, m *mutant, pkg string) testProgram {
	name := "without a patch"
	if m != nil {
		name = m.name
	}
	dir := filepath.Join(r.tmpDir, name)
	made, known := r.programs[name+pkg]
	if known {
		return made
	}
	if made.err = os.MkdirAll(dir, 0o755); made.err == nil && m != nil {
		made.overlay, made.err = writeOverlay(ctx, r.root, dir, *m)
	}
	if made.err == nil {
		made.path, made.err = compileTestProgram(ctx, r.root, made.overlay, dir, pkg)
	}
	r.programs[name+pkg] = made
	return made
}

// runCheck runs a test with a patch or without one.
func (r *runner) runCheck(ctx context.Context, m *mutant, c testCheck) (testOutcome, error) {
	p := r.buildProgram(ctx, m, c.pkg)
	if p.err != nil {
		return testOutcome{}, p.err
	}
	return runGoTest(ctx, r.root, p.overlay, p.path, c)
}

// removeMutant removes the files of a patch: a test program has some 80 MB.
func (r *runner) removeMutant(m mutant) error {
	return os.RemoveAll(filepath.Join(r.tmpDir, m.name))
}

type checkResult struct {
	tableRow
	output string
}

// checkMutant checks whether a test detects a bug: it must pass without the patch, and fail with it, with the output
// that the patch names.
func (r *runner) checkMutant(ctx context.Context, m mutant, c testCheck) (checkResult, error) {
	out := checkResult{tableRow: tableRow{mutant: m, check: c}}
	before, known := r.baselineErrors[c.displayName()]
	if !known {
		before = r.checkBaseline(ctx, c)
		r.baselineErrors[c.displayName()] = before
	}
	if before != nil {
		return out, before
	}
	v, err := r.runCheck(ctx, &m, c)
	out.output = v.output
	switch {
	case err != nil:
		return out, err
	case !v.failed:
		return out, errors.New("the test passes")
	case !c.wantOutput.MatchString(v.output):
		return out, fmt.Errorf("the test fails, and does not say %q:\n%s", c.wantOutput, lastLines(v.output, 30))
	}
	out.seconds = v.seconds
	out.outcome = fmt.Sprintf("%.1f s", v.seconds)
	return out, nil
}

// checkBaseline runs a test on the code without a patch.
func (r *runner) checkBaseline(ctx context.Context, c testCheck) error {
	v, err := r.runCheck(ctx, nil, c)
	switch {
	case err != nil:
		return err
	case v.failed:
		return fmt.Errorf("the test fails without the patch:\n%s", lastLines(v.output, 30))
	}
	return nil
}

func lastLines(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
