package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// addressColumn heads the addresses of tables, teamA is the namespace of a tenant.
const addressColumn, teamA = "ADDRESS", "team-a"

// steps prints one line for each thing that was done, with the time it took.
type steps struct {
	out   io.Writer
	name  string
	since time.Time
}

func (s *steps) begin(name string) { s.name, s.since = name, time.Now() }

func (s *steps) endf(format string, args ...any) {
	fmt.Fprintf(s.out, "  %-11s %6s   %s\n", s.name, short(time.Since(s.since)), fmt.Sprintf(format, args...))
}

// table prints rows in aligned columns, the head first.
func table(out io.Writer, rows [][]string) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w)
	for _, row := range rows {
		fmt.Fprintf(w, "  %s\n", strings.TrimRight(strings.Join(row, "\t"), "\t "))
	}
	return w.Flush()
}

// short is a duration as a reader wants it: 41ms, 3.2s.
func short(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%dms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1fs", d.Seconds())
}
