package allocator

import (
	"context"
	"encoding/json"
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
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/blocks"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/workers"
)

var noCluster = apierrors.NewNotFound(schema.GroupResource{}, "tenant")

// looker returns an allocator whose reads of a Cluster have an outcome.
func looker(cluster error) (*Allocator, *deletes) {
	api := &deletes{read: cluster}
	return New(Options{Client: api, Live: api, Recorder: events.NewFakeRecorder(9), Clock: clocktesting.NewFakeClock(noon)}), api
}

// written has an allocation say what the allocator would write of it.
func written(t *testing.T, says grants.Sighting) func(*v1alpha1.IPAllocation) {
	t.Helper()
	return func(o *v1alpha1.IPAllocation) {
		o.Spec.TenantClusterRef = v1alpha1.ClusterReference{Namespace: "team", Name: "prod"}
		c := blocks.Of(o)
		text, err := json.Marshal(blocks.AllocatedBlock(c, c.Record, "", says, noon).Status)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &o.Status); err != nil {
			t.Fatal(err)
		}
	}
}

// A platform may ask for the blocks of a Cluster before it makes the Cluster: what was never seen is not gone.
func TestOnlyAClusterThatWasSeenCanBeGone(t *testing.T) {
	tests := map[string]struct {
		said    grants.Sighting
		cluster error
		// jobs look for the Cluster live; owes: the status does not say what was found.
		jobs   int
		owes   bool
		reason string
	}{
		"not seen, and absent":     {said: grants.Unseen, cluster: noCluster, reason: "it waits for its Cluster, at rest"},
		"not seen, and there":      {said: grants.Unseen, owes: true, reason: "from now on it can be gone"},
		"says nothing, and absent": {said: grants.Unlooked, cluster: noCluster, owes: true, reason: "an earlier version has allocated it: nobody knows"},
		"says nothing, and there":  {said: grants.Unlooked, owes: true, reason: "an earlier version has allocated it"},
		"seen, and there":          {said: grants.Seen, reason: "at rest"},
		"seen, and absent":         {said: grants.Seen, cluster: noCluster, jobs: 1, reason: "it may be an orphan"},
		"paused, and absent":       {said: grants.Paused, cluster: noCluster, reason: "clusterctl may have moved it"},
		"paused, and there":        {said: grants.Paused, owes: true, reason: "from now on it can be gone"},
		"nobody knows":             {said: grants.Unseen, cluster: apierrors.NewTimeoutError("slow", 1), reason: "nothing follows from that"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a, api := looker(tt.cluster)
			a.workers = workers.New[pools.Key](0) // jobs are counted, not run
			p := aPool(t, "10.0.0.1-10.0.0.9")
			p.Holder = true
			c := seeBlock(p, "x", 4, has("10.0.0.4/30"), written(t, tt.said))
			a.sweep(t.Context(), grants.PoolOf(p), noon)
			if p.Jobs != tt.jobs || len(api.fences) > 0 {
				t.Errorf("%s: %d jobs, %d deletes", tt.reason, p.Jobs, len(api.fences))
			}
			if owes := p.Todo[c.Owner.UID] != nil; owes != tt.owes {
				t.Errorf("%s: to be written: %v", tt.reason, owes)
			}
			if wait := a.sweep(t.Context(), grants.PoolOf(p), noon.Add(time.Hour)); tt.owes != (wait == time.Millisecond) {
				t.Errorf("%s: it comes back after %v", tt.reason, wait)
			}
		})
	}
}

func TestTheStatusSaysWhetherTheClusterWasSeen(t *testing.T) {
	const block = "allocated 4 IPs: 10.0.0.4/30"
	tests := map[string]struct {
		told, found grants.Sighting
		says        grants.Sighting
		ready       string
		seen        string // of the condition; empty: there is none
		reason      string
	}{
		"not looked":              {says: grants.Unlooked, ready: block},
		"not there":               {found: grants.Unseen, says: grants.Unseen, ready: block + "; Cluster team/prod does not exist yet", seen: "False"},
		"still not there":         {told: grants.Unseen, found: grants.Unseen, says: grants.Unseen, ready: block + "; Cluster team/prod does not exist yet", seen: "False"},
		"not there, and not said": {told: grants.Unseen, says: grants.Unseen, ready: block + "; Cluster team/prod does not exist yet", seen: "False"},
		"there":                   {found: grants.Seen, says: grants.Seen, ready: block, seen: "True"},
		"there at last":           {told: grants.Unseen, found: grants.Seen, says: grants.Seen, ready: block, seen: "True"},
		"gone":                    {told: grants.Seen, found: grants.Unseen, says: grants.Seen, ready: block, seen: "True", reason: "once seen is seen for good"},
		"seen, and paused":        {told: grants.Seen, found: grants.Paused, says: grants.Paused, ready: block, seen: "Unknown", reason: "clusterctl may be about to move it"},
		"gone after a pause":      {told: grants.Paused, found: grants.Unseen, says: grants.Paused, ready: block, seen: "Unknown", reason: "clusterctl may have moved it"},
		"resumed":                 {told: grants.Paused, found: grants.Seen, says: grants.Seen, ready: block, seen: "True"},
		"paused as it arrives":    {found: grants.Paused, says: grants.Unlooked, ready: block, reason: "what was not seen is not deleted anyway"},
		"gone as it arrives":      {found: grants.Left, says: grants.Unseen, ready: block + "; Cluster team/prod does not exist yet", seen: "False"},
		"gone once more":          {told: grants.Paused, found: grants.Left, says: grants.Paused, ready: block, seen: "Unknown"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := aPool(t, "10.0.0.1-10.0.0.9")
			c := seeBlock(p, "x", 4, has("10.0.0.4/30"), written(t, tt.told))
			if c.Told != tt.told {
				t.Fatalf("it was told %v", c.Told)
			}
			says := c.SaysAfter(tt.found)
			o := &v1alpha1.IPAllocation{}
			o.Annotations, o.UID = map[string]string{}, "uid-x"
			has("10.0.0.4/30")(o)
			written(t, says)(o)
			ready := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ReadyCondition)
			if says != tt.says || ready.Message != tt.ready || ready.Status != "True" {
				t.Errorf("%s: %v, %s", tt.reason, says, ready.Message)
			}
			got := ""
			if s := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ClusterSeenCondition); s != nil {
				got = string(s.Status)
			}
			if got != tt.seen {
				t.Errorf("%s: seen: %q", tt.reason, got)
			}
		})
	}
}

// The Cluster that comes at last is looked for at once.
func TestAClusterThatIsAwaitedWakesItsPool(t *testing.T) {
	a, api := looker(noCluster)
	p := unlocked(a.pool(testKey))
	was := aPool(t, "10.0.0.1-10.0.0.9")
	p.Base, p.Layout, p.Ledger, p.Holder = was.Base, was.Layout, was.Ledger, true
	c := seeBlock(p, "x", 4, has("10.0.0.4/30"), written(t, grants.Unseen))
	a.sweep(t.Context(), grants.PoolOf(p), noon)
	cluster := types.NamespacedName{Namespace: "team", Name: "prod"}
	if keys := a.PoolsWaitingFor(types.NamespacedName{Namespace: "team", Name: "other"}); len(keys) > 0 {
		t.Errorf("another Cluster wakes %v", keys)
	}
	api.read = nil
	if keys := a.PoolsWaitingFor(cluster); len(keys) != 1 {
		t.Fatalf("woken: %v", keys)
	}
	if a.sweep(t.Context(), grants.PoolOf(p), noon); p.Todo[c.Owner.UID] == nil {
		t.Error("nothing is written")
	}
}

// prod is the Cluster of blocks that are written.
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
func deletedCluster(c *clusterv1.Cluster) { c.DeletionTimestamp = &metav1.Time{Time: noon} }

// served returns an allocator that holds a pool, and sweeps it in an hour.
func served(t *testing.T, cluster error) (*Allocator, *grants.Memory) {
	t.Helper()
	a, _ := looker(cluster)
	p := unlocked(a.pool(testKey))
	was := aPool(t, "10.0.0.1-10.0.255.254")
	p.Base, p.Layout, p.Ledger, p.Holder, p.NextSweep = was.Base, was.Layout, was.Ledger, true, noon.Add(time.Hour)
	return a, p
}

// What a watch shows of a Cluster that is paused is known before its end is, and is written at once; of another Cluster it says
// nothing.
func TestAPausedClusterIsNotGone(t *testing.T) {
	a, p := served(t, noCluster)
	c := seeBlock(p, "x", 4, has("10.0.0.4/30"), written(t, grants.Seen))
	if keys := a.ObserveCluster(prod(pausedCluster, func(o *clusterv1.Cluster) { o.Name = "other" }), false); len(keys) > 0 || c.Found != grants.Unlooked {
		t.Errorf("another Cluster wakes %v, and is taken for this one: %v", keys, c.Found)
	}
	if keys := a.ObserveCluster(prod(pausedCluster), false); len(keys) != 1 || !p.NextSweep.IsZero() {
		t.Errorf("woken: %v, to look at %v", keys, p.NextSweep)
	}
	if p.NoteSighting(c, grants.Unseen); !c.OwesPause() || c.OwesSighting() || c.SaysAfter(c.Found) != grants.Paused {
		t.Errorf("found %v, to be told: %v, in another way: %v", c.Found, c.OwesPause(), c.OwesSighting())
	}
	if keys := a.ObserveCluster(prod(pausedCluster), false); len(keys) != 1 {
		t.Errorf("until it is on record: %v", keys)
	}
}

func TestWhatAClusterShows(t *testing.T) {
	tests := map[string]struct {
		is    []func(*clusterv1.Cluster)
		ended bool
		found grants.Sighting
	}{
		"runs":                      {found: grants.Seen},
		"is being deleted":          {is: []func(*clusterv1.Cluster){deletedCluster}, found: grants.Seen},
		"has ended":                 {ended: true, found: grants.Seen},
		"is paused":                 {is: []func(*clusterv1.Cluster){pausedCluster}, found: grants.Paused},
		"is marked for a move":      {is: []func(*clusterv1.Cluster){markedCluster}, found: grants.Seen},
		"is moved, and is unpaused": {is: []func(*clusterv1.Cluster){markedCluster, deletedCluster}, found: grants.Paused},
		"was moved, unpaused":       {is: []func(*clusterv1.Cluster){markedCluster}, ended: true, found: grants.Paused},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if found := sightingOf(prod(tt.is...), tt.ended); found != tt.found {
				t.Errorf("found %v, not %v", found, tt.found)
			}
		})
	}
}

// Each event of a Cluster that is paused is news for its pool until that is on record, and not where nothing is written.
func TestAPauseIsNewsOfWhatIsServed(t *testing.T) {
	tests := map[string]struct {
		block func(*v1alpha1.IPAllocation)
		pool  func(*grants.Memory)
		news  bool
	}{
		"served":                   {news: true},
		"paused itself":            {block: func(o *v1alpha1.IPAllocation) { o.Annotations[clusterv1.PausedAnnotation] = "" }},
		"without a record":         {block: func(o *v1alpha1.IPAllocation) { delete(o.Annotations, v1alpha1.AddressAnnotation) }},
		"being deleted":            {block: func(o *v1alpha1.IPAllocation) { o.DeletionTimestamp = &metav1.Time{Time: noon} }},
		"of another pool's holder": {pool: func(m *grants.Memory) { m.Holder = false }},
		"on record":                {block: func(o *v1alpha1.IPAllocation) { setSeen(o, metav1.ConditionUnknown) }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a, p := served(t, nil)
			seeBlock(p, "x", 4, has("10.0.0.4/30"), written(t, grants.Seen), func(o *v1alpha1.IPAllocation) {
				if tt.block != nil {
					tt.block(o)
				}
			})
			if tt.pool != nil {
				tt.pool(p)
			}
			if keys := a.ObserveCluster(prod(pausedCluster), false); (len(keys) > 0) != tt.news {
				t.Errorf("woken: %v", keys)
			}
		})
	}
}

// setSeen has an allocation say whether its Cluster was seen.
func setSeen(o *v1alpha1.IPAllocation, is metav1.ConditionStatus) {
	meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ClusterSeenCondition).Status = is
}

// A Cluster that runs is looked at again at once where it was paused. Else its event says nothing: it may be one of before the
// IPAllocation, where the watch is behind.
func TestAClusterThatRunsIsLookedAtAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		told, found grants.Sighting
		news        bool
	}{
		"not seen yet": {told: grants.Unseen},
		"seen":         {told: grants.Seen},
		"paused":       {told: grants.Paused, news: true},
	} {
		t.Run(name, func(t *testing.T) {
			a, p := served(t, nil)
			c := seeBlock(p, "x", 4, has("10.0.0.4/30"), written(t, tt.told))
			if keys := a.ObserveCluster(prod(), false); (len(keys) > 0) != tt.news || c.Found != tt.found {
				t.Errorf("woken: %v, found %v", keys, c.Found)
			}
		})
	}
}

// The Cluster was paused before it was on record that it was seen: it is gone, and its block waits for it, unless the write was
// under way that says that it was seen.
func TestAPauseIsRememberedBeforeTheStatusIsWritten(t *testing.T) {
	a, p := served(t, noCluster)
	a.workers = workers.New[pools.Key](0)
	c := seeBlock(p, "x", 4, has("10.0.0.4/30"), written(t, grants.Unlooked))
	a.ObserveCluster(prod(pausedCluster), false)
	if a.sweep(t.Context(), grants.PoolOf(p), noon.Add(2*time.Hour)); p.Todo[c.Owner.UID] == nil || c.SaysAfter(c.Found) != grants.Unseen {
		t.Errorf("it is to say %v", c.SaysAfter(c.Found))
	}
	c = seeBlock(p, "x", 4, has("10.0.0.4/30"), written(t, grants.Seen), func(o *v1alpha1.IPAllocation) { o.ResourceVersion = "2" })
	if c.Told != grants.Seen || c.SaysAfter(c.Found) != grants.Paused {
		t.Errorf("it was told %v, and is to say %v", c.Told, c.SaysAfter(c.Found))
	}
}

// Another manager has seen the Cluster paused since this one saw it run. It is gone, maybe moved.
func TestAnOlderSightingIsNotWrittenOverAPause(t *testing.T) {
	for name, before := range map[string]grants.Sighting{"it was told meanwhile": grants.Seen, "it was told before": grants.Paused} {
		t.Run(name, func(t *testing.T) {
			a, p := served(t, noCluster)
			a.workers, p.NextSweep = workers.New[pools.Key](0), noon
			seeBlock(p, "x", 4, has("10.0.0.4/30"), written(t, before)).Found = grants.Seen
			c := seeBlock(p, "x", 4, has("10.0.0.4/30"), written(t, grants.Paused), func(o *v1alpha1.IPAllocation) { o.ResourceVersion = "2" })
			if before == grants.Seen && p.Todo[c.Owner.UID] != nil {
				t.Error("it is to be written before it was looked for")
			}
			if a.sweep(t.Context(), grants.PoolOf(p), noon); p.Todo[c.Owner.UID] != nil || p.Jobs > 0 {
				t.Errorf("it is to say %v, with %d jobs", c.SaysAfter(c.Found), p.Jobs)
			}
		})
	}
}

// A move pauses all Clusters of a namespace at once: their blocks are written in turn, and those of which the API server refuses
// the status not all at once.
func TestPausesAreToldInTurn(t *testing.T) {
	a, p := served(t, nil)
	a.workers = workers.New[pools.Key](0)
	const n = 2 * grants.MaxJobs
	for i := range n {
		block := fmt.Sprintf("10.0.%d.%d/30", i*4/256, i*4%256)
		seeBlock(p, fmt.Sprint("x", i), 4, has(block), written(t, grants.Seen))
	}
	a.ObserveCluster(prod(pausedCluster), false)
	a.Client = pausedReader{a.Client}
	if a.sweep(t.Context(), grants.PoolOf(p), noon); p.Jobs != grants.MaxJobs || !p.NextSweep.IsZero() {
		t.Errorf("%d jobs, and the next sweep is at %v", p.Jobs, p.NextSweep)
	}
}

// pausedReader shows each Cluster paused.
type pausedReader struct{ client.Client }

func (pausedReader) Get(_ context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if c, is := o.(*clusterv1.Cluster); is {
		pausedCluster(c)
	}
	return nil
}

// One manager looks for all namespaces' Clusters, another only for its own.
func TestWhatCannotBeSeenIsNotSaid(t *testing.T) {
	a, _ := looker(noCluster)
	a.Namespace = "ns"
	p := aPool(t, "10.0.0.1-10.0.0.9")
	c := seeBlock(p, "x", 4, has("10.0.0.4/30"), written(t, grants.Unlooked))
	if found := a.lookAtOwners(t.Context())(p.Key, c); found != grants.Unlooked {
		t.Errorf("found: %v", found)
	}
}
