package tenant

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
)

// stateTracker is what the controller of tenants remembers between two reconciles. None of it is needed for safety:
// after a restart the controller checks, waits and reports again.
type stateTracker struct {
	mu sync.Mutex
	// released is when a block was first seen to be released by its Cluster.
	released balancer.FirstSeen[types.UID]
	// draining is when a block was first seen to drain.
	draining balancer.FirstSeen[types.UID]
	// used is when a block that seemed to be idle was first seen to be in use.
	used balancer.FirstSeen[types.UID]
	// emptied are the blocks with a pool of their own that serves no Service any more.
	emptied map[types.UID]struct{}
	// services tracks the Services of each Cluster that was reconciled.
	services map[client.ObjectKey]*serviceTracker
}

type serviceTracker struct {
	// reportedMessages is what was reported on Services; awaitingGrowth is since when they wait for growth;
	// awaitingPlacement is since when they wait for their load balancer; all by namespace/name.
	reportedMessages                  map[string]string
	awaitingGrowth, awaitingPlacement map[string]time.Time
}

func (st *stateTracker) trackerForCluster(cluster client.ObjectKey) *serviceTracker {
	if st.services == nil {
		st.services = map[client.ObjectKey]*serviceTracker{}
	}
	if st.services[cluster] == nil {
		st.services[cluster] = &serviceTracker{reportedMessages: map[string]string{}}
	}
	return st.services[cluster]
}

func (st *stateTracker) forgetCluster(cluster client.ObjectKey) {
	st.mu.Lock()
	defer st.mu.Unlock()
	delete(st.services, cluster)
	metrics.DeleteTenantMetrics(cluster.Namespace, cluster.Name)
}

// confirmReleased records that a live read shows that a block is released, and returns how long it takes until another
// one can confirm it; the block is released if that is not positive. A block that drains gets no Services any more, so
// the first read counts until one shows, or may have shown, that the block is in use.
func (st *stateTracker) confirmReleased(block types.UID, began, ended time.Time) (wait time.Duration) {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.released.Confirm(block, began, ended)
}

// drainingSince returns when a block was first seen to drain.
func (st *stateTracker) drainingSince(block types.UID, now time.Time) time.Time {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.draining.Record(block, now)
}

// usedSince returns when a block that seems to be idle was first seen to be in use.
func (st *stateTracker) usedSince(block types.UID, now time.Time) time.Time {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.used.Record(block, now)
}

// markUnused records that a block is not in use.
func (st *stateTracker) markUnused(block types.UID) {
	st.mu.Lock()
	defer st.mu.Unlock()
	delete(st.used, block)
}

// resetReleased records that a block may be in use after all.
func (st *stateTracker) resetReleased(block types.UID) {
	st.mu.Lock()
	defer st.mu.Unlock()
	delete(st.released, block)
}

// forgetBlock removes what is recorded of a block that is gone, or that stays.
func (st *stateTracker) forgetBlock(block types.UID) {
	st.mu.Lock()
	defer st.mu.Unlock()
	delete(st.released, block)
	delete(st.draining, block)
	delete(st.used, block)
	delete(st.emptied, block)
}

// isEmptied reports whether the pool of a block that has its own was seen to serve no Service any more.
func (st *stateTracker) isEmptied(block types.UID) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	_, ok := st.emptied[block]
	return ok
}

// markEmptied records that the pool of a block serves no Service any more.
func (st *stateTracker) markEmptied(block types.UID) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.emptied == nil {
		st.emptied = map[types.UID]struct{}{}
	}
	st.emptied[block] = struct{}{}
}

// addReported records what is reported on a Service, and reports whether that is new.
func (st *stateTracker) addReported(cluster client.ObjectKey, service, why string) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	reported := st.trackerForCluster(cluster).reportedMessages
	if reported[service] == why {
		return false
	}
	reported[service] = why
	return true
}

// pruneReported forgets what was reported on Services that are not stuck any more, or are gone: a cluster may create
// and delete any number of them.
func (st *stateTracker) pruneReported(cluster client.ObjectKey, assessments []elastic.ServiceAssessment) {
	stuck := map[string]struct{}{}
	for _, v := range assessments {
		if v.State == elastic.ServiceStuck {
			stuck[v.Service.Key()] = struct{}{}
		}
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	maps.DeleteFunc(st.trackerForCluster(cluster).reportedMessages, func(service, _ string) bool {
		_, still := stuck[service]
		return !still
	})
}

func (st *stateTracker) removeReported(cluster client.ObjectKey, service string) {
	st.mu.Lock()
	defer st.mu.Unlock()
	delete(st.trackerForCluster(cluster).reportedMessages, service)
}

// trackGrowthWaits records which Services wait for growth, and returns how long those waited that have an address now.
func (st *stateTracker) trackGrowthWaits(cluster client.ObjectKey, assessments []elastic.ServiceAssessment, now time.Time) (waited []time.Duration) {
	st.mu.Lock()
	defer st.mu.Unlock()
	c := st.trackerForCluster(cluster)
	still := map[string]time.Time{}
	for _, v := range assessments {
		since, before := c.awaitingGrowth[v.Service.Key()]
		switch {
		case v.State == elastic.ServicePlaced && before:
			waited = append(waited, now.Sub(since))
		case v.State == elastic.ServiceNeedsGrowth && !before:
			still[v.Service.Key()] = now
		case before && (v.State == elastic.ServiceNeedsGrowth || v.State == elastic.ServicePlaceable):
			still[v.Service.Key()] = since
		}
	}
	c.awaitingGrowth = still
	return waited
}

// trackPlacementWaits returns the Services for which their Cluster has room and which have waited for patience or
// longer, and how long it takes until there is another one, 0 if no Service waits.
func (st *stateTracker) trackPlacementWaits(cluster client.ObjectKey, assessments []elastic.ServiceAssessment, patience time.Duration, now time.Time) (late []*elastic.Service, next time.Duration) {
	st.mu.Lock()
	defer st.mu.Unlock()
	c := st.trackerForCluster(cluster)
	still := map[string]time.Time{}
	for _, v := range assessments {
		if v.State != elastic.ServicePlaceable {
			continue
		}
		since, before := c.awaitingPlacement[v.Service.Key()]
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
	c.awaitingPlacement = still
	return late, next
}
