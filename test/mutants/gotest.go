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
	"regexp"
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

// goTest runs a test to its first failure.
func goTest(ctx context.Context, root, overlay string, c check) (verdict, error) {
	cmd := goCommand(ctx, root, overlay, arguments(c)...)
	// The tests end what they have started when they are interrupted.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		return verdict{}, fmt.Errorf("go test: %w", err)
	}
	v, err := judge(&stdout, c.test)
	if err != nil {
		return v, fmt.Errorf("%w\n%s", err, tail(stderr.String(), 30))
	}
	return v, nil
}

func arguments(c check) []string {
	timeout := "5m"
	if c.slow() {
		timeout = "20m"
	}
	args := []string{"test", "-json", "-count=1", "-failfast", "-timeout=" + timeout, "-run=" + pattern(c.test), c.pkg}
	if c.spec != "" {
		args = append(args, "-ginkgo.fail-fast", "-ginkgo.focus="+regexp.QuoteMeta(c.spec)+"$")
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
