package page

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/fleet"
)

// FuzzQuery checks that the answer to any query is JSON: the result or an error.
func FuzzQuery(f *testing.F) {
	made := fleet.BusyFleet()
	h := serve(made)
	for _, name := range []string{"pools", "usage", "map", "owners", "waiting", "leases", "search"} {
		f.Add(name, "pool="+url.QueryEscape(poolID(made[0].Key))+"&first=10.40.0.0&last=10.40.0.9&q=a&from=10.40.0.0&bits=24")
	}
	f.Add("owners", "first=::ffff:10.0.0.1&last=fe80::1%25eth0&pool=a/b/c/d")
	f.Add("search", "q=%00&q=;&%zz")
	f.Fuzz(func(t *testing.T, name, query string) {
		r := &url.URL{Path: APIPath + url.PathEscape(name), RawQuery: query}
		if strings.ContainsFunc(query, func(r rune) bool { return r <= ' ' || r > '~' || r == '#' }) {
			return // no client sends it
		}
		resp := getResponse(t, h, r.String())
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode >= http.StatusInternalServerError {
			t.Fatalf("%s: %s %s %v", r, resp.Status, text, err)
		}
		if resp.Header.Get("Content-Type") == "application/json" && !json.Valid(text) {
			t.Errorf("%s: %s", r, text)
		}
	})
}
