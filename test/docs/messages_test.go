// Package docs compares what the pages quote with the code: reasons, messages, events, log lines, versions.
//
// A column whose head begins with Reason, Condition, Phase or Event names, in backticks, strings of the code. A
// column whose head begins with Message quotes a refusal of the row's Reason, with ... for an omission. Log lines are
// quoted after logs and grep, in double quotes.
package docs

import (
	"go/ast"
	"regexp"
	"slices"
	"strings"
	"testing"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

var (
	named  = regexp.MustCompile("`([A-Za-z]+)`")
	event  = regexp.MustCompile("[Ee]vent `([A-Za-z]+)`")
	metric = regexp.MustCompile("`butler_ipam_([a-z_]+)")
	logged = regexp.MustCompile(`(?:\blogs|\bgrep) "([^"]+)"`)
)

// W27, I5: the pages list every refusal that a user may get, and no other.
func TestRefusalsAreDocumented(t *testing.T) {
	s := readSource(t)
	refusals := s.refusals()
	if len(refusals) == 0 {
		t.Fatal("the allocator refuses nothing: the code is not read as it is written")
	}
	listed := map[refusal]bool{}
	rows := 0
	for page, text := range readPages(t) {
		for _, table := range tablesOf(page, text) {
			for _, row := range table.rows {
				message := ""
				for head, cell := range row {
					if strings.HasPrefix(head, "Message") {
						message = strings.ReplaceAll(cell, "`", "")
					}
				}
				if message == "" {
					continue
				}
				rows++
				found := false
				for _, r := range refusals {
					if strings.Trim(row["Reason"], "`") == r.reason && quotes(message, r.format) {
						listed[r], found = true, true
					}
				}
				if !found {
					t.Errorf("%s: no message %q with reason %s is ever published", page, message, row["Reason"])
				}
			}
		}
	}
	for _, r := range refusals {
		if !listed[r] {
			t.Errorf("no page lists reason %s with message %q", r.reason, r.format)
		}
	}
	if rows < 15 {
		t.Errorf("%d rows can be read", rows)
	}
}

// W27: reasons, conditions, phases and events that a page names exist in the code.
func TestDocumentedNamesExist(t *testing.T) {
	s := readSource(t)
	begun := s.eventPrefixes()
	of := []string{"True", "False", "Unknown", clusterv1.PausedReason, clusterv1.NotPausedReason} // Kubernetes, Cluster API
	known := func(name string) bool {
		return s.texts[name] || slices.Contains(of, name) || slices.ContainsFunc(begun, func(begins string) bool {
			rest, ok := strings.CutPrefix(name, begins)
			return ok && (s.texts[rest] || slices.Contains(of, rest))
		})
	}
	for name, value := range s.constants { // those of Cluster API
		if strings.HasPrefix(name, "IPAddressClaim") {
			s.texts[value] = true
		}
	}
	count := 0
	for page, text := range readPages(t) {
		for _, table := range tablesOf(page, text) {
			for _, row := range table.rows {
				for head, cell := range row {
					column, _, _ := strings.Cut(head, " ")
					if !slices.Contains([]string{"Reason", "Condition", "Phase", "Event"}, column) {
						continue
					}
					for _, name := range named.FindAllStringSubmatch(cell, -1) {
						if count++; !known(name[1]) {
							t.Errorf("%s: %s %s is nowhere in the code", page, column, name[1])
						}
					}
				}
			}
		}
	}
	if count < 40 {
		t.Errorf("%d names can be read", count)
	}
}

// I5: a page explains every event.
func TestEventsAreDocumented(t *testing.T) {
	explained := map[string]bool{}
	for page, text := range readPages(t) {
		for _, name := range event.FindAllStringSubmatch(text, -1) {
			explained[name[1]] = true
		}
		for _, table := range tablesOf(page, text) {
			for _, row := range table.rows {
				if cell, ok := row[table.first]; ok && strings.HasPrefix(table.first, "Event") {
					for _, name := range named.FindAllStringSubmatch(cell, -1) {
						explained[name[1]] = true
					}
				}
			}
		}
	}
	s := readSource(t)
	recorded := 0
	for dir := range s.files {
		s.calls(dir, func(name string, args []ast.Expr) {
			if name != "Eventf" || len(args) < 5 {
				return
			}
			reason := s.text(args[3])
			if reason == "" || strings.Contains(reason, "%") {
				return // TestDocumentedNamesExist checks the events whose reasons are concatenated
			}
			if recorded++; !explained[reason] {
				t.Errorf("%s: no page explains event %s", dir, reason)
			}
		})
	}
	if recorded < 6 {
		t.Errorf("%d events can be read", recorded)
	}
}

// W27: every metric of the manager that a page names is exported.
func TestMetricNames(t *testing.T) {
	s := readSource(t)
	count := 0
	for page, text := range readPages(t) {
		for _, name := range metric.FindAllStringSubmatch(text, -1) {
			count++
			series := strings.TrimSuffix(strings.TrimSuffix(name[1], "_count"), "_bucket")
			begins := func(text string) bool { return strings.HasSuffix(series, "_") && strings.HasPrefix(text, series) }
			if !s.texts[series] && !slices.ContainsFunc(sorted(s.texts), begins) {
				t.Errorf("%s: no program exports %s", page, name[0])
			}
		}
	}
	if count < 40 {
		t.Errorf("%d metrics can be read", count)
	}
}

// W27: every log line that a page names for a search exists in the code.
func TestLogLines(t *testing.T) {
	s := readSource(t)
	lines := map[string]bool{}
	for dir := range s.files {
		s.calls(dir, func(name string, args []ast.Expr) {
			switch {
			case name == "Error" && len(args) > 1:
				lines[s.text(args[1])] = true
			case name == "Info" && len(args) > 0:
				lines[s.text(args[0])] = true
			}
		})
	}
	count := 0
	for page, text := range readPages(t) {
		for _, line := range logged.FindAllStringSubmatch(strings.ReplaceAll(text, "\n", " "), -1) {
			count++
			if !slices.ContainsFunc(sorted(lines), func(l string) bool { return strings.Contains(l, line[1]) }) {
				t.Errorf("%s: nothing logs %q", page, line[1])
			}
		}
	}
	if count < 3 {
		t.Errorf("%d log lines can be read", count)
	}
}
