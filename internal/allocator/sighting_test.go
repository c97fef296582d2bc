package allocator

import (
	"context"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/workers"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

var noCluster = apierrors.NewNotFound(schema.GroupResource{}, "tenant")

// newAllocatorWithCluster returns an allocator whose reads of a Cluster return the given error, if any.
func newAllocatorWithCluster(cluster error) (*Allocator, *deleteCounter) {
	api := &deleteCounter{read: cluster}
	return New(Options{Client: api, Live: api, Recorder: events.NewFakeRecorder(9), Clock: clocktesting.NewFakeClock(grantstest.Noon)}), api
}

// TestUnseenClusterIsNotGone checks that a Cluster that was never seen does not count as gone: a platform may
// request the blocks of a Cluster before it creates the Cluster.
func TestUnseenClusterIsNotGone(t *testing.T) {
	tests := map[string]struct {
		published grants.OwnerSeen
		cluster   error
		// jobs read the Cluster live; toWrite reports whether the status does not show what was found.
		jobs    int
		toWrite bool
		reason  string
	}{
		"not seen, and absent":     {published: grants.OwnerNeverSeen, cluster: noCluster, reason: "it waits for its Cluster, at rest"},
		"not seen, and there":      {published: grants.OwnerNeverSeen, toWrite: true, reason: "from now on it can be gone"},
		"says nothing, and absent": {published: grants.OwnerUnknown, cluster: noCluster, toWrite: true, reason: "an earlier version has allocated it: unknown"},
		"says nothing, and there":  {published: grants.OwnerUnknown, toWrite: true, reason: "an earlier version has allocated it"},
		"seen, and there":          {published: grants.OwnerSeenAlive, reason: "at rest"},
		"seen, and absent":         {published: grants.OwnerSeenAlive, cluster: noCluster, jobs: 1, reason: "it may be an orphan"},
		"paused, and absent":       {published: grants.OwnerSeenPaused, cluster: noCluster, reason: "clusterctl may have moved it"},
		"paused, and there":        {published: grants.OwnerSeenPaused, toWrite: true, reason: "from now on it can be gone"},
		"unknown":                  {published: grants.OwnerNeverSeen, cluster: apierrors.NewTimeoutError("slow", 1), reason: "nothing follows from that"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a, api := newAllocatorWithCluster(tt.cluster)
			a.queue.workers = workers.New[pools.Key](0) // jobs are counted, not run
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
			p.Term.Holder = true
			c := grantstest.ObserveAllocation(p, "x", 4, grantstest.WithBlock("10.0.0.4/30"), grantstest.WithWrittenStatus(t, tt.published))
			a.owners.sweepOrphans(t.Context(), grants.NewPool(p), grantstest.Noon)
			if p.Queues.ActiveJobs != tt.jobs || len(api.fences) > 0 {
				t.Errorf("%s: %d jobs, %d deletes", tt.reason, p.Queues.ActiveJobs, len(api.fences))
			}
			if toWrite := p.Queues.ToWrite[c.Owner.UID] != nil; toWrite != tt.toWrite {
				t.Errorf("%s: to be written: %v", tt.reason, toWrite)
			}
			if wait := a.owners.sweepOrphans(t.Context(), grants.NewPool(p), grantstest.Noon.Add(time.Hour)); tt.toWrite != (wait == time.Millisecond) {
				t.Errorf("%s: it comes back after %v", tt.reason, wait)
			}
		})
	}
}

// TestAwaitedClusterIsLookedUpWhenItAppears checks that a Cluster is looked up at once when it appears at last.
func TestAwaitedClusterIsLookedUpWhenItAppears(t *testing.T) {
	a, api := newAllocatorWithCluster(noCluster)
	p := stateOfPool(a.pools.getOrCreatePool(grantstest.PoolKey))
	was := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
	p.Base.Pool, p.Space.Layout, p.Space.Ledger, p.Term.Holder = was.Base.Pool, was.Space.Layout, was.Space.Ledger, true
	c := grantstest.ObserveAllocation(p, "x", 4, grantstest.WithBlock("10.0.0.4/30"), grantstest.WithWrittenStatus(t, grants.OwnerNeverSeen))
	a.owners.sweepOrphans(t.Context(), grants.NewPool(p), grantstest.Noon)
	cluster := types.NamespacedName{Namespace: "team", Name: "prod"}
	if keys := a.PoolsWaitingForCluster(types.NamespacedName{Namespace: "team", Name: "other"}); len(keys) > 0 {
		t.Errorf("another Cluster wakes %v", keys)
	}
	api.read = nil
	if keys := a.PoolsWaitingForCluster(cluster); len(keys) != 1 {
		t.Fatalf("woken: %v", keys)
	}
	if a.owners.sweepOrphans(t.Context(), grants.NewPool(p), grantstest.Noon); p.Queues.ToWrite[c.Owner.UID] == nil {
		t.Error("nothing is written")
	}
}

// prod returns the Cluster of blocks with a written status.
func prod(change ...func(*clusterv1.Cluster)) *clusterv1.Cluster {
	c := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod"}}
	for _, f := range change {
		f(c)
	}
	return c
}

func pausedCluster(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) }
func markedCluster(c *clusterv1.Cluster) {
	c.Annotations = map[string]string{v1alpha1.DeleteForMoveAnnotation: ""}
}
func deletedCluster(c *clusterv1.Cluster) { c.DeletionTimestamp = &metav1.Time{Time: grantstest.Noon} }

// newServingAllocator returns an allocator that holds a pool, and sweeps it in an hour.
func newServingAllocator(t *testing.T, cluster error) (*Allocator, *grants.PoolState) {
	t.Helper()
	a, _ := newAllocatorWithCluster(cluster)
	p := stateOfPool(a.pools.getOrCreatePool(grantstest.PoolKey))
	was := grantstest.NewPool(t, "10.0.0.1-10.0.255.254")
	p.Base.Pool, p.Space.Layout, p.Space.Ledger, p.Term.Holder, p.Owners.NextSweep = was.Base.Pool, was.Space.Layout, was.Space.Ledger, true, grantstest.Noon.Add(time.Hour)
	return a, p
}

// TestPausedClusterIsNotGone checks that a pause of a Cluster that a watch shows is known before the end of the
// Cluster, and is written at once; an event of another Cluster has no effect.
func TestPausedClusterIsNotGone(t *testing.T) {
	a, p := newServingAllocator(t, noCluster)
	c := grantstest.ObserveAllocation(p, "x", 4, grantstest.WithBlock("10.0.0.4/30"), grantstest.WithWrittenStatus(t, grants.OwnerSeenAlive))
	if keys := a.ObserveCluster(prod(pausedCluster, func(o *clusterv1.Cluster) { o.Name = "other" }), false); len(keys) > 0 || c.ObservedOwnerSeen != grants.OwnerUnknown {
		t.Errorf("another Cluster wakes %v, and is taken for this one: %v", keys, c.ObservedOwnerSeen)
	}
	if keys := a.ObserveCluster(prod(pausedCluster), false); len(keys) != 1 || !p.Owners.NextSweep.IsZero() {
		t.Errorf("woken: %v, to look at %v", keys, p.Owners.NextSweep)
	}
	if p.Owners.RecordOwnerSeen(c, grants.OwnerNeverSeen); !c.NeedsOwnerPausedUpdate() || c.NeedsOwnerSeenUpdate() || c.NextOwnerSeen(c.ObservedOwnerSeen) != grants.OwnerSeenPaused {
		t.Errorf("found %v, to be published: %v, in another way: %v", c.ObservedOwnerSeen, c.NeedsOwnerPausedUpdate(), c.NeedsOwnerSeenUpdate())
	}
	if keys := a.ObserveCluster(prod(pausedCluster), false); len(keys) != 1 {
		t.Errorf("until it is on record: %v", keys)
	}
}

func TestOwnerSeenFromCluster(t *testing.T) {
	tests := map[string]struct {
		changes []func(*clusterv1.Cluster)
		ended   bool
		found   grants.OwnerSeen
	}{
		"runs":                      {found: grants.OwnerSeenAlive},
		"is being deleted":          {changes: []func(*clusterv1.Cluster){deletedCluster}, found: grants.OwnerSeenAlive},
		"has ended":                 {ended: true, found: grants.OwnerSeenAlive},
		"is paused":                 {changes: []func(*clusterv1.Cluster){pausedCluster}, found: grants.OwnerSeenPaused},
		"is marked for a move":      {changes: []func(*clusterv1.Cluster){markedCluster}, found: grants.OwnerSeenAlive},
		"is moved, and is unpaused": {changes: []func(*clusterv1.Cluster){markedCluster, deletedCluster}, found: grants.OwnerSeenPaused},
		"was moved, unpaused":       {changes: []func(*clusterv1.Cluster){markedCluster}, ended: true, found: grants.OwnerSeenPaused},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if found := ownerSeenFromCluster(prod(tt.changes...), tt.ended); found != tt.found {
				t.Errorf("found %v, not %v", found, tt.found)
			}
		})
	}
}

// TestPauseEnqueuesPoolUntilRecorded checks that each event of a paused Cluster enqueues its pool until the pause is on
// record, and not where nothing is written.
func TestPauseEnqueuesPoolUntilRecorded(t *testing.T) {
	tests := map[string]struct {
		block func(*v1alpha1.IPAllocation)
		pool  func(*grants.PoolState)
		wakes bool
	}{
		"served":                   {wakes: true},
		"paused itself":            {block: func(o *v1alpha1.IPAllocation) { o.Annotations[clusterv1.PausedAnnotation] = "" }},
		"without a record":         {block: func(o *v1alpha1.IPAllocation) { delete(o.Annotations, v1alpha1.AddressAnnotation) }},
		"being deleted":            {block: func(o *v1alpha1.IPAllocation) { o.DeletionTimestamp = &metav1.Time{Time: grantstest.Noon} }},
		"of another pool's holder": {pool: func(m *grants.PoolState) { m.Term.Holder = false }},
		"on record":                {block: func(o *v1alpha1.IPAllocation) { setSeen(o, metav1.ConditionUnknown) }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a, p := newServingAllocator(t, nil)
			grantstest.ObserveAllocation(p, "x", 4, grantstest.WithBlock("10.0.0.4/30"), grantstest.WithWrittenStatus(t, grants.OwnerSeenAlive), func(o *v1alpha1.IPAllocation) {
				if tt.block != nil {
					tt.block(o)
				}
			})
			if tt.pool != nil {
				tt.pool(p)
			}
			if keys := a.ObserveCluster(prod(pausedCluster), false); (len(keys) > 0) != tt.wakes {
				t.Errorf("woken: %v", keys)
			}
		})
	}
}

// setSeen sets in an allocation whether its Cluster was seen.
func setSeen(o *v1alpha1.IPAllocation, status metav1.ConditionStatus) {
	meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ClusterSeenCondition).Status = status
}

// TestResumedClusterIsReadAgain checks that a running Cluster is read again at once where it was paused.
// Otherwise its event proves nothing: it may be from before the IPAllocation, where the watch is behind.
func TestResumedClusterIsReadAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		published, found grants.OwnerSeen
		wakes            bool
	}{
		"not seen yet": {published: grants.OwnerNeverSeen},
		"seen":         {published: grants.OwnerSeenAlive},
		"paused":       {published: grants.OwnerSeenPaused, wakes: true},
	} {
		t.Run(name, func(t *testing.T) {
			a, p := newServingAllocator(t, nil)
			c := grantstest.ObserveAllocation(p, "x", 4, grantstest.WithBlock("10.0.0.4/30"), grantstest.WithWrittenStatus(t, tt.published))
			if keys := a.ObserveCluster(prod(), false); (len(keys) > 0) != tt.wakes || c.ObservedOwnerSeen != tt.found {
				t.Errorf("woken: %v, found %v", keys, c.ObservedOwnerSeen)
			}
		})
	}
}

// TestPauseIsRememberedBeforeStatusWrite checks a Cluster that was paused before it was on record that it was
// seen: it is gone, and its block waits for it, unless the write that records that it was seen was in progress.
func TestPauseIsRememberedBeforeStatusWrite(t *testing.T) {
	a, p := newServingAllocator(t, noCluster)
	a.queue.workers = workers.New[pools.Key](0)
	c := grantstest.ObserveAllocation(p, "x", 4, grantstest.WithBlock("10.0.0.4/30"), grantstest.WithWrittenStatus(t, grants.OwnerUnknown))
	a.ObserveCluster(prod(pausedCluster), false)
	if a.owners.sweepOrphans(t.Context(), grants.NewPool(p), grantstest.Noon.Add(2*time.Hour)); p.Queues.ToWrite[c.Owner.UID] == nil || c.NextOwnerSeen(c.ObservedOwnerSeen) != grants.OwnerNeverSeen {
		t.Errorf("it is to say %v", c.NextOwnerSeen(c.ObservedOwnerSeen))
	}
	c = grantstest.ObserveAllocation(p, "x", 4, grantstest.WithBlock("10.0.0.4/30"), grantstest.WithWrittenStatus(t, grants.OwnerSeenAlive), func(o *v1alpha1.IPAllocation) { o.ResourceVersion = "2" })
	if c.PublishedOwnerSeen != grants.OwnerSeenAlive || c.NextOwnerSeen(c.ObservedOwnerSeen) != grants.OwnerSeenPaused {
		t.Errorf("%v was published, and %v is to be published", c.PublishedOwnerSeen, c.NextOwnerSeen(c.ObservedOwnerSeen))
	}
}

// TestOlderObservationDoesNotOverwritePause checks a Cluster that another manager has seen paused since this one saw it
// run. It is gone, maybe moved.
func TestOlderObservationDoesNotOverwritePause(t *testing.T) {
	for name, before := range map[string]grants.OwnerSeen{"it was published meanwhile": grants.OwnerSeenAlive, "it was published before": grants.OwnerSeenPaused} {
		t.Run(name, func(t *testing.T) {
			a, p := newServingAllocator(t, noCluster)
			a.queue.workers, p.Owners.NextSweep = workers.New[pools.Key](0), grantstest.Noon
			grantstest.ObserveAllocation(p, "x", 4, grantstest.WithBlock("10.0.0.4/30"), grantstest.WithWrittenStatus(t, before)).ObservedOwnerSeen = grants.OwnerSeenAlive
			c := grantstest.ObserveAllocation(p, "x", 4, grantstest.WithBlock("10.0.0.4/30"), grantstest.WithWrittenStatus(t, grants.OwnerSeenPaused), func(o *v1alpha1.IPAllocation) { o.ResourceVersion = "2" })
			if before == grants.OwnerSeenAlive && p.Queues.ToWrite[c.Owner.UID] != nil {
				t.Error("it is to be written before it was looked for")
			}
			if a.owners.sweepOrphans(t.Context(), grants.NewPool(p), grantstest.Noon); p.Queues.ToWrite[c.Owner.UID] != nil || p.Queues.ActiveJobs > 0 {
				t.Errorf("it is to say %v, with %d jobs", c.NextOwnerSeen(c.ObservedOwnerSeen), p.Queues.ActiveJobs)
			}
		})
	}
}

// TestPausesAreWrittenInTurn checks that, when a move pauses all Clusters of a namespace at once, the statuses of their
// blocks are written in turn, and those that the API server refuses not all at once.
func TestPausesAreWrittenInTurn(t *testing.T) {
	a, p := newServingAllocator(t, nil)
	a.queue.workers = workers.New[pools.Key](0)
	const n = 2 * grants.MaxJobs
	for i := range n {
		block := fmt.Sprintf("10.0.%d.%d/30", i*4/256, i*4%256)
		grantstest.ObserveAllocation(p, fmt.Sprint("x", i), 4, grantstest.WithBlock(block), grantstest.WithWrittenStatus(t, grants.OwnerSeenAlive))
	}
	a.ObserveCluster(prod(pausedCluster), false)
	a.Client = pausedReader{a.Client}
	if a.owners.sweepOrphans(t.Context(), grants.NewPool(p), grantstest.Noon); p.Queues.ActiveJobs != grants.MaxJobs || !p.Owners.NextSweep.IsZero() {
		t.Errorf("%d jobs, and the next sweep is at %v", p.Queues.ActiveJobs, p.Owners.NextSweep)
	}
}

// pausedReader shows each Cluster paused.
type pausedReader struct{ client.Client }

func (pausedReader) Get(_ context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if c, ok := o.(*clusterv1.Cluster); ok {
		pausedCluster(c)
	}
	return nil
}

// TestUnwatchedClustersAreNotReported checks that a manager that sees only its own namespace reports nothing on the
// Clusters of others, which another manager may see.
func TestUnwatchedClustersAreNotReported(t *testing.T) {
	a, _ := newAllocatorWithCluster(noCluster)
	a.Namespace = "ns"
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
	c := grantstest.ObserveAllocation(p, "x", 4, grantstest.WithBlock("10.0.0.4/30"), grantstest.WithWrittenStatus(t, grants.OwnerUnknown))
	if found := a.lookups.newOwnerLookup(t.Context())(p.Base.Key, c); found != grants.OwnerUnknown {
		t.Errorf("found: %v", found)
	}
}
