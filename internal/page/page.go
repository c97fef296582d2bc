// Package page serves a page that shows pools: how full they are and were, who has which address, who waits.
//
// It reads and never writes. What it shows comes from the memory of the allocator, so a look costs the API
// server nothing. The names in it were chosen by tenants: they go out as JSON and are never made into markup.
package page

import (
	"net/http"
	"net/netip"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/usage"
)

const (
	// Path is where the page is.
	Path = "/pools/"
	// APIPath is where what it shows is.
	APIPath = Path + "api/"
)

// Pools is what the page shows. *allocator.Allocator implements it.
type Pools interface {
	Views() []grants.View
	Walk(pool pools.Key, from netip.Addr, visit func(grants.Entry) bool)
	Waiting(pool pools.Key, visit func(grants.Waiter) bool)
}

// History is how full pools were. *usage.History implements it.
type History interface {
	Span() (since, until time.Time)
	Of(pool pools.Key) []usage.Sample
}

// Page is what the handlers need.
type Page struct {
	Pools   Pools
	History History
	// Elected is closed when this manager is, or need not be, the leader. Before that it knows of no pool.
	Elected <-chan struct{}
}

// Handlers are what the page consists of, by path: its files, of type Files, and what it shows.
func (p *Page) Handlers() map[string]http.Handler {
	api := http.NewServeMux()
	for name, answer := range map[string]func(*http.Request) (any, error){
		"pools": p.pools, "usage": p.usage, "map": p.grid, "owners": p.owners, "waiting": p.waiting, "leases": p.leases, "families": p.families, "search": p.search,
	} {
		api.HandleFunc("GET "+APIPath+name, func(w http.ResponseWriter, r *http.Request) {
			what, err := answer(r)
			reply(w, r, what, err)
		})
	}
	return map[string]http.Handler{APIPath: guarded(api), Path: files()}
}

// guarded has browsers run nothing but the page's own files, whatever is in what they show.
func guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			http.Error(w, "only GET", http.StatusMethodNotAllowed)
			return
		}
		next.ServeHTTP(w, r)
	})
}
