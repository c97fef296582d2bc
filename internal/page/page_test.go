package page

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/fleet"
)

// serve returns the handlers of a manager that is the leader and has these pools.
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

// getResponse returns the response to a GET.
func getResponse(tb testing.TB, h http.Handler, path string, headers ...string) *http.Response {
	tb.Helper()
	r := httptest.NewRequestWithContext(tb.Context(), http.MethodGet, path, http.NoBody)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

// getJSON decodes an answer of the API.
func getJSON[T any](t *testing.T, h http.Handler, name string, parameters url.Values) T {
	t.Helper()
	resp := getResponse(t, h, APIPath+name+"?"+parameters.Encode())
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

func poolQuery(p *fleet.Pool, more ...string) url.Values {
	v := url.Values{"pool": {poolID(p.Key)}}
	for i := 0; i < len(more); i += 2 {
		v.Set(more[i], more[i+1])
	}
	return v
}

func TestListPools(t *testing.T) {
	type answer struct {
		Elected bool
		Pools   []poolRow
	}
	got := getJSON[answer](t, serve(fleet.BusyFleet()), "pools", nil)
	if len(got.Pools) != 10 || !got.Elected {
		t.Fatalf("%+v", got)
	}
	want := poolRow{
		ID: "NetworkPool/team-a/services", Kind: "NetworkPool", Namespace: "team-a", Name: "services", Addresses: "192.0.2.64/26",
		Total: 64, Used: 64, Owners: 1, Waiting: 3, Severity: severityCritical, UsageSeverity: severityCritical, IsHolder: true, Ready: "True", ReadyReason: "Ready",
	}
	if d := cmp.Diff(want, got.Pools[2]); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if p := got.Pools[3]; p.Prefixes != 64 || p.Total != 4096 || p.ID != "GlobalNetworkPool//pod-prefixes" {
		t.Errorf("of a pool of prefixes: %+v", p)
	}
	if got := getJSON[answer](t, serveAs(nil, make(chan struct{})), "pools", nil); got.Elected || got.Pools == nil {
		t.Errorf("of a manager that is not elected: %+v", got)
	}
}

func TestUsageSamples(t *testing.T) {
	type answer struct {
		Since, Until int64
		Pools        map[string][]int64
	}
	made := fleet.BusyFleet()
	h := serve(made)
	all := getJSON[answer](t, h, "usage", nil)
	one := getJSON[answer](t, h, "usage", poolQuery(made[0]))
	short, long := all.Pools[poolID(made[0].Key)], one.Pools[poolID(made[0].Key)]
	if len(short) != 3*96 || len(long) != 3*400 || len(one.Pools) != 1 || all.Until-all.Since != 18*3600 {
		t.Fatalf("%d numbers of all, %d of one", len(short), len(long))
	}
	if d := cmp.Diff(long[len(long)-3:], short[len(short)-3:]); d != "" {
		t.Errorf("the last sample differs: %s", d)
	}
}

func TestSearchByAddressAndName(t *testing.T) {
	h := serve(fleet.BusyFleet())
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
		"no object has this":  "",
	} {
		got := getJSON[ownerList](t, h, "search", url.Values{"q": {q}})
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

func TestListWaitingClaims(t *testing.T) {
	made := fleet.BusyFleet()
	got := getJSON[ownerList](t, serve(made), "waiting", poolQuery(made[2]))
	if len(got.Owners) != 3 || got.Owners[0].Reason != "PoolExhausted" || got.Owners[0].Use != "waiting" {
		t.Errorf("%+v", got)
	}
}

func TestInvalidRequestsAreRefused(t *testing.T) {
	made := fleet.BusyFleet()
	h := serve(made)
	for path, want := range map[string]int{
		"map?pool=NetworkPool/no/where":         http.StatusNotFound,
		"usage?pool=":                           http.StatusNotFound,
		"waiting":                               http.StatusNotFound,
		"leases":                                http.StatusNotFound,
		"families":                              http.StatusNotFound,
		"owners?" + poolQuery(made[0]).Encode(): http.StatusBadRequest,
		"owners?first=1.1.1.1&last=x&pool=NetworkPool": http.StatusNotFound,
		"search?q=a": http.StatusBadRequest,
		"search":     http.StatusBadRequest,
		"nothing":    http.StatusNotFound,
	} {
		resp := getResponse(t, h, APIPath+path)
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, PagePath, http.NoBody)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", w.Code)
	}
}

// TestAnswersAreCachedAndCompressed checks that an unchanged answer is not sent again, and that a long one is
// compressed.
func TestAnswersAreCachedAndCompressed(t *testing.T) {
	made := fleet.BusyFleet()
	h := serve(made)
	path := APIPath + "map?" + poolQuery(made[0]).Encode()
	plain := getResponse(t, h, path)
	defer plain.Body.Close()
	want, err := io.ReadAll(plain.Body)
	if err != nil {
		t.Fatal(err)
	}
	packed := getResponse(t, h, path, "Accept-Encoding", "gzip")
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
	again := getResponse(t, h, path, "If-None-Match", tag)
	defer again.Body.Close()
	if again.StatusCode != http.StatusNotModified {
		t.Errorf("asked again with %s: %s", tag, again.Status)
	}
	made[0].AddEntry("10.40.14.200", fleet.ClaimEntry("ns", "late"))
	changed := getResponse(t, h, path, "If-None-Match", tag)
	defer changed.Body.Close()
	if changed.StatusCode != http.StatusOK {
		t.Errorf("asked again after a change: %s", changed.Status)
	}
}
