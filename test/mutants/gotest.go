package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// testOutcome is the outcome of a test.
type testOutcome struct {
	failed  bool
	seconds float64
	// output is the output of the test and its subtests.
	output string
}

// compileTestProgram compiles the test program of a package. Code that does not compile detects no bug, so a compile
// error is distinguished from a failing test.
func compileTestProgram(ctx context.Context, root, overlay, dir, pkg string) (program string, err error) {
	program = filepath.Join(dir, path.Base(pkg)+".test")
	out, err := newGoCommand(ctx, root, overlay, "test", "-c", "-o", program, pkg).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("compiling the tests of %s: %w\n%s", pkg, err, out)
	}
	return program, nil
}

// runGoTest runs a test of a program up to its first failure, as go test does.
func runGoTest(ctx context.Context, root, overlay, program string, c testCheck) (testOutcome, error) {
	dir := filepath.Join(root, c.pkg)
	args := append([]string{"tool", "test2json", "-t", program}, testArguments(c)...)
	if usesRapid(dir) {
		args = append(args, "-rapid.nofailfile") // the file would be left in the working tree
	}
	cmd := newGoCommand(ctx, dir, overlay, args...)
	// The tests end the processes that they have started when they are interrupted.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		return testOutcome{}, fmt.Errorf("running %s: %w", c.displayName(), err)
	}
	v, err := parseTestEvents(&stdout, c.test)
	if err == nil && c.spec != "" && strings.Contains(v.output, "Ran 0 of ") {
		err = fmt.Errorf("no spec ends with %q", c.spec)
	}
	if err != nil {
		return v, fmt.Errorf("%w\n%s", err, lastLines(stderr.String(), 30))
	}
	return v, nil
}

func usesRapid(dir string) bool {
	files, _ := filepath.Glob(filepath.Join(dir, "*_test.go"))
	return slices.ContainsFunc(files, func(f string) bool {
		text, err := os.ReadFile(f)
		return err == nil && bytes.Contains(text, []byte(`"pgregory.net/rapid"`))
	})
}

func testArguments(c testCheck) []string {
	args := []string{"-test.v=test2json", "-test.paniconexit0", "-test.failfast", "-test.timeout=20m", "-test.run=" + runPattern(c.test)}
	if c.spec != "" {
		args = append(args, "-ginkgo.no-color", "-ginkgo.fail-fast", "-ginkgo.focus="+regexp.QuoteMeta(c.spec)+"$")
	}
	return args
}

// runPattern returns a pattern that matches one test or subtest, and all subtests below it.
func runPattern(test string) string {
	parts := strings.Split(test, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// parseTestEvents reads the output of go test -json. It returns an error for a test that did not run because it does
// not exist or does not compile.
func parseTestEvents(events io.Reader, test string) (testOutcome, error) {
	var v testOutcome
	var output strings.Builder
	ran := false
	for d := json.NewDecoder(events); ; {
		var e struct {
			Action, Test, Output string
			Elapsed              float64
		}
		switch err := d.Decode(&e); {
		case errors.Is(err, io.EOF):
			v.output = output.String()
			if !ran {
				return v, fmt.Errorf("%s did not run", test)
			}
			return v, nil
		case err != nil:
			return v, fmt.Errorf("reading the output of go test: %w", err)
		}
		top, _, _ := strings.Cut(test, "/")
		switch {
		case e.Test == "" && (e.Action == "fail" || e.Action == "pass"):
			v.seconds = e.Elapsed
		case e.Test == top && e.Action == "output", strings.HasPrefix(e.Test, top+"/") && e.Action == "output":
			output.WriteString(e.Output)
		case e.Test == test && e.Action == "fail":
			v.failed, ran = true, true
		case e.Test == test && e.Action == "pass":
			ran = true
		}
	}
}
