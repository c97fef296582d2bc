package page

import (
	"context"
	"net/http"
	"net/netip"
	"strings"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// LeasesPath is the path at which programs, for example a bidding engine, query leases: usage, state, waiting and
// health.
const LeasesPath = "/leases/"

// LeasePoolSource provides the state of the pools that serve leases. *allocator.Allocator implements it.
type LeasePoolSource interface {
	WalkEntries(pool pools.Key, from netip.Addr, visit func(grants.TakenRange) bool)
	WalkWaiters(pool pools.Key, visit func(grants.WaitingClaimant) bool)
	LeaseUsage(namespace string) []grants.LeaseUsage
}

// LeaseAPI answers queries from memory: a query costs the API server nothing, and a lease that fails changes its own
// line of an answer alone.
type LeaseAPI struct {
	Pools LeasePoolSource
	// Elected is closed once this manager is the leader, or need not be.
	Elected <-chan struct{}
	// CheckReady returns an error that names the data that was not read yet; nil once all was read.
	CheckReady func(context.Context) error
}

// Handler serves LeasesPath. Until this manager has read its pools it answers 503 with the reason.
func (l *LeaseAPI) Handler() http.Handler {
	api := http.NewServeMux()
	for name, answer := range map[string]func(*http.Request) (any, error){
		"usage": l.handleUsage, "state": l.handleState, "waiting": l.handleWaiting, "health": l.handleHealth,
	} {
		api.HandleFunc("GET "+LeasesPath+name, func(w http.ResponseWriter, r *http.Request) {
			if err := l.requireReady(r.Context()); err != nil {
				writeReply(w, r, nil, err)
				return
			}
			reply, err := answer(r)
			writeReply(w, r, reply, err)
		})
	}
	return withSecurityHeaders(api)
}

// requireReady returns an error while the numbers would be those of a manager that has just started.
func (l *LeaseAPI) requireReady(ctx context.Context) error {
	select {
	case <-l.Elected:
	default:
		return requestError{http.StatusServiceUnavailable, "this manager does not lead; ask the one that does"}
	}
	if err := l.CheckReady(ctx); err != nil {
		return requestError{http.StatusServiceUnavailable, err.Error()}
	}
	return nil
}

// poolUsage counts the addresses of a pool for leases.
type poolUsage struct {
	Kind          string `json:"kind"`
	PoolNamespace string `json:"poolNamespace,omitempty"`
	Name          string `json:"name"`
	Total         int64  `json:"total"`
	InUse         int64  `json:"inUse"`
	Available     int64  `json:"available"`
	Cooling       int64  `json:"resting"`
	Waiting       int    `json:"waiting"`
	// Namespace is the usage of the namespace in the query.
	Namespace *namespaceUsage `json:"namespace,omitempty"`
}

type namespaceUsage struct {
	Name string `json:"name"`
	Used int64  `json:"used"`
	// Quota and Remaining are absent where the pool has no quota.
	Quota     *int32 `json:"quota,omitempty"`
	Remaining *int64 `json:"left,omitempty"`
}

// handleUsage returns the address counts of all pools that serve leases, or of those with a name, and the usage of a
// namespace.
func (l *LeaseAPI) handleUsage(r *http.Request) (any, error) {
	name, namespace := r.URL.Query().Get("pool"), r.URL.Query().Get("namespace")
	out := struct {
		Pools []poolUsage `json:"pools"`
	}{Pools: []poolUsage{}}
	for _, u := range l.Pools.LeaseUsage(namespace) {
		if !u.LeasesEnabled || (name != "" && name != u.Key.Name) {
			continue
		}
		p := poolUsage{
			Kind: u.Key.Kind, PoolNamespace: u.Key.Namespace, Name: u.Key.Name, Total: u.Counts.Total, InUse: u.Counts.Allocated, Available: u.Counts.Available,
			Cooling: u.CoolingAddresses, Waiting: u.WaitingLeases,
		}
		if namespace != "" {
			p.Namespace = &namespaceUsage{Name: namespace, Used: u.NamespaceUsed, Quota: u.NamespaceQuota}
			if u.NamespaceQuota != nil {
				left := max(0, int64(*u.NamespaceQuota)-u.NamespaceUsed)
				p.Namespace.Remaining = &left
			}
		}
		out.Pools = append(out.Pools, p)
	}
	if name != "" && len(out.Pools) == 0 {
		return nil, requestError{http.StatusNotFound, "there is no pool of this name that gives leases, or this manager does not know it"}
	}
	return out, nil
}

// leaseRow is a row of the lists of leases. Since is the creation time, in Unix seconds.
type leaseRow struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Pool      string `json:"pool"`
	Address   string `json:"address,omitempty"`
	// Ports lists the ports that Services have, as in "TCP/80 web".
	Ports   []string `json:"ports,omitempty"`
	Since   int64    `json:"since"`
	Reason  string   `json:"reason,omitempty"`
	Message string   `json:"message,omitempty"`
}

type leaseList struct {
	Leases []leaseRow `json:"leases"`
}

// handleState returns the leases that have an address, of all namespaces or of one.
func (l *LeaseAPI) handleState(r *http.Request) (any, error) {
	namespace, out := r.URL.Query().Get("namespace"), leaseList{Leases: []leaseRow{}}
	for _, u := range l.Pools.LeaseUsage("") {
		l.Pools.WalkEntries(u.Key, lowestAddress, func(e grants.TakenRange) bool {
			if e.Kind == v1alpha1.IPLeaseKind && (namespace == "" || namespace == e.Namespace) {
				out.Leases = append(out.Leases, leaseRow{Namespace: e.Namespace, Name: e.Name, Pool: poolName(u.Key), Address: e.Range.From().String(), Ports: e.Ports, Since: unixSeconds(e.Since)})
			}
			return true
		})
	}
	return out, nil
}

// handleWaiting returns the leases that have no address, with the reason.
func (l *LeaseAPI) handleWaiting(r *http.Request) (any, error) {
	namespace, out := r.URL.Query().Get("namespace"), leaseList{Leases: []leaseRow{}}
	for _, u := range l.Pools.LeaseUsage("") {
		l.Pools.WalkWaiters(u.Key, func(w grants.WaitingClaimant) bool {
			if w.Kind == v1alpha1.IPLeaseKind && (namespace == "" || namespace == w.Namespace) {
				out.Leases = append(out.Leases, leaseRow{Namespace: w.Namespace, Name: w.Name, Pool: poolName(u.Key), Since: unixSeconds(w.Since), Reason: w.Reason, Message: w.Message})
			}
			return true
		})
	}
	return out, nil
}

func (l *LeaseAPI) handleHealth(*http.Request) (any, error) {
	return map[string]string{"status": "ok"}, nil
}

// poolName returns the namespace and the name of a pool, or its name alone where it has no namespace.
func poolName(k pools.Key) string { return strings.TrimPrefix(k.Namespace+"/"+k.Name, "/") }
