package page

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/fleet"
)

// serve has pools shown by a manager that is the leader.
func serve(pools fleet.Pools) http.Handler {
	elected := make(chan struct{})
	close(elected)
	return serveAs(pools, elected)
}

func serveAs(pools fleet.Pools, elected <-chan struct{}) http.Handler {
	mux := http.NewServeMux()
	for path, handler := range (&Page{Pools: pools, History: pools, Elected: elected}).Handlers() {
		mux.Handle(path, handler)
	}
	return mux
}

// ask returns the answer to a GET.
func ask(tb testing.TB, h http.Handler, path string, headers ...string) *http.Response {
	tb.Helper()
	r := httptest.NewRequestWithContext(tb.Context(), http.MethodGet, path, http.NoBody)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

// told decodes an answer of the API.
func told[T any](t *testing.T, h http.Handler, name string, parameters url.Values) T {
	t.Helper()
	resp := ask(t, h, APIPath+name+"?"+parameters.Encode())
	defer resp.Body.Close()
	var out T
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		t.Fatalf("%s %v: %s %s", name, parameters, resp.Status, text)
	}
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

func of(p *fleet.Pool, more ...string) url.Values {
	v := url.Values{"pool": {idOf(p.Key)}}
	for i := 0; i < len(more); i += 2 {
		v.Set(more[i], more[i+1])
	}
	return v
}

func TestPools(t *testing.T) {
	type answer struct {
		Elected bool
		Pools   []pool
	}
	got := told[answer](t, serve(fleet.Fleet()), "pools", nil)
	if len(got.Pools) != 9 || !got.Elected {
		t.Fatalf("%+v", got)
	}
	want := pool{
		ID: "NetworkPool/team-a/services", Kind: "NetworkPool", Namespace: "team-a", Name: "services", Addresses: "192.0.2.64/26",
		Total: 64, Used: 64, Owners: 1, Waiting: 3, Holder: true, Ready: "True", ReadyReason: "Ready",
	}
	if d := cmp.Diff(want, got.Pools[2]); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if p := got.Pools[3]; p.Prefixes != 64 || p.Total != 4096 || p.ID != "GlobalNetworkPool//pod-prefixes" {
		t.Errorf("of a pool of prefixes: %+v", p)
	}
	if got := told[answer](t, serveAs(nil, make(chan struct{})), "pools", nil); got.Elected || got.Pools == nil {
		t.Errorf("of a manager that is not elected: %+v", got)
	}
}

func TestUsage(t *testing.T) {
	type answer struct {
		Since, Until int64
		Pools        map[string][]int64
	}
	made := fleet.Fleet()
	h := serve(made)
	all := told[answer](t, h, "usage", nil)
	one := told[answer](t, h, "usage", of(made[0]))
	short, long := all.Pools[idOf(made[0].Key)], one.Pools[idOf(made[0].Key)]
	if len(short) != 3*96 || len(long) != 3*400 || len(one.Pools) != 1 || all.Until-all.Since != 18*3600 {
		t.Fatalf("%d numbers of all, %d of one", len(short), len(long))
	}
	if d := cmp.Diff(long[len(long)-3:], short[len(short)-3:]); d != "" {
		t.Errorf("the last sample differs: %s", d)
	}
}

func TestOwners(t *testing.T) {
	p := fleet.MakePool("ns", "p", v1alpha1.NetworkPoolSpec{CIDR: "10.0.0.0/16"})
	p.Take("10.0.0.1", grants.Entry{Namespace: "ns", Name: "a", Cluster: "c"})
	p.Take("10.0.0.4/30", grants.Entry{Use: grants.UseNodes, Kind: "IPAllocation", Name: "b", Others: []string{"x"}})
	for i := range 300 {
		p.Take(fmt.Sprintf("10.0.%d.%d", 1+i/250, i%250), fleet.Claim("ns", "n"))
	}
	h := serve(fleet.Pools{p})
	got := told[list](t, h, "owners", of(p, "first", "10.0.0.0", "last", "10.0.0.255"))
	want := list{Owners: []owner{
		{Range: "10.0.0.1", First: "10.0.0.1", Use: "claim", Kind: "IPAddressClaim", Namespace: "ns", Name: "a", Cluster: "c", Since: fleet.Noon.Unix()},
		{Range: "10.0.0.4/30", First: "10.0.0.4", Use: "nodes", Kind: "IPAllocation", Name: "b", Since: fleet.Noon.Unix(), Others: []string{"x"}},
	}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if got := told[list](t, h, "owners", of(p, "first", "10.0.0.0", "last", "10.0.255.255")); len(got.Owners) != maxOwners || !got.More {
		t.Errorf("of many, %d are told, more: %t", len(got.Owners), got.More)
	}
	if got := told[list](t, h, "owners", of(p, "first", "10.0.9.0", "last", "10.0.9.9")); len(got.Owners) != 0 || got.Owners == nil {
		t.Errorf("of free addresses: %+v", got)
	}
}

func TestSearch(t *testing.T) {
	h := serve(fleet.Fleet())
	for q, want := range map[string]string{
		"10.64.0.2":           "NetworkPool/fleet/machines 10.64.0.2 claim edge-0000-worker-00000",
		"192.0.2.70":          "NetworkPool/team-a/services 192.0.2.64/26 loadbalancer default-shop-lb",
		"10.40.0.1":           "NetworkPool/default/datacentre 10.40.0.1 gateway ",
		"10.40.0.9":           "NetworkPool/default/datacentre 10.40.0.9 reserved ",
		"10.40.14.1":          "NetworkPool/default/datacentre 10.40.14.1 free ",
		"fd00:40:0:3::42":     "GlobalNetworkPool//pod-prefixes fd00:40:0:3::/64 claim pods-3",
		"::ffff:10.64.0.2":    "NetworkPool/fleet/machines 10.64.0.2 claim edge-0000-worker-00000",
		"EDGE-0000-worker-00": "100 of many",
		"fleet/edge-":         "200 of many, and more",
		"team-a/shop-md-0-2":  "NetworkPool/team-a/services  waiting shop-md-0-2",
		"10.99.0.1":           "",
		"nobody has this":     "",
	} {
		got := told[list](t, h, "search", url.Values{"q": {q}})
		var text []string
		for _, o := range got.Owners {
			text = append(text, fmt.Sprintf("%s %s %s %s", o.Pool, o.Range, o.Use, o.Name))
		}
		if got.More || len(text) > 50 {
			text = []string{fmt.Sprint(len(text), " of many")}
		}
		if got.More {
			text[0] += ", and more"
		}
		if d := cmp.Diff(want, strings.Join(text, "\n")); d != "" {
			t.Errorf("%s, -want +got:\n%s", q, d)
		}
	}
}

func TestWaiting(t *testing.T) {
	made := fleet.Fleet()
	got := told[list](t, serve(made), "waiting", of(made[2]))
	if len(got.Owners) != 3 || got.Owners[0].Reason != "PoolExhausted" || got.Owners[0].Use != "waiting" {
		t.Errorf("%+v", got)
	}
}

// The leases of a pool are told with who has them, what shows them, and a bounded number of their ports; then those that
// wait. Whatever else has addresses of the pool is left out.
func TestLeasesOfPool(t *testing.T) {
	made := fleet.Fleet()
	public := made[len(made)-1]
	public.Take("203.0.113.9", fleet.Claim("team-a", "machine")).Wait(grants.Waiter{Kind: "IPAddressClaim", Namespace: "team-a", Name: "late"})
	h := serve(made)
	got := told[list](t, h, "leases", of(public))
	var lines []string
	for _, o := range got.Owners {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s/%s %d+%d %s %s %t", o.Range, o.Namespace, o.Name, len(o.Ports), o.MorePorts, o.Announced, o.Reason, o.Deleting)))
	}
	want := []string{
		"203.0.113.1 team-a/shop 2+0 True Announced false",
		"203.0.113.2 team-a/mail 1+0 False NoHost false",
		"203.0.113.3 team-b/" + fleet.Markup + " 0+0   false",
		"203.0.113.4 team-b/old 1+0   true",
		"203.0.113.5 team-c/games 8+32   false",
		"team-a/third 0+0  QuotaExceeded false",
	}
	if d := cmp.Diff(want, lines); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if got := told[list](t, h, "leases", of(made[1])); len(got.Owners) != 0 || got.Owners == nil {
		t.Errorf("of a pool without leases: %+v", got)
	}
	if p := lineOf(public.View); !p.GivesLeases || p.Leases != 6 || p.LeaseQuota == nil || *p.LeaseQuota != 2 {
		t.Errorf("the list of pools says %+v", p)
	}
	for i := range 300 {
		public.Take(fmt.Sprintf("203.0.114.%d", i%256), grants.Entry{Use: grants.UseLease, Kind: "IPLease", Name: "l"})
	}
	if got := told[list](t, h, "leases", of(public)); len(got.Owners) != maxOwners || !got.More {
		t.Errorf("of many, %d are told, more: %t", len(got.Owners), got.More)
	}
}

func TestErrors(t *testing.T) {
	made := fleet.Fleet()
	h := serve(made)
	for path, want := range map[string]int{
		"map?pool=NetworkPool/no/where":  http.StatusNotFound,
		"usage?pool=":                    http.StatusNotFound,
		"waiting":                        http.StatusNotFound,
		"leases":                         http.StatusNotFound,
		"owners?" + of(made[0]).Encode(): http.StatusBadRequest,
		"owners?first=1.1.1.1&last=x&pool=NetworkPool": http.StatusNotFound,
		"search?q=a": http.StatusBadRequest,
		"search":     http.StatusBadRequest,
		"nothing":    http.StatusNotFound,
	} {
		resp := ask(t, h, APIPath+path)
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, Path, http.NoBody)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", w.Code)
	}
}

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

// What has not changed is not sent again, and what is long is sent compressed.
func TestReplies(t *testing.T) {
	made := fleet.Fleet()
	h := serve(made)
	path := APIPath + "map?" + of(made[0]).Encode()
	plain := ask(t, h, path)
	defer plain.Body.Close()
	want, err := io.ReadAll(plain.Body)
	if err != nil {
		t.Fatal(err)
	}
	packed := ask(t, h, path, "Accept-Encoding", "gzip")
	defer packed.Body.Close()
	z, err := gzip.NewReader(packed.Body)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(z)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("the compressed answer differs: %v", err)
	}
	tag := plain.Header.Get("ETag")
	again := ask(t, h, path, "If-None-Match", tag)
	defer again.Body.Close()
	if again.StatusCode != http.StatusNotModified {
		t.Errorf("asked again with %s: %s", tag, again.Status)
	}
	made[0].Take("10.40.14.200", fleet.Claim("ns", "late"))
	changed := ask(t, h, path, "If-None-Match", tag)
	defer changed.Body.Close()
	if changed.StatusCode != http.StatusOK {
		t.Errorf("asked again after a change: %s", changed.Status)
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
