package page

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/fleet"
)

// legend evaluates to the text of the legend of the chart.
const legend = `[...document.querySelectorAll('#usage .u-value')].map((e) => e.textContent).join(' | ')`

// The chart has axes, and its legend shows the usage at the time that is pointed at.
func TestUsageChart(t *testing.T) {
	b := open(t, 1200, 900)
	made := fleet.BusyFleet()
	p := made[0]
	first, last := p.Samples[0], p.Samples[len(p.Samples)-1]
	b.runActions(chromedp.Navigate(serve(t, made, "") + busy))
	b.until(drawn + ` && document.querySelector('#usage .u-over')`)
	now := fmt.Sprintf("%s (66 %%) | %s", comma(last.Used), comma(last.Total))
	b.until(legend + `.endsWith(` + quoted(now) + `)`)

	b.step("axes are labelled and the line is drawn", func() {
		// Counts the pixels left of, below and in the area of the plot that are not transparent: ticks and labels of
		// the axes, and the line.
		inked := b.eval(`(() => {
			const canvas = document.querySelector('#usage canvas'), g = canvas.getContext('2d'), frame = canvas.getBoundingClientRect();
			const over = document.querySelector('#usage .u-over').getBoundingClientRect();
			const count = (x, y, w, h) => { const d = g.getImageData(x, y, w, h).data; let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 60; return n; };
			const left = over.left - frame.left, bottom = over.bottom - frame.top;
			return [left > 20, frame.height - bottom > 20, count(0, 0, left - 8, bottom) > 50, count(left, bottom + 8, over.width, frame.height - bottom - 8) > 50, count(left + 2, 2, over.width - 4, over.height - 4) > 500].join();
		})()`)
		if inked != "true,true,true,true,true" {
			b.Errorf("space left, space below, labels left, labels below, line: %s", inked)
		}
	})
	b.step("hovering shows the values of that time", func() {
		b.hover(0.001)
		b.until(legend + `.endsWith(` + quoted(fmt.Sprintf("%s (%d %%) | %s", comma(first.Used), (200*first.Used/first.Total+1)/2, comma(first.Total))) + `)`)
		if text := b.eval(legend); !strings.HasPrefix(text, "2026-11-01 18:0") {
			b.Errorf("at the left edge it says %s", text)
		}
		b.runActions(chromedp.MouseEvent(input.MouseMoved, 5, 5))
		b.until(legend + `.endsWith(` + quoted(now) + `)`)
	})
	b.step("the keyboard shows them too", func() {
		b.runActions(chromedp.Focus("#usage"), chromedp.KeyEvent(kb.Home))
		b.until(`document.querySelector('#usage-readout').textContent === ` + quoted(fmt.Sprintf("2026-11-01 18:00: %s of %s in use", comma(first.Used), comma(first.Total))))
		b.runActions(chromedp.KeyEvent(kb.End))
		b.until(`document.querySelector('#usage-readout').textContent === ` + quoted(fmt.Sprintf("2026-11-02 12:00: %s of %s in use", comma(last.Used), comma(last.Total))))
	})
	b.step("and a table says the same", func() {
		b.runActions(chromedp.Click("#usage-table summary"))
		b.until(`document.querySelectorAll('#usage-table tbody tr').length === 19`)
	})
	if c := b.complained(); len(c) > 0 {
		t.Errorf("the browser complains: %q", c)
	}
}

// hover moves the pointer to a fraction of the width of the chart.
func (b *tab) hover(part float64) {
	b.Helper()
	var box struct{ X, Y float64 }
	b.runActions(chromedp.Evaluate(fmt.Sprintf(`(() => { const r = document.querySelector('#usage .u-over').getBoundingClientRect(); return {X: r.left + %g * r.width, Y: r.top + r.height / 2}; })()`, part), &box),
		chromedp.ActionFunc(func(ctx context.Context) error {
			return input.DispatchMouseEvent(input.MouseMoved, box.X, box.Y).Do(ctx)
		}))
}

// comma formats a number as the page does.
func comma(n int64) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", comma(n/1000), n%1000)
}
