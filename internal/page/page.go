// Package page serves a web page of pools: their usage now and before, the holders of addresses, and the claimants that
// wait.
//
// It reads and never writes. Its data comes from the memory of the allocator, so a request costs the API server
// nothing. Tenants chose the names in it: they are sent as JSON and never become markup.
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
	// PagePath is the path of the page.
	PagePath = "/pools/"
	// APIPath is the path of its data.
	APIPath = PagePath + "api/"
)

// PoolSource provides the pools of the page. *allocator.Allocator implements it.
type PoolSource interface {
	PoolViews() []grants.PoolView
	WalkEntries(pool pools.Key, from netip.Addr, visit func(grants.TakenRange) bool)
	WalkWaiters(pool pools.Key, visit func(grants.WaitingClaimant) bool)
}

// UsageHistory provides the past usage of pools. *usage.History implements it.
type UsageHistory interface {
	TimeSpan() (since, until time.Time)
	SamplesForPool(pool pools.Key) []usage.Sample
}

// Page is the input of the handlers.
type Page struct {
	Pools   PoolSource
	History UsageHistory
	// Elected is closed once this manager is the leader, or need not be. Before that it knows no pool.
	Elected <-chan struct{}
}

// withSecurityHeaders sets headers by which browsers run nothing but the page's own files, whatever is in the data.
func withSecurityHeaders(next http.Handler) http.Handler {
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
