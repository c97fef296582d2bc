package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
)

// table collects rows and prints them as Markdown.
type table struct {
	rows [][3]string
	// belowLimit describes the shares that are below their limits.
	belowLimit []string
}

func (t *table) add(what, figure, note string) {
	t.rows = append(t.rows, [3]string{what, figure, note})
	fmt.Printf("%s: %s %s\n", what, figure, note)
}

// addShare adds a row with the share of the bare client's pace, which must be at least limit. A share of nothing, NaN,
// is below each limit.
func (t *table) addShare(what, figure string, share, limit float64, note string) {
	if !(share >= limit) {
		t.belowLimit = append(t.belowLimit, fmt.Sprintf("%s: %.2f, limit %.2f", what, share, limit))
	}
	t.add(what, figure, fmt.Sprintf("%.2f of the bare client, limit %.2f; %s", share, limit, note))
}

func (t *table) checkLimits() error {
	if len(t.belowLimit) == 0 {
		return nil
	}
	return fmt.Errorf("shares of the bare client's pace are below their limits:\n%s", strings.Join(t.belowLimit, "\n"))
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

func formatMillis(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}
