package main

import (
	"fmt"
	"strings"
)

// tableRow is a test and whether it detected the bug of a patch.
type tableRow struct {
	mutant  mutant
	check   testCheck
	outcome string
	seconds float64
}

// formatTable returns rows as a Markdown table, each patch once.
func formatTable(rows []tableRow) string {
	var b strings.Builder
	b.WriteString("| Patch | Bug that it brings back | Effect | Level | Caught by | in |\n|---|---|---|---|---|---|\n")
	last := ""
	for _, r := range rows {
		name, bug, effect := "`"+r.mutant.name+"`", r.mutant.bug, r.mutant.effect
		if r.mutant.name == last {
			name, bug, effect = "", "", ""
		}
		last = r.mutant.name
		testName := "`" + r.check.test + "`"
		if r.check.spec != "" {
			testName = "“" + r.check.spec + "”"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s, `%s` | %s |\n", name, bug, effect, r.check.level, testName, strings.TrimPrefix(r.check.pkg, "./"), r.outcome)
	}
	return b.String()
}
