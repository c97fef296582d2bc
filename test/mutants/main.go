// Command mutants tests the tests: it puts known bugs back into the code, one at a time, and runs the tests
// that must find each.
//
// A bug is a patch in patches. Its head says whose bug it is, what it leads to, and which tests find it by which
// words. The working tree is not touched: the go command is told to read the patched files in the place of the
// real ones (its flag -overlay), so the build cache is shared, and a manager that a test builds has the bug too.
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
	err := test(ctx, *run, *all, *verbose)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// test runs the tests of each patch and prints the table. A bug that is not found is an error.
func test(ctx context.Context, run string, all, verbose bool) error {
	only, err := regexp.Compile(run)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	mutants, err := readAll(filepath.Join(root, "test", "mutants", "patches"))
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)

	r := runner{root: root, tmp: tmp, sound: map[string]error{}, programs: map[string]program{}}
	var rows []row
	missed := 0
	for _, m := range mutants {
		if !only.MatchString(m.name) {
			continue
		}
		for _, c := range m.checks {
			if c.slow() && !all {
				continue
			}
			got, err := r.check(ctx, m, c)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				missed++
				got.verdict = "**no**"
				fmt.Printf("MISSED  %s, %s %s: %v\n", m.name, c.level, c.name(), err)
			} else {
				fmt.Printf("caught  %s, %s %s: %.1f s\n", m.name, c.level, c.name(), got.seconds)
			}
			if verbose {
				fmt.Println(got.output)
			}
			rows = append(rows, got.row)
		}
		if err := r.forget(m); err != nil {
			return err
		}
	}
	if len(rows) == 0 {
		return errors.New("no patch has that name")
	}
	fmt.Printf("\n%s", table(rows))
	if missed > 0 {
		return fmt.Errorf("\n%d of %d tests did not find the bug they are there for", missed, len(rows))
	}
	return nil
}

// runner runs tests with and without a patch.
type runner struct {
	root, tmp string
	// sound is what became of each test without a patch.
	sound map[string]error
	// programs are the test programs made so far, by patch and package.
	programs map[string]program
}

type program struct {
	overlay, path string
	err           error
}

// program makes the test program of a package with a patch, or without one, once.
func (r *runner) program(ctx context.Context, m *mutant, pkg string) program {
	name := "without a patch"
	if m != nil {
		name = m.name
	}
	dir := filepath.Join(r.tmp, name)
	made, known := r.programs[name+pkg]
	if known {
		return made
	}
	if made.err = os.MkdirAll(dir, 0o755); made.err == nil && m != nil {
		made.overlay, made.err = overlayOf(ctx, r.root, dir, *m)
	}
	if made.err == nil {
		made.path, made.err = compile(ctx, r.root, made.overlay, dir, pkg)
	}
	r.programs[name+pkg] = made
	return made
}

// run runs a test with a patch, or without one.
func (r *runner) run(ctx context.Context, m *mutant, c check) (verdict, error) {
	p := r.program(ctx, m, c.pkg)
	if p.err != nil {
		return verdict{}, p.err
	}
	return goTest(ctx, r.root, p.overlay, p.path, c)
}

// forget removes what was made of a patch: a test program has some 80 MB.
func (r *runner) forget(m mutant) error {
	return os.RemoveAll(filepath.Join(r.tmp, m.name))
}

type result struct {
	row
	output string
}

// check reports whether a test finds a bug: it passes without the patch, and fails with it, by the words that
// the patch names.
func (r *runner) check(ctx context.Context, m mutant, c check) (result, error) {
	out := result{row: row{mutant: m, check: c}}
	before, known := r.sound[c.name()]
	if !known {
		before = r.passes(ctx, c)
		r.sound[c.name()] = before
	}
	if before != nil {
		return out, before
	}
	v, err := r.run(ctx, &m, c)
	out.output = v.output
	switch {
	case err != nil:
		return out, err
	case !v.failed:
		return out, errors.New("the test passes")
	case !c.says.MatchString(v.output):
		return out, fmt.Errorf("the test fails, and does not say %q:\n%s", c.says, tail(v.output, 30))
	}
	out.seconds = v.seconds
	out.verdict = fmt.Sprintf("%.1f s", v.seconds)
	return out, nil
}

// passes runs a test on the code as it is.
func (r *runner) passes(ctx context.Context, c check) error {
	v, err := r.run(ctx, nil, c)
	switch {
	case err != nil:
		return err
	case v.failed:
		return fmt.Errorf("the test fails without the patch:\n%s", tail(v.output, 30))
	}
	return nil
}

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
