package page

import (
	"context"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/fleet"
)

// everyView lists the states of the page: how to get to each from the one before, and the condition that shows that
// it is reached.
var everyView = []struct {
	name, hash, action, there string
}{
	{name: "a pool with everything", hash: busy, there: `document.querySelector('.alarm')`},
	{
		name: "its tables", action: `for (const d of document.querySelectorAll('details')) d.open = true`,
		there: `document.querySelectorAll('#usage-table tbody tr').length && document.querySelectorAll('#map-table tbody tr').length`,
	},
	{name: "a pool that others are carved from", hash: "#GlobalNetworkPool%2F%2Fsite", there: `document.querySelectorAll('#family td.tree').length === 3`},
	{name: "a pool of leases", hash: "#GlobalNetworkPool%2F%2Fpublic", there: `document.querySelector('#leases td')`},
	{name: "claims that wait", hash: "#NetworkPool%2Fteam-a%2Fservices", there: `document.querySelector('#waiting td')`},
	{name: "blocks", hash: large, there: `document.querySelector('#crumbs .here')?.textContent === 'all 131,072'`},
	{name: "a pool without a map", hash: "#GlobalNetworkPool%2F%2Fv6-hosts", there: `document.querySelector('#ranges td')`},
	{
		name: "search results", action: `document.querySelector('#q').value = 'edge-'; document.querySelector('#search').requestSubmit()`,
		there: `document.querySelector('#found td')`,
	},
}

// views visits every state of the page.
func (b *tab) views(url string, visit func(name string)) {
	b.Helper()
	for _, v := range everyView {
		if v.hash != "" {
			b.runActions(reloadPage(url + v.hash))
			b.until(`document.querySelector('#owners td')`)
		} else {
			b.runActions(chromedp.Evaluate(v.action, nil))
		}
		b.until(v.there)
		visit(v.name)
	}
}

// At the width of a phone nothing is wider than the screen, and touch opens blocks and reads cells.
func TestPhoneLayout(t *testing.T) {
	b := open(t, 390, 844)
	url, locked := serve(t, fleet.BusyFleet(), ""), serve(t, fleet.BusyFleet(), "secret")
	b.runActions(chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile, chromedp.EmulateTouch))
	fits := func(name string) {
		if wide := b.eval(`document.documentElement.scrollWidth`); b.eval(`document.documentElement.scrollWidth <= 390`) != "true" {
			b.Errorf("%s: it is %s wide, wider than the screen", name, wide)
		}
		b.shoot("phone-" + strings.ReplaceAll(name, " ", "-"))
	}
	b.views(url, fits)
	b.runActions(reloadPage(locked))
	b.until(`!document.querySelector('#login').hidden`)
	fits("login")

	b.step("the pool that is shown is seen in the list", func() {
		b.runActions(reloadPage(url + busy))
		b.until(drawn)
		if seen := b.eval(`(() => { const item = document.querySelector('#pools [aria-current]').getBoundingClientRect(), box = document.querySelector('#pools').getBoundingClientRect(); return item.top >= box.top && item.bottom <= box.bottom && scrollY === 0; })()`); seen != "true" {
			b.Error("it is not")
		}
	})
	b.step("by touch", func() {
		b.runActions(reloadPage(url + large))
		b.until(drawn + ` && document.querySelector('#crumbs .here').textContent === 'all 131,072'`)
		b.tapCell(1.5, 0.5, 16)
		b.until(`document.querySelector('#crumbs .here').textContent === '10.64.1.0/24'`)
		b.tapCell(3.5, 0.5, 16)
		b.until(`!document.querySelector('#tip').hidden && document.querySelector('#tip').innerText.includes('edge-000')`)
		fits("tip")
		b.runActions(chromedp.Click("#crumbs button"))
		b.until(`document.querySelector('#crumbs .here').textContent === 'all 131,072' && document.querySelector('#tip').hidden`)
	})
}

// tapCell touches a cell of the map, by column and row, in a map with the given number of columns.
func (b *tab) tapCell(column, row, columns float64) {
	b.Helper()
	var box struct{ X, Y, Width float64 }
	b.runActions(chromedp.ScrollIntoView("#map"), chromedp.Evaluate(`(() => { const r = document.querySelector('#map').getBoundingClientRect(); return {X: r.left, Y: r.top, Width: r.width}; })()`, &box))
	cell := box.Width / columns
	at := []*input.TouchPoint{{X: box.X + column*cell, Y: box.Y + row*cell}}
	b.runActions(chromedp.ActionFunc(func(ctx context.Context) error {
		if err := input.DispatchTouchEvent(input.TouchStart, at).Do(ctx); err != nil {
			return err
		}
		return input.DispatchTouchEvent(input.TouchEnd, []*input.TouchPoint{}).Do(ctx)
	}))
}

// The Tab key reaches everything, in the order of the page, and the element with the focus is visible.
func TestKeyboardNavigation(t *testing.T) {
	b := open(t, 1280, 900)
	url := serve(t, fleet.BusyFleet(), "")
	b.runActions(chromedp.Navigate(url + busy))
	b.until(drawn + ` && document.querySelector('#usage .u-over')`)

	b.step("in order", func() {
		want := []string{"skip", "q", "filter", "pools", "usage", "usage-table", "legend", "map", "map-table", "owners"}
		var got []string
		for range 60 {
			b.runActions(chromedp.KeyEvent(kb.Tab))
			at := b.eval(`(() => {
				const e = document.activeElement, style = getComputedStyle(e), box = e.getBoundingClientRect();
				const seen = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2 && box.width > 0 && box.bottom > 0 && box.top < innerHeight && box.left >= 0;
				return (e === document.body ? 'body' : (e.id || e.closest('[id]').id)) + (seen ? '' : ' unseen');
			})()`)
			if len(got) == 0 || got[len(got)-1] != at {
				got = append(got, at)
			}
			if at == want[len(want)-1] {
				break
			}
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			b.Errorf("Tab goes to %q, not %q", got, want)
		}
	})
	b.step("the skip link leads past the pools", func() {
		b.runActions(chromedp.Evaluate(`document.activeElement.blur()`, nil), chromedp.Focus("#skip"), chromedp.KeyEvent(kb.Enter))
		b.until(`document.activeElement.id === 'pool'`)
		b.runActions(chromedp.KeyEvent(kb.Tab))
		b.until(`document.activeElement.id === 'usage'`)
		if hash := b.eval(`location.hash`); hash != busy {
			b.Errorf("the address of the page is %s then", hash)
		}
	})
	b.step("a pool is chosen", func() {
		b.runActions(chromedp.Focus(`#pools a[href*="site"]`), chromedp.KeyEvent(kb.Enter))
		b.until(`document.querySelector('#pool-title').textContent === 'site' && document.activeElement.getAttribute('href').endsWith('site')`)
		b.until(`document.querySelector('#say').textContent === 'Pool site'`)
	})
	b.step("an address is searched, found, and shown", func() {
		b.runActions(chromedp.Focus("#q"), chromedp.KeyEvent("10.64.9.9"), chromedp.KeyEvent(kb.Enter))
		b.until(`document.querySelector('#found-title').textContent === '1 found for “10.64.9.9”' && document.querySelector('#say').textContent.startsWith('1 found')`)
		b.runActions(chromedp.Focus("#found td button"), chromedp.KeyEvent(kb.Enter))
		b.until(`document.activeElement.id === 'map' && document.querySelector('#readout').textContent.startsWith('10.64.9.9: ')`)
		b.runActions(chromedp.KeyEvent(kb.ArrowRight))
		b.until(`document.querySelector('#readout').textContent.startsWith('10.64.9.10: ')`)
	})
	b.step("what must not be is found", func() {
		b.runActions(chromedp.Navigate(url + busy))
		b.until(`document.querySelector('#pool-title').textContent === 'datacentre' && document.querySelector('.alarm')`)
		b.runActions(chromedp.Focus(".alarm ~ .alarm button"), chromedp.KeyEvent(kb.Enter))
		b.until(`document.activeElement.id === 'map' && document.querySelector('#readout').textContent.includes('10.40.12.0: held twice')`)
		b.runActions(chromedp.Navigate(url + large))
		b.until(`document.querySelector('#crumbs .here').textContent === 'all 131,072'`)
		b.runActions(chromedp.Focus("#map"), chromedp.KeyEvent(kb.End), chromedp.KeyEvent(kb.Enter))
		b.until(`document.querySelector('#crumbs .here').textContent === '10.65.255.0/24'`)
	})
	b.step("the way back keeps the focus", func() {
		b.runActions(chromedp.Focus("#crumbs button"), chromedp.KeyEvent(kb.Enter))
		b.until(`document.activeElement.id === 'map' && document.querySelector('#crumbs .here').textContent === 'all 131,072'`)
	})
	if c := b.complained(); len(c) > 0 {
		t.Errorf("the browser complains: %q", c)
	}
}

// axe-core reports no violation in any state of the page, light and dark, wide and narrow.
func TestNoAccessibilityViolations(t *testing.T) {
	axe := string(fromNPM(t, "axe-core/axe.min.js"))
	b := open(t, 1280, 900)
	url, locked := serve(t, fleet.BusyFleet(), ""), serve(t, fleet.BusyFleet(), "secret")
	check := func(name string) {
		var found string
		b.runActions(chromedp.Evaluate(axe+"; true", nil), chromedp.Evaluate(`axe.run().then((r) => r.violations.map((v) => v.impact + ' ' + v.id + ': ' + v.help + ': ' + v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160) + ' ' + n.failureSummary.slice(0, 300)).join(' and ')).join('\n'))`,
			&found, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
		if found != "" {
			b.Errorf("%s:\n%s", name, found)
		}
	}
	all := func(how string) {
		b.step(how, func() {
			b.views(url, check)
			b.runActions(reloadPage(locked))
			b.until(`!document.querySelector('#login').hidden`)
			check("login")
		})
	}
	all("light")
	b.runActions(dark())
	all("dark")
	b.runActions(chromedp.EmulateViewport(390, 844))
	all("dark, on a phone")
}
