package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// cell is a text and how it is painted, which takes no room.
type cell struct {
	text  string
	paint func(string) string
}

// table prints rows in columns, two spaces apart.
type table struct{ rows [][]cell }

func (t *table) add(cells ...any) {
	var row []cell
	for _, c := range cells {
		switch c := c.(type) {
		case cell:
			c.text = word(c.text)
			row = append(row, c)
		default:
			row = append(row, cell{text: word(fmt.Sprint(c))})
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
			if c.paint != nil {
				text = c.paint(text)
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

// amount prints a count of addresses or prefixes. The largest number stands for all that are as large or larger: an
// IPv6 pool has more than fit.
func amount(n int64) string {
	if n == math.MaxInt64 {
		return ">9.2e18"
	}
	return strconv.FormatInt(n, 10)
}

// barWidth is the number of characters of a full bar.
const barWidth = 10

// bar draws a share in percent. Something is never drawn as nothing, nor less than all as all.
func bar(percent int, unicode bool) string {
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

// level paints what is nearly full: the thresholds are those of the capacity conditions of pools.
func (e Env) level(percent int) func(string) string {
	switch {
	case percent >= 95:
		return e.red
	case percent >= 70:
		return e.yellow
	}
	return e.green
}
