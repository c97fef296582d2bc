package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
)

// table collects rows and prints them as Markdown.
type table struct{ rows [][3]string }

func (t *table) add(what, figure, note string) {
	t.rows = append(t.rows, [3]string{what, figure, note})
	fmt.Printf("%s: %s %s\n", what, figure, note)
}

// rate adds a row with the claims per second, and their share of the raw limit.
func (t *table) rate(what string, n int, took time.Duration, limit float64) {
	per := float64(n) / took.Seconds()
	note := fmt.Sprintf("%.1f s", took.Seconds())
	if limit > 0 {
		note += fmt.Sprintf(", %.2f of the raw limit", per/limit)
	}
	t.add(what, fmt.Sprintf("%.0f/s", per), note)
}

func (t *table) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 1, ' ', tabwriter.Debug)
	fmt.Fprintln(w, "| what\tfigure\tnote |")
	fmt.Fprintln(w, "| ---\t---\t--- |")
	for _, r := range t.rows {
		fmt.Fprintf(w, "| %s\t%s\t%s |\n", r[0], r[1], r[2])
	}
	_ = w.Flush()
	return b.String()
}
