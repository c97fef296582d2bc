// Package page opens the page of pools in a real browser, headless. The pools are fakes of package fleet;
// internal/page and test/integration test what a manager shows.
package page

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/page"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/fleet"
)

// artefacts is the directory of screenshots.
const artefacts = "../../bin/page"

// chromium returns the path of a browser: the one that CHROMIUM names, the one that `make chromium` unpacked, or an
// installed one.
func chromium(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("CHROMIUM"); path != "" {
		return path
	}
	if path, err := filepath.Abs("../../bin/chromium/chromium"); err == nil {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "headless_shell"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("no Chromium here: `make page-test` unpacks Debian's, or set CHROMIUM to the path of one")
	return ""
}

// editing is locked while pools that are shown are changed.
var editing sync.RWMutex

// serve shows pools as a manager does, and requires a token unless token is empty. It returns the URL of the page.
func serve(t *testing.T, pools fleet.Pools, token string) string {
	t.Helper()
	elected := make(chan struct{})
	close(elected)
	mux := http.NewServeMux()
	for path, handler := range (&page.Page{Pools: pools, History: pools, Elected: elected}).Handlers() {
		if _, open := handler.(page.Files); !open && token != "" {
			inner := handler
			handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Authorization") != "Bearer "+token {
					http.Error(w, "who are you?", http.StatusUnauthorized)
					return
				}
				inner.ServeHTTP(w, r)
			})
		}
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			editing.RLock()
			defer editing.RUnlock()
			handler.ServeHTTP(w, r)
		})
	}
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL + page.PagePath
}

// tab is a tab of a browser, with the errors that the browser reported.
type tab struct {
	*testing.T
	ctx        context.Context //nolint:containedctx // it is the tab, as chromedp has it
	mu         sync.Mutex
	complaints []string
}

// open starts a browser with an empty tab.
func open(t *testing.T, width, height int) *tab {
	t.Helper()
	// The other flags keep the browser from connecting to its vendor: a test uses loopback alone.
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(chromium(t)), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.WindowSize(width, height),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"), chromedp.WSURLReadTimeout(time.Minute))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 2*time.Minute)
	t.Cleanup(cancel)
	out := &tab{T: t, ctx: ctx}
	chromedp.ListenTarget(ctx, func(event any) {
		out.mu.Lock()
		defer out.mu.Unlock()
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			out.complaints = append(out.complaints, e.ExceptionDetails.Error())
		case *log.EventEntryAdded:
			if e.Entry.Level == log.LevelError && !strings.Contains(e.Entry.Text, "401") {
				out.complaints = append(out.complaints, e.Entry.Text)
			}
		}
	})
	out.runActions(log.Enable())
	return out
}

// step runs a subtest in the same tab.
func (b *tab) step(name string, f func()) {
	b.Helper()
	whole := b.T
	defer func() { b.T = whole }()
	whole.Run(name, func(t *testing.T) {
		b.T = t
		f()
	})
}

// runActions runs actions in order.
func (b *tab) runActions(actions ...chromedp.Action) {
	b.Helper()
	if err := chromedp.Run(b.ctx, actions...); err != nil {
		b.Fatal(err)
	}
}

// until waits for a condition in JavaScript.
func (b *tab) until(condition string) {
	b.Helper()
	err := chromedp.Run(b.ctx, chromedp.Poll("Boolean("+condition+")", nil, chromedp.WithPollingTimeout(30*time.Second)))
	if err != nil {
		b.Fatalf("it does not become true that %s: %v; complaints %q; the page says %q", condition, err, b.complained(), b.eval(`document.body.innerText`))
	}
}

// eval returns the value of an expression as text.
func (b *tab) eval(expression string) string {
	b.Helper()
	var out any
	b.runActions(chromedp.Evaluate(expression, &out))
	return fmt.Sprint(out)
}

func (b *tab) complained() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.complaints
}

// shoot saves a screenshot of the page.
func (b *tab) shoot(name string) {
	b.Helper()
	var png []byte
	b.runActions(chromedp.CaptureScreenshot(&png))
	if err := os.MkdirAll(artefacts, 0o755); err != nil {
		b.Fatal(err)
	}
	path, err := filepath.Abs(filepath.Join(artefacts, name+".png"))
	if err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(path, png, 0o600); err != nil {
		b.Fatal(err)
	}
	b.Log("screenshot:", path)
}

func dark() chromedp.Action {
	return emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}})
}

// reloadPage loads a page from its beginning. The browser would not reload a page whose URL differs in the fragment
// alone, and an explicit reload would end the pending waits.
func reloadPage(url string) chromedp.Action {
	return chromedp.Tasks{chromedp.Navigate("about:blank"), chromedp.Navigate(url)}
}
