package tenant

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
)

// notes are what the controller of tenants remembers between two looks. Nothing in them is needed for safety: a
// restart looks, waits and says once more.
type notes struct {
	mu sync.Mutex
	// seen is when a block was first seen to be let go of.
	seen map[types.UID]time.Time
	// leaving is when a block was first seen to be given up.
	leaving map[types.UID]time.Time
	// used is when a block that seemed to be idle was first seen to be in use.
	used map[types.UID]time.Time
	// emptied blocks have a pool of their own that serves nobody any more.
	emptied map[types.UID]struct{}
	// clusters that were looked at, each with its Services.
	clusters map[client.ObjectKey]*clusterNotes
}

type clusterNotes struct {
	// reported is what was said of Services, lacking since when they wait for growth, fitting since when they wait
	// for their load balancer; by namespace/name.
	reported         map[string]string
	lacking, fitting map[string]time.Time
}

func (n *notes) of(cluster client.ObjectKey) *clusterNotes {
	if n.clusters == nil {
		n.clusters = map[client.ObjectKey]*clusterNotes{}
	}
	if n.clusters[cluster] == nil {
		n.clusters[cluster] = &clusterNotes{reported: map[string]string{}}
	}
	return n.clusters[cluster]
}

func (n *notes) forget(cluster client.ObjectKey) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.clusters, cluster)
	metrics.ForgetTenant(cluster.Namespace, cluster.Name)
}

// letGoSince returns when a block was first seen to be let go of, without a doubt since.
func (n *notes) letGoSince(block types.UID, now time.Time) time.Time {
	return n.since(&n.seen, block, now)
}

// leavingSince returns when a block was first seen to be given up.
func (n *notes) leavingSince(block types.UID, now time.Time) time.Time {
	return n.since(&n.leaving, block, now)
}

// usedSince returns when a block that seems to be idle was first seen to be in use; unused notes that it is not.
func (n *notes) usedSince(block types.UID, now time.Time) time.Time {
	return n.since(&n.used, block, now)
}

func (n *notes) unused(block types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.used, block)
}

// since returns when a block was first noted, which is now if it was not.
func (n *notes) since(noted *map[types.UID]time.Time, block types.UID, now time.Time) time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	if *noted == nil {
		*noted = map[types.UID]time.Time{}
	}
	if _, before := (*noted)[block]; !before {
		(*noted)[block] = now
	}
	return (*noted)[block]
}

// doubt notes that a block may be in use after all; forgetBlock, that it is gone, or stays.
func (n *notes) doubt(block types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.seen, block)
}

func (n *notes) forgetBlock(block types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.seen, block)
	delete(n.leaving, block)
	delete(n.used, block)
	delete(n.emptied, block)
}

// isEmptied reports whether a block that has a pool of its own was seen to be of no use to anybody; setEmptied notes
// it.
func (n *notes) isEmptied(block types.UID) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, is := n.emptied[block]
	return is
}

func (n *notes) setEmptied(block types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.emptied == nil {
		n.emptied = map[types.UID]struct{}{}
	}
	n.emptied[block] = struct{}{}
}

// report notes what is said of a Service, and reports whether that is new.
func (n *notes) report(cluster client.ObjectKey, service, why string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	reported := n.of(cluster).reported
	if reported[service] == why {
		return false
	}
	reported[service] = why
	return true
}

// keepReported forgets what was said of Services that are not stuck any more, or are gone: a cluster may make and delete
// any number of them.
func (n *notes) keepReported(cluster client.ObjectKey, verdicts []elastic.Verdict) {
	stuck := map[string]struct{}{}
	for _, v := range verdicts {
		if v.State == elastic.Stuck {
			stuck[v.Service.Key()] = struct{}{}
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.of(cluster).reported, func(service, _ string) bool {
		_, still := stuck[service]
		return !still
	})
}

func (n *notes) unreport(cluster client.ObjectKey, service string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.of(cluster).reported, service)
}

// waiting notes which Services wait for growth, and returns how long those did that have an address now.
func (n *notes) waiting(cluster client.ObjectKey, verdicts []elastic.Verdict, now time.Time) (waited []time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.of(cluster)
	still := map[string]time.Time{}
	for _, v := range verdicts {
		since, before := c.lacking[v.Service.Key()]
		switch {
		case v.State == elastic.Placed && before:
			waited = append(waited, now.Sub(since))
		case v.State == elastic.Lacks && !before:
			still[v.Service.Key()] = now
		case before && (v.State == elastic.Lacks || v.State == elastic.Fits):
			still[v.Service.Key()] = since
		}
	}
	c.lacking = still
	return waited
}

// unplaced returns the Services that fit in what their Cluster has and have waited for the patience, and how long it is
// until there is another; 0: nobody waits.
func (n *notes) unplaced(cluster client.ObjectKey, verdicts []elastic.Verdict, patience time.Duration, now time.Time) (late []*elastic.Service, next time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.of(cluster)
	still := map[string]time.Time{}
	for _, v := range verdicts {
		if v.State != elastic.Fits {
			continue
		}
		since, before := c.fitting[v.Service.Key()]
		if !before {
			since = now
		}
		still[v.Service.Key()] = since
		if left := patience - now.Sub(since); left <= 0 {
			late = append(late, v.Service)
		} else if next == 0 || left < next {
			next = left
		}
	}
	c.fitting = still
	return late, next
}
