package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// tableCell is the text of a cell and the function that colours it. Colour codes do not count for the width.
type tableCell struct {
	text       string
	colourText func(string) string
}

// table prints rows in columns with two spaces between them. The printers of k8s.io/cli-runtime escape colour codes or
// count them for the width, and with text/tabwriter, which can be made to skip them, this takes as many lines.
type table struct{ rows [][]tableCell }

func (t *table) addRow(cells ...any) {
	var row []tableCell
	for _, c := range cells {
		switch c := c.(type) {
		case tableCell:
			c.text = sanitizeLine(c.text)
			row = append(row, c)
		default:
			row = append(row, tableCell{text: sanitizeLine(fmt.Sprint(c))})
		}
	}
	t.rows = append(t.rows, row)
}

func (t *table) String() string {
	var widths []int
	for _, row := range t.rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c.text))
		}
	}
	var out strings.Builder
	for _, row := range t.rows {
		var line strings.Builder
		for i, c := range row {
			text := c.text
			if c.colourText != nil {
				text = c.colourText(text)
			}
			line.WriteString(text)
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c.text)+2))
			}
		}
		out.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return out.String()
}

// formatAmount formats a count of addresses or prefixes. math.MaxInt64 means that number or more, as an IPv6 pool can
// have more addresses than fit an int64.
func formatAmount(n int64) string {
	if n == math.MaxInt64 {
		return ">9.2e18"
	}
	return strconv.FormatInt(n, 10)
}

// barWidth is the number of characters of a full bar.
const barWidth = 10

// formatUsageBar draws a share in percent. A share above 0 is never drawn as empty, and one below 100 never as full.
func formatUsageBar(percent int, unicode bool) string {
	if !unicode {
		n := (percent*barWidth + 50) / 100
		if percent > 0 {
			n = max(n, 1)
		}
		if percent < 100 {
			n = min(n, barWidth-1)
		}
		return fmt.Sprintf("[%s%s] %3d%%", strings.Repeat("#", n), strings.Repeat("-", barWidth-n), percent)
	}
	eighths := (percent*barWidth*8 + 50) / 100
	if percent > 0 {
		eighths = max(eighths, 1)
	}
	if percent < 100 {
		eighths = min(eighths, barWidth*8-1)
	}
	full := strings.Repeat("█", eighths/8)
	if part := eighths % 8; part > 0 {
		full += string([]rune(" ▏▎▍▌▋▊▉")[part])
	}
	return fmt.Sprintf("%s%s▏%3d%%", full, strings.Repeat(" ", barWidth-utf8.RuneCountInString(full)), percent)
}

// usageColour returns the colour for a usage in percent. The thresholds are those of the capacity conditions of pools.
func (env Env) usageColour(percent int) func(string) string {
	switch {
	case percent >= 95:
		return env.red
	case percent >= 70:
		return env.yellow
	}
	return env.green
}
