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

// A browser runs nothing but the files of the page, and what is told is never taken for a page.
func TestGuards(t *testing.T) {
	h := serve(fleet.Fleet())
	for path, kind := range map[string]string{
		Path: "text/html", Path + "page.js": "text/javascript", Path + "page.css": "text/css", APIPath + "pools": "application/json",
		APIPath + "search?q=%3Cimg": "application/json", APIPath + "search?q=": "application/json",
	} {
		resp := ask(t, h, path)
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
	index, err := static.ReadFile("static/index.html")
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"<script>", "<style", "style=", "onclick", "http:", "https:"} {
		if strings.Contains(string(index), bad) {
			t.Errorf("index.html has %s", bad)
		}
	}
	scripts, err := fs.Glob(static, "static/*.js")
	if err != nil || len(scripts) == 0 {
		t.Fatal(scripts, err)
	}
	for _, name := range scripts {
		text, err := static.ReadFile(name)
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

// body is what was answered, unpacked.
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

// Files are sent compressed to who takes that, not again to who has them, and folders are not listed.
func TestFiles(t *testing.T) {
	h := serve(fleet.Pools{})
	want, err := static.ReadFile("static/vendor/uPlot.iife.min.js")
	if err != nil {
		t.Fatal(err)
	}
	const path = Path + "vendor/uPlot.iife.min.js"
	for _, encoding := range []string{"", "gzip"} {
		resp := ask(t, h, path, "Accept-Encoding", encoding)
		if got := body(t, resp); !bytes.Equal(got, want) || resp.Header.Get("Content-Encoding") != encoding {
			t.Errorf("asked for %q, it is %q, the same: %t", encoding, resp.Header.Get("Content-Encoding"), bytes.Equal(got, want))
		}
		again := ask(t, h, path, "Accept-Encoding", encoding, "If-None-Match", resp.Header.Get("ETag"))
		again.Body.Close()
		if again.StatusCode != http.StatusNotModified {
			t.Errorf("asked again with %q: %s", encoding, again.Status)
		}
	}
	for _, path := range []string{Path + "vendor", Path + "vendor/", Path + "nothing.js", Path + "static/page.js"} {
		resp := ask(t, h, path)
		resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
}

// What a browser loads before it shows a pool is small.
func TestWeight(t *testing.T) {
	h, sum := serve(fleet.Pools{}), 0
	for name := range files().all {
		resp := ask(t, h, Path+name, "Accept-Encoding", "gzip")
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

// The files are everybody's; what they show is behind the filter.
func TestOpenFiles(t *testing.T) {
	closed := func(*rest.Config, *http.Client) (server.Filter, error) {
		return func(logr.Logger, http.Handler) (http.Handler, error) { return http.NotFoundHandler(), nil }, nil
	}
	filter, err := OpenFiles(closed)(nil, nil)
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
	for path, want := range map[string]int{Path: http.StatusOK, Path + "map.js": http.StatusOK, APIPath + "pools": http.StatusNotFound, APIPath: http.StatusNotFound} {
		resp := ask(t, mux, path)
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
	if OpenFiles(nil) != nil {
		t.Error("there is a filter where there was none")
	}
	broken := errors.New("broken")
	if _, err := OpenFiles(func(*rest.Config, *http.Client) (server.Filter, error) { return nil, broken })(nil, nil); !errors.Is(err, broken) {
		t.Errorf("the error is %v", err)
	}
}
