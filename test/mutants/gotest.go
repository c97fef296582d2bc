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

// verdict is what became of a test.
type verdict struct {
	failed  bool
	seconds float64
	// output is that of the test and what it runs.
	output string
}

// compile makes the test program of a package. Code that does not compile finds nothing, so it is told apart from a
// test that fails.
func compile(ctx context.Context, root, overlay, dir, pkg string) (program string, err error) {
	program = filepath.Join(dir, path.Base(pkg)+".test")
	out, err := goCommand(ctx, root, overlay, "test", "-c", "-o", program, pkg).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("compiling the tests of %s: %w\n%s", pkg, err, out)
	}
	return program, nil
}

// goTest runs a test of a program to its first failure, as go test does.
func goTest(ctx context.Context, root, overlay, program string, c check) (verdict, error) {
	dir := filepath.Join(root, c.pkg)
	args := append([]string{"tool", "test2json", "-t", program}, arguments(c)...)
	if usesRapid(dir) {
		args = append(args, "-rapid.nofailfile") // it would be left in the working tree
	}
	cmd := goCommand(ctx, dir, overlay, args...)
	// The tests end what they have started when they are interrupted.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		return verdict{}, fmt.Errorf("running %s: %w", c.name(), err)
	}
	v, err := judge(&stdout, c.test)
	if err == nil && c.spec != "" && strings.Contains(v.output, "Ran 0 of ") {
		err = fmt.Errorf("no spec ends with %q", c.spec)
	}
	if err != nil {
		return v, fmt.Errorf("%w\n%s", err, tail(stderr.String(), 30))
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

func arguments(c check) []string {
	args := []string{"-test.v=test2json", "-test.paniconexit0", "-test.failfast", "-test.timeout=20m", "-test.run=" + pattern(c.test)}
	if c.spec != "" {
		args = append(args, "-ginkgo.no-color", "-ginkgo.fail-fast", "-ginkgo.focus="+regexp.QuoteMeta(c.spec)+"$")
	}
	return args
}

// pattern matches one test, or subtest, and all that it runs.
func pattern(test string) string {
	parts := strings.Split(test, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// judge reads the output of go test -json. A test that did not run, because it does not exist or does not compile,
// is an error.
func judge(events io.Reader, test string) (verdict, error) {
	var v verdict
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
