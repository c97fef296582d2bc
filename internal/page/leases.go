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

// LeasesPath is where programs ask what there is of leases, such as a bidding engine: usage, state, waiting and health.
const LeasesPath = "/leases/"

// LeasePools is what is known of the pools that give leases. *allocator.Allocator implements it.
type LeasePools interface {
	Walk(pool pools.Key, from netip.Addr, visit func(grants.Entry) bool)
	Waiting(pool pools.Key, visit func(grants.Waiter) bool)
	LeaseUsage(namespace string) []grants.LeaseUsage
}

// Leases answers from memory: a question costs the API server nothing, and one lease that fails changes no answer but its
// own line.
type Leases struct {
	Pools LeasePools
	// Elected is closed when this manager is, or need not be, the leader.
	Elected <-chan struct{}
	// Ready says what was not read yet; nil: all was.
	Ready func(context.Context) error
}

// Handler serves LeasesPath. Before this manager knows its pools it answers 503, and why.
func (l *Leases) Handler() http.Handler {
	api := http.NewServeMux()
	for name, answer := range map[string]func(*http.Request) (any, error){
		"usage": l.usage, "state": l.state, "waiting": l.waiting, "health": l.health,
	} {
		api.HandleFunc("GET "+LeasesPath+name, func(w http.ResponseWriter, r *http.Request) {
			if err := l.known(r.Context()); err != nil {
				reply(w, r, nil, err)
				return
			}
			what, err := answer(r)
			reply(w, r, what, err)
		})
	}
	return guarded(api)
}

// known is a problem while the numbers would be those of a manager that has just begun.
func (l *Leases) known(ctx context.Context) error {
	select {
	case <-l.Elected:
	default:
		return problem{http.StatusServiceUnavailable, "this manager does not lead; ask the one that does"}
	}
	if err := l.Ready(ctx); err != nil {
		return problem{http.StatusServiceUnavailable, err.Error()}
	}
	return nil
}

// poolUsage is how many addresses a pool has for leases.
type poolUsage struct {
	Kind          string `json:"kind"`
	PoolNamespace string `json:"poolNamespace,omitempty"`
	Name          string `json:"name"`
	Total         int64  `json:"total"`
	InUse         int64  `json:"inUse"`
	Available     int64  `json:"available"`
	Resting       int64  `json:"resting"`
	Waiting       int    `json:"waiting"`
	// Namespace is what the namespace has that was asked for.
	Namespace *namespaceUsage `json:"namespace,omitempty"`
}

type namespaceUsage struct {
	Name string `json:"name"`
	Used int64  `json:"used"`
	// Quota and Left are missing where the pool has none.
	Quota *int32 `json:"quota,omitempty"`
	Left  *int64 `json:"left,omitempty"`
}

// usage is how many addresses are left: of all pools that give leases, of those of a name, and what a namespace has.
func (l *Leases) usage(r *http.Request) (any, error) {
	name, namespace := r.URL.Query().Get("pool"), r.URL.Query().Get("namespace")
	out := struct {
		Pools []poolUsage `json:"pools"`
	}{Pools: []poolUsage{}}
	for _, u := range l.Pools.LeaseUsage(namespace) {
		if !u.Gives || (name != "" && name != u.Key.Name) {
			continue
		}
		p := poolUsage{
			Kind: u.Key.Kind, PoolNamespace: u.Key.Namespace, Name: u.Key.Name, Total: u.Counts.Total, InUse: u.Counts.Allocated, Available: u.Counts.Available,
			Resting: u.Resting, Waiting: u.Waiting,
		}
		if namespace != "" {
			p.Namespace = &namespaceUsage{Name: namespace, Used: u.Used, Quota: u.Quota}
			if u.Quota != nil {
				left := max(0, int64(*u.Quota)-u.Used)
				p.Namespace.Left = &left
			}
		}
		out.Pools = append(out.Pools, p)
	}
	if name != "" && len(out.Pools) == 0 {
		return nil, problem{http.StatusNotFound, "there is no pool of this name that gives leases, or this manager does not know it"}
	}
	return out, nil
}

// lease is a line of the lists of leases. Since is when it was created, in Unix time.
type lease struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Pool      string `json:"pool"`
	Address   string `json:"address,omitempty"`
	// Ports are those that Services have, as in "TCP/80 web".
	Ports   []string `json:"ports,omitempty"`
	Since   int64    `json:"since"`
	Reason  string   `json:"reason,omitempty"`
	Message string   `json:"message,omitempty"`
}

type leases struct {
	Leases []lease `json:"leases"`
}

// state lists the leases that have an address, of all namespaces or of one.
func (l *Leases) state(r *http.Request) (any, error) {
	namespace, out := r.URL.Query().Get("namespace"), leases{Leases: []lease{}}
	for _, u := range l.Pools.LeaseUsage("") {
		l.Pools.Walk(u.Key, lowest, func(e grants.Entry) bool {
			if e.Kind == v1alpha1.IPLeaseKind && (namespace == "" || namespace == e.Namespace) {
				out.Leases = append(out.Leases, lease{Namespace: e.Namespace, Name: e.Name, Pool: nameOf(u.Key), Address: e.Range.From().String(), Ports: e.Ports, Since: unix(e.Since)})
			}
			return true
		})
	}
	return out, nil
}

// waiting lists the leases that have no address, and why.
func (l *Leases) waiting(r *http.Request) (any, error) {
	namespace, out := r.URL.Query().Get("namespace"), leases{Leases: []lease{}}
	for _, u := range l.Pools.LeaseUsage("") {
		l.Pools.Waiting(u.Key, func(w grants.Waiter) bool {
			if w.Kind == v1alpha1.IPLeaseKind && (namespace == "" || namespace == w.Namespace) {
				out.Leases = append(out.Leases, lease{Namespace: w.Namespace, Name: w.Name, Pool: nameOf(u.Key), Since: unix(w.Since), Reason: w.Reason, Message: w.Message})
			}
			return true
		})
	}
	return out, nil
}

func (l *Leases) health(*http.Request) (any, error) {
	return map[string]string{"status": "ok"}, nil
}

// nameOf names a pool as its namespace and its name, or its name where it has no namespace.
func nameOf(k pools.Key) string { return strings.TrimPrefix(k.Namespace+"/"+k.Name, "/") }
