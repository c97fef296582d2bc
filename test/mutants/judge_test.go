package main

import (
	"strings"
	"testing"
)

// The output of go test -json decides whether a bug is caught: by the named test, and no other.
func TestParseTestEvents(t *testing.T) {
	const end = `{"Action":"fail","Package":"p","Elapsed":2.5}` + "\n"
	tests := map[string]struct {
		reason, events string
		failed, fails  bool
		output         string
	}{
		"Failed": {
			reason: "with what it and its subtests print", failed: true, output: "=== I1: held twice\n",
			events: `{"Action":"output","Test":"TestFaultsAtEveryWrite","Output":"=== "}
				{"Action":"output","Test":"TestFaultsAtEveryWrite/forced/lazy","Output":"I1: held twice\n"}
				{"Action":"output","Test":"TestScenariosWithImpatientUsers","Output":"something else"}
				{"Action":"fail","Test":"TestFaultsAtEveryWrite/forced/lazy"}
				{"Action":"fail","Test":"TestFaultsAtEveryWrite/forced"}
				{"Action":"fail","Test":"TestFaultsAtEveryWrite"}`,
		},
		"Passed": {reason: "the bug is not found", events: `{"Action":"pass","Test":"TestFaultsAtEveryWrite/forced"}`},
		"AnotherFailed": {
			reason: "it is not the one that is named", fails: true,
			events: `{"Action":"fail","Test":"TestFaultsAtEveryWrite/full"}`,
		},
		"DidNotCompile": {reason: "that is no test result", fails: true, events: `{"Action":"build-fail","ImportPath":"p"}`},
		"DidNotRun":     {reason: "there is no such test", fails: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			v, err := parseTestEvents(strings.NewReader(tc.events+"\n"+end), "TestFaultsAtEveryWrite/forced")
			if v.failed != tc.failed || (err != nil) != tc.fails || v.output != tc.output || v.seconds != 2.5 {
				t.Errorf("%s: %+v, %v", tc.reason, v, err)
			}
		})
	}
}

func TestParseMutant(t *testing.T) {
	const head, patch = "Bug: a rule\nEffect: leak\n", "\n\nWhy.\n\n--- a/internal/x/y.go\n+++ b/internal/x/y.go\n"
	tests := map[string]struct {
		reason, text string
		fails        bool
	}{
		"Whole":       {reason: "a spec, and two levels", text: head + "Test: L1 ./p TestA/b\nSays: I1\nTest: L2 ./q TestB\nSpec: holds\nSays: I2" + patch},
		"NoTest":      {reason: "nothing finds it", text: head + patch, fails: true},
		"SaysNothing": {reason: "it may fail for another reason", text: head + "Test: L1 ./p TestA" + patch, fails: true},
		"NoLevel":     {reason: "which level", text: head + "Test: ./p TestA\nSays: I1" + patch, fails: true},
		"NoEffect":    {reason: "what it leads to", text: "Bug: a rule\nTest: L1 ./p TestA\nSays: I1" + patch, fails: true},
		"Empty":       {reason: "no file is changed", text: head + "Test: L1 ./p TestA\nSays: I1\n\nWhy.\n", fails: true},
		"Unknown":     {reason: "a typing error", text: head + "Tests: L1 ./p TestA\nSays: I1" + patch, fails: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			m, err := parseMutant(tc.text)
			if (err != nil) != tc.fails {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			if err == nil && (len(m.checks) != 2 || len(m.changedPackages()) != 1 || m.changedPackages()[0] != "./internal/x" || m.checks[1].spec != "holds") {
				t.Errorf("%s: %+v", tc.reason, m)
			}
		})
	}
}
