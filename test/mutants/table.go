package main

import (
	"fmt"
	"strings"
)

// row is a test and whether it found the bug of a patch.
type row struct {
	mutant  mutant
	check   check
	verdict string
	seconds float64
}

// table prints rows as Markdown, each patch once.
func table(rows []row) string {
	var b strings.Builder
	b.WriteString("| Patch | Bug that it brings back | Effect | Level | Caught by | in |\n|---|---|---|---|---|---|\n")
	last := ""
	for _, r := range rows {
		name, bug, effect := "`"+r.mutant.name+"`", r.mutant.bug, r.mutant.effect
		if r.mutant.name == last {
			name, bug, effect = "", "", ""
		}
		last = r.mutant.name
		what := "`" + r.check.test + "`"
		if r.check.spec != "" {
			what = "“" + r.check.spec + "”"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s, `%s` | %s |\n", name, bug, effect, r.check.level, what, strings.TrimPrefix(r.check.pkg, "./"), r.verdict)
	}
	return b.String()
}
