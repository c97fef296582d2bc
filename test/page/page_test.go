package page

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/fleet"
)

const (
	busy  = "#NetworkPool%2Fdefault%2Fdatacentre"
	large = "#NetworkPool%2Ffleet%2Fmachines"
	// drawn is the condition that the map has been painted, and the table below it is filled.
	drawn = `performance.getEntriesByName('map').length && document.querySelector('#owners td')`
)

func TestPageShowsPools(t *testing.T) {
	b := open(t, 1440, 1000)
	url := serve(t, fleet.BusyFleet(), "")
	b.runActions(chromedp.Navigate(url + busy))
	b.until(drawn)
	b.shoot("pool")

	b.step("the pools are listed, those in trouble first", func() {
		names := b.eval(`[...document.querySelectorAll('#pools .name')].map((e) => e.textContent).join(' ')`)
		if names != "team-a/services public v6-hosts fleet/machines site team-a/machines team-b/machines default/datacentre fleet/machines-v6 pod-prefixes" {
			b.Errorf("they are %s", names)
		}
	})
	b.step("what is carved from a pool is below it, and in its map", func() {
		below := b.eval(`[...document.querySelectorAll('#pools .below .name')].map((e) => e.textContent).join(' ')`)
		if below != "team-a/machines team-b/machines" {
			b.Errorf("below another are %s", below)
		}
		b.runActions(reloadPage(url + "#GlobalNetworkPool%2F%2Fsite"))
		b.until(`document.querySelector('#legend')?.innerText.replace(/\s+/g, ' ').includes('carved pool 192') && document.querySelector('#owners').innerText.includes('team-b/machines-1')`)
		b.until(`document.querySelector('#family').innerText.replace(/\s+/g, ' ').includes('└ team-a/machines 91 of 128 (71 %) 37 10.48.0.0/25')`)
		b.shoot("carved")
		b.runActions(reloadPage(url + "#NetworkPool%2Fteam-b%2Fmachines"))
		b.until(`document.querySelector('#head').innerText.includes('carved from site')`)
		if rows := b.eval(`[...document.querySelectorAll('#family td.tree')].map((e) => e.innerText).join(', ')`); rows != "site, └ team-b/machines" {
			b.Errorf("the child shows %s", rows)
		}
		b.runActions(chromedp.Evaluate(`document.querySelector('#family a').click()`, nil))
		b.until(`document.querySelector('#pool-title').textContent === 'site'`)
	})
	b.step("pools of both families are side by side", func() { // U81
		b.runActions(reloadPage(url + large))
		b.until(`document.querySelector('#families').innerText.replace(/\s+/g, ' ').includes('fleet/machines-v6 250 of 65,535 (0.4 %) 65,285 free')`)
		b.eval(`document.querySelector('#families-card').scrollIntoView()`)
		b.shoot("families")
		b.runActions(chromedp.Evaluate(`document.querySelector('#families a').click()`, nil))
		b.until(`document.querySelector('#pool-title').textContent === 'machines-v6' && document.querySelector('#families b')?.textContent === 'fleet/machines-v6'`)
		b.runActions(reloadPage(url + "#GlobalNetworkPool%2F%2Fsite"))
		b.until(`document.querySelector('#pool-title')?.textContent === 'site' && document.querySelector('#families-card').hidden`)
	})
	b.step("leases are listed with who has them, their Services, and how they are", func() {
		b.runActions(reloadPage(url + "#GlobalNetworkPool%2F%2Fpublic"))
		b.until(`document.querySelectorAll('#leases tbody tr').length === 6`)
		text := b.eval(`document.querySelector('#leases-card').innerText.replace(/\s+/g, ' ')`)
		for _, want := range []string{
			"Quota: 2 for each namespace.", "203.0.113.1 team-a shop TCP/80 web UDP/53 dns announced host edge-1 has the address",
			"203.0.113.2 team-a mail TCP/25 smtp not announced NoHost: no host that lives", "team-b " + fleet.MarkupName + " – has no Service",
			"203.0.113.4 team-b old TCP/443 web being deleted", "TCP/7007 game-07 and 32 more has a Service", "– team-a third – no address QuotaExceeded: ",
		} {
			if !strings.Contains(text, want) {
				b.Errorf("%q is not in %s", want, text)
			}
		}
		b.shoot("leases")
		b.runActions(chromedp.Evaluate(`document.querySelector('#leases td button').click()`, nil))
		b.until(`document.querySelector('#readout').textContent.includes('team-a/shop')`)
	})
	b.step("what tenants chose is text", func() {
		search(b, "<img")
		b.until(`document.querySelector('#found td')`)
		if text := b.eval(`document.querySelector('#found').innerText`); !strings.Contains(text, fleet.MarkupName) {
			b.Errorf("the search does not find it: %s", text)
		}
		b.runActions(chromedp.Evaluate(`document.querySelector('#found td button').click()`, nil))
		b.until(`document.querySelector('#readout').textContent.includes('onerror')`)
		if n := b.eval(`document.querySelectorAll('img').length + document.title`); n != "0default/datacentre – Butler: address pools" {
			b.Errorf("markup of a name became an element: %s", n)
		}
	})
	b.step("a search finds an address, a claim and a cluster", func() {
		for q, want := range map[string]string{
			"10.40.12.0": "held twice", "10.64.9.9": "edge-", "worker-00077": "edge-0000-worker-00077", "edge-0420": "edge-0420-worker-42000",
			"10.40.0.1": "gateway", "10.40.13.7": "free", "shop-md-0-1": "PoolExhausted", "198.51.100.1": "No pool has this address", "203.0.113.5": "and 32 more",
		} {
			search(b, q)
			b.until(`document.querySelector('#found').innerText.includes(` + quoted(want) + `)`)
		}
		search(b, "")
		b.until(`document.querySelector('#found').hidden`)
	})
	b.step("the keyboard is enough", func() {
		b.runActions(reloadPage(url + large))
		b.until(drawn + ` && document.querySelector('#crumbs .here').textContent === 'all 131,072'`)
		b.runActions(chromedp.Focus("#map"), chromedp.KeyEvent(kb.ArrowRight), chromedp.KeyEvent(kb.ArrowRight))
		b.until(`document.querySelector('#readout').textContent.startsWith('10.64.1.0/24: ')`)
		b.runActions(chromedp.KeyEvent(kb.Enter))
		b.until(`document.querySelector('#crumbs .here').textContent === '10.64.1.0/24'`)
		b.runActions(chromedp.KeyEvent(kb.ArrowDown))
		b.until(`document.querySelector('#readout').textContent.includes('edge-000')`)
		b.runActions(chromedp.KeyEvent(kb.Escape))
		b.until(`document.querySelector('#crumbs .here').textContent === 'all 131,072'`)
	})
	b.step("a pool of prefixes and one too large for a map", func() {
		b.runActions(reloadPage(url + "#GlobalNetworkPool%2F%2Fpod-prefixes"))
		b.until(`document.querySelector('#owners')?.innerText.includes('fd00:40:0:8::/64')`)
		b.runActions(reloadPage(url + "#GlobalNetworkPool%2F%2Fv6-hosts"))
		b.until(`document.querySelector('#ranges').innerText.includes('fd00:41::1-fd00:41::9') && document.querySelector('#owners').innerText.includes('default/hosts')`)
		b.shoot("too-large")
	})
	b.step("in the dark", func() {
		b.runActions(dark(), reloadPage(url+"#NetworkPool%2Fteam-a%2Fservices"))
		b.until(drawn)
		b.shoot("dark")
	})
	if c := b.complained(); len(c) > 0 {
		t.Errorf("the browser complains: %q", c)
	}
}

// The focused part stays in place while the page refreshes itself, and changes appear.
func TestRefreshKeepsFocus(t *testing.T) {
	b := open(t, 1200, 900)
	pools := fleet.BusyFleet()
	url := serve(t, pools, "")
	b.runActions(chromedp.Navigate(url + large))
	b.until(drawn)
	b.runActions(chromedp.Focus("#map"), chromedp.KeyEvent(kb.ArrowRight), chromedp.KeyEvent(kb.Enter))
	b.until(`document.querySelector('#crumbs .here').textContent === '10.64.0.0/24'`)
	before := b.eval(`performance.getEntriesByName('map').length`)
	b.until(`performance.getEntriesByType('resource').filter((e) => e.name.includes('api/map')).length > 2`)
	if after := b.eval(`performance.getEntriesByName('map').length`); after != before {
		t.Errorf("nothing changed, and the map was painted %s times instead of %s", after, before)
	}
	editing.Lock()
	pools[1].AddEntry("10.65.255.9", fleet.ClaimEntry("fleet", "late"))
	editing.Unlock()
	b.until(`performance.getEntriesByName('map').length > ` + before)
	if here := b.eval(`document.querySelector('#crumbs .here').textContent`); here != "10.64.0.0/24" {
		t.Errorf("it shows %s then", here)
	}
}

func TestTokenLogin(t *testing.T) {
	b := open(t, 1200, 900)
	b.runActions(chromedp.Navigate(serve(t, fleet.BusyFleet(), "secret")))
	b.until(`!document.querySelector('#login').hidden && document.querySelector('#layout').hidden`)
	b.shoot("token")
	b.runActions(chromedp.SendKeys("#token", "secret"), chromedp.Click("#login button"))
	b.until(drawn + ` && document.querySelector('#login').hidden`)
	if c := b.complained(); len(c) > 0 {
		t.Errorf("the browser complains: %q", c)
	}
}

// Measures how long it takes until 100,000 addresses are visible, and how long painting the map takes.
func TestLargePoolPaintTime(t *testing.T) {
	b := open(t, 1440, 1000)
	start := time.Now()
	b.runActions(chromedp.Navigate(serve(t, fleet.BusyFleet(), "") + large))
	b.until(drawn)
	whole := time.Since(start)
	var figures struct{ Paint, Drawn, Draw, Bytes float64 }
	text := b.eval(`JSON.stringify({
		paint: performance.getEntriesByName('first-contentful-paint')[0]?.startTime,
		drawn: performance.getEntriesByName('map')[0].startTime + performance.getEntriesByName('map')[0].duration,
		draw: performance.getEntriesByName('map')[0].duration,
		bytes: performance.getEntriesByType('resource').find((e) => e.name.includes('api/map')).encodedBodySize,
	})`)
	if err := json.Unmarshal([]byte(text), &figures); err != nil {
		t.Fatal(err)
	}
	t.Logf("100,000 addresses in use: first paint after %.0f ms, map seen after %.0f ms, painted in %.1f ms, %.0f bytes of map; %s with the start of the browser",
		figures.Paint, figures.Drawn, figures.Draw, figures.Bytes, whole.Round(time.Millisecond))
	// The bound is for a busy machine: an idle one needs a tenth.
	if figures.Drawn > 5000 {
		t.Errorf("the map of 100,000 addresses is seen after %.0f ms", figures.Drawn)
	}
	b.shoot("large")
}

func search(b *tab, q string) {
	b.Helper()
	b.runActions(chromedp.Evaluate(`document.querySelector('#q').value = `+quoted(q)+`; document.querySelector('#search').requestSubmit()`, nil))
}

func quoted(text string) string {
	out, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	return string(out)
}
