package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// mutant is a patch that puts a bug into the code. Its head is:
//
//	Bug: its origin, or the rule of docs/design.md that it breaks
//	Effect: duplicate, leak, lost, early, stuck or exposed
//	Test: L1 ./internal/allocator TestFaultsAtEveryWrite/forced
//	Says: a regular expression that the output of the failing test matches
//
// with one Test and one Says for each test that must detect the bug, then an empty line, the reason why this is the
// bug, and the patch. A test of Ginkgo has a line "Spec:" with the text of its It.
type mutant struct {
	name, bug, effect string
	patchPath         string
	// files are the files that the patch changes, relative to the root of the module.
	files  []string
	checks []testCheck
}

// effects lists the effects of bugs: an address that two claims have; one that no claim can get any more; one that a
// living claim loses; one that is free too early; claims that are not served; credentials or data that are exposed to
// others.
var effects = []string{"duplicate", "leak", "lost", "early", "stuck", "exposed"}

// levels lists the levels of tests: of one package alone; of the reconcilers against enumerated faults, in virtual
// time; of the manager on a real API server; of user stories with all components.
var levels = []string{"L0", "L1", "L2", "L3"}

// testCheck is a test that must detect a bug.
type testCheck struct {
	level, pkg, test, spec string
	wantOutput             *regexp.Regexp
}

// isSlow reports whether a test needs an API server.
func (c testCheck) isSlow() bool { return c.level >= "L2" }

func (c testCheck) displayName() string {
	if c.spec != "" {
		return fmt.Sprintf("%s: %q", c.pkg, c.spec)
	}
	return c.pkg + " " + c.test
}

// changedPackages returns the packages that a patch changes.
func (m *mutant) changedPackages() []string {
	var out []string
	for _, f := range m.files {
		out = append(out, "./"+path.Dir(f))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// checkLevels returns the levels of the tests that must detect the bug.
func (m *mutant) checkLevels() []string {
	var out []string
	for _, c := range m.checks {
		out = append(out, c.level)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// readMutants reads the patches of a directory, sorted by name.
func readMutants(dir string) ([]mutant, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.patch"))
	if err != nil {
		return nil, err
	}
	var out []mutant
	for _, p := range paths {
		text, err := os.ReadFile(p)
		if err != nil {
			return nil, err
		}
		m, err := parseMutant(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
		m.name, m.patchPath = strings.TrimSuffix(filepath.Base(p), ".patch"), p
		out = append(out, m)
	}
	return out, nil
}

var changedFilePattern = regexp.MustCompile(`(?m)^--- a/(\S+)$`)

// parseMutant parses the head of a patch, and the names of the files that it changes.
func parseMutant(text string) (mutant, error) {
	var m mutant
	head, _, _ := strings.Cut(text, "\n\n")
	for line := range strings.Lines(head) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		last := len(m.checks) - 1
		switch {
		case value == "":
			return m, fmt.Errorf("%q is not a line of a head", line)
		case key == "Bug":
			m.bug = value
		case key == "Effect":
			m.effect = value
		case key == "Test":
			fields := strings.Fields(value)
			if len(fields) != 3 || !slices.Contains(levels, fields[0]) {
				return m, fmt.Errorf("%q is not a level, a package and a test", value)
			}
			m.checks = append(m.checks, testCheck{level: fields[0], pkg: fields[1], test: fields[2]})
		case last < 0:
			return m, fmt.Errorf("%q comes before a test", line)
		case key == "Spec":
			m.checks[last].spec = value
		case key == "Says":
			pattern, err := regexp.Compile(value)
			if err != nil {
				return m, err
			}
			m.checks[last].wantOutput = pattern
		default:
			return m, fmt.Errorf("%q is not known", key)
		}
	}
	for _, f := range changedFilePattern.FindAllStringSubmatch(text, -1) {
		m.files = append(m.files, f[1])
	}
	switch {
	case m.bug == "" || !slices.Contains(effects, m.effect):
		return m, fmt.Errorf("it needs a Bug, and an Effect of %v", effects)
	case len(m.checks) == 0 || slices.ContainsFunc(m.checks, func(c testCheck) bool { return c.wantOutput == nil }):
		return m, fmt.Errorf("it needs a Test, and what each says")
	case len(m.files) == 0:
		return m, fmt.Errorf("it changes nothing")
	}
	return m, nil
}
