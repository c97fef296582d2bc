package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// addressColumn is the header of the column of addresses; teamA is the namespace of a tenant.
const addressColumn, teamA = "ADDRESS", "team-a"

// stepPrinter prints one line for each step, with the time it took.
type stepPrinter struct {
	out       io.Writer
	name      string
	startedAt time.Time
}

func (s *stepPrinter) beginStep(name string) { s.name, s.startedAt = name, time.Now() }

func (s *stepPrinter) endStepf(format string, args ...any) {
	fmt.Fprintf(s.out, "  %-11s %6s   %s\n", s.name, formatDuration(time.Since(s.startedAt)), fmt.Sprintf(format, args...))
}

// printTable prints rows in aligned columns, the header first.
func printTable(out io.Writer, rows [][]string) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w)
	for _, row := range rows {
		fmt.Fprintf(w, "  %s\n", strings.TrimRight(strings.Join(row, "\t"), "\t "))
	}
	return w.Flush()
}

// formatDuration formats a duration for users: 41ms, 3.2s.
func formatDuration(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%dms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1fs", d.Seconds())
}
