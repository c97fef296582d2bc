package page

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/fleet"
)

// freezeClock sets the clock of the browser to the time of the pools, so that a repeated screenshot is the same.
func (b *tab) freezeClock() {
	b.Helper()
	const clock = `{ const began = performance.now(), noon = Date.UTC(2026, 10, 2, 12); Date.now = () => noon + Math.floor((performance.now() - began) / 1e9); }`
	b.runActions(emulation.SetTimezoneOverride("UTC"), chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := page.AddScriptToEvaluateOnNewDocument(clock).Do(ctx)
		return err
	}))
}

// The screenshots of README.md and docs/page.md: `make page-images` copies them there.
func TestDocumentationScreenshots(t *testing.T) {
	healthy, faulty := serve(t, fleet.HealthyFleet(), ""), serve(t, fleet.BusyFleet(), "")
	b := open(t, 1280, 960)
	if err := os.MkdirAll(filepath.Join(artefacts, "docs"), 0o755); err != nil {
		t.Fatal(err)
	}
	b.freezeClock()
	b.runActions(chromedp.EmulateViewport(1280, 938, chromedp.EmulateScale(1.5)))

	b.step("README.md: a site where all is well", func() {
		b.runActions(chromedp.Navigate(healthy + "#GlobalNetworkPool%2F%2Fdatacentre"))
		b.until(drawn + ` && document.querySelector('#usage .u-over') && document.querySelectorAll('#pools .spark').length === 7`)
		if bad := b.eval(`document.querySelectorAll('#layout .bad, .alarm, #notice:not([hidden])').length`); bad != "0" {
			b.Errorf("%s places say that something is wrong", bad)
		}
		b.shoot("docs/page")
	})
	b.runActions(chromedp.EmulateViewport(1280, 960))
	b.step("docs/page.md: leases", func() {
		b.runActions(reloadPage(healthy + "#GlobalNetworkPool%2F%2Fpublic"))
		b.until(drawn + ` && document.querySelector('#leases td')`)
		b.runActions(chromedp.Evaluate(`document.querySelector('#leases-card').scrollIntoView({ block: 'end' })`, nil))
		b.shoot("docs/page-leases")
	})
	b.step("docs/page.md: what is wrong", func() {
		b.runActions(reloadPage(faulty + busy))
		b.until(drawn + ` && document.querySelector('.alarm')`)
		search(b, "10.40.12.0")
		b.until(`document.querySelector('#found td button')`)
		b.runActions(chromedp.Click("#found td button"))
		b.until(`document.querySelector('#tip').innerText.includes('also held by')`)
		b.runActions(chromedp.Evaluate(`scrollTo(0, document.querySelector('#map').closest('section').offsetTop - 70)`, nil))
		b.shoot("docs/page-faults")
	})
	b.step("docs/page.md: on a phone", func() {
		b.runActions(chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile, chromedp.EmulateTouch, chromedp.EmulateScale(2)), reloadPage(healthy+"#GlobalNetworkPool%2F%2Fdatacentre"))
		b.until(drawn + ` && document.querySelector('#usage .u-over')`)
		b.runActions(chromedp.Evaluate(`document.querySelector('#usage').closest('section').scrollIntoView()`, nil))
		b.shoot("docs/page-phone")
	})
	if c := b.complained(); len(c) > 0 {
		t.Errorf("the browser complains: %q", c)
	}
}
