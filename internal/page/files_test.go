package page

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/fleet"
)

// TestSecurityHeaders checks that a browser runs nothing but the files of the page, and never takes data for a page.
func TestSecurityHeaders(t *testing.T) {
	h := serve(fleet.BusyFleet())
	for path, kind := range map[string]string{
		PagePath: "text/html", PagePath + "page.js": "text/javascript", PagePath + "page.css": "text/css", APIPath + "pools": "application/json",
		APIPath + "search?q=%3Cimg": "application/json", APIPath + "search?q=": "application/json",
	} {
		resp := getResponse(t, h, path)
		resp.Body.Close()
		if got := resp.Header.Get("Content-Type"); !strings.HasPrefix(got, kind) {
			t.Errorf("%s is %s", path, got)
		}
		if policy := resp.Header.Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'self';") || strings.Contains(policy, "unsafe") {
			t.Errorf("%s: %q", path, policy)
		}
		if resp.Header.Get("X-Content-Type-Options") != "nosniff" || resp.Header.Get("Cache-Control") == "" {
			t.Errorf("%s: %v", path, resp.Header)
		}
	}
	index, err := embeddedFiles.ReadFile("static/index.html")
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"<script>", "<style", "style=", "onclick", "http:", "https:"} {
		if strings.Contains(string(index), bad) {
			t.Errorf("index.html has %s", bad)
		}
	}
	scripts, err := fs.Glob(embeddedFiles, "static/*.js")
	if err != nil || len(scripts) == 0 {
		t.Fatal(scripts, err)
	}
	for _, name := range scripts {
		text, err := embeddedFiles.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{"innerHTML =", "innerHTML=", "outerHTML", "insertAdjacentHTML", "document.write", "eval("} {
			if strings.Contains(string(text), bad) {
				t.Errorf("%s has %s", name, bad)
			}
		}
	}
}

// body returns the body of an answer, decompressed.
func body(t *testing.T, resp *http.Response) []byte {
	t.Helper()
	defer resp.Body.Close()
	var r io.Reader = resp.Body
	if resp.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(r)
		if err != nil {
			t.Fatal(err)
		}
		r = z
	}
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestServeStaticFiles checks that files are compressed for clients that accept it, are not sent again to clients that
// have them, and that directories are not listed.
func TestServeStaticFiles(t *testing.T) {
	h := serve(fleet.Pools{})
	want, err := embeddedFiles.ReadFile("static/vendor/uPlot.iife.min.js")
	if err != nil {
		t.Fatal(err)
	}
	const path = PagePath + "vendor/uPlot.iife.min.js"
	for _, encoding := range []string{"", "gzip"} {
		resp := getResponse(t, h, path, "Accept-Encoding", encoding)
		if got := body(t, resp); !bytes.Equal(got, want) || resp.Header.Get("Content-Encoding") != encoding {
			t.Errorf("asked for %q, it is %q, the same: %t", encoding, resp.Header.Get("Content-Encoding"), bytes.Equal(got, want))
		}
		again := getResponse(t, h, path, "Accept-Encoding", encoding, "If-None-Match", resp.Header.Get("ETag"))
		again.Body.Close()
		if again.StatusCode != http.StatusNotModified {
			t.Errorf("asked again with %q: %s", encoding, again.Status)
		}
	}
	for _, path := range []string{PagePath + "vendor", PagePath + "vendor/", PagePath + "nothing.js", PagePath + "static/page.js"} {
		resp := getResponse(t, h, path)
		resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
}

// TestPageWeightIsBounded checks that the files a browser loads before it shows a pool are small.
func TestPageWeightIsBounded(t *testing.T) {
	h, sum := serve(fleet.Pools{}), 0
	for name := range newFiles().byPath {
		resp := getResponse(t, h, PagePath+name, "Accept-Encoding", "gzip")
		n, err := io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if name != "" && name != "vendor/LICENSE" {
			sum += int(n)
		}
	}
	t.Logf("all files of the page: %d bytes, compressed", sum)
	const limit = 60_000
	if sum > limit {
		t.Errorf("the files of the page have %d bytes, compressed; they are to have no more than %d", sum, limit)
	}
}

// TestOpenFiles checks that the files are public, and that the data behind them is filtered.
func TestOpenFiles(t *testing.T) {
	closed := func(*rest.Config, *http.Client) (server.Filter, error) {
		return func(logr.Logger, http.Handler) (http.Handler, error) { return http.NotFoundHandler(), nil }, nil
	}
	filter, err := AllowAnonymousFiles(closed)(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	for path, handler := range (&Page{Pools: fleet.Pools{}, History: fleet.Pools{}}).Handlers() {
		filtered, err := filter(logr.Discard(), handler)
		if err != nil {
			t.Fatal(err)
		}
		mux.Handle(path, filtered)
	}
	for path, want := range map[string]int{PagePath: http.StatusOK, PagePath + "map.js": http.StatusOK, APIPath + "pools": http.StatusNotFound, APIPath: http.StatusNotFound} {
		resp := getResponse(t, mux, path)
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
	if AllowAnonymousFiles(nil) != nil {
		t.Error("there is a filter where there was none")
	}
	broken := errors.New("broken")
	if _, err := AllowAnonymousFiles(func(*rest.Config, *http.Client) (server.Filter, error) { return nil, broken })(nil, nil); !errors.Is(err, broken) {
		t.Errorf("the error is %v", err)
	}
}
