package allocator

import (
	"encoding/json"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"

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
		"paused":                  {told: grants.Seen, found: grants.Paused, says: grants.Paused, ready: block, seen: "Unknown", reason: "clusterctl may be about to move it"},
		"gone after a pause":      {told: grants.Paused, found: grants.Unseen, says: grants.Paused, ready: block, seen: "Unknown", reason: "clusterctl may have moved it"},
		"resumed":                 {told: grants.Paused, found: grants.Seen, says: grants.Seen, ready: block, seen: "True"},
		"paused as it arrives":    {found: grants.Paused, says: grants.Unlooked, ready: block, reason: "what was not seen is not deleted anyway"},
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

// What a watch shows of a Cluster that is paused is known before its end is, and is written at once; of another Cluster it says
// nothing.
func TestAPausedClusterIsNotGone(t *testing.T) {
	a, _ := looker(noCluster)
	p := unlocked(a.pool(testKey))
	was := aPool(t, "10.0.0.1-10.0.0.9")
	p.Base, p.Layout, p.Ledger, p.Holder, p.NextSweep = was.Base, was.Layout, was.Ledger, true, noon.Add(time.Hour)
	c := seeBlock(p, "x", 4, has("10.0.0.4/30"), written(t, grants.Seen))
	if keys := a.ClusterPaused(types.NamespacedName{Namespace: "team", Name: "other"}); len(keys) > 0 || c.Found != grants.Unlooked {
		t.Errorf("another Cluster wakes %v, and is taken for this one: %v", keys, c.Found)
	}
	if keys := a.ClusterPaused(types.NamespacedName{Namespace: "team", Name: "prod"}); len(keys) != 1 || !p.NextSweep.IsZero() {
		t.Errorf("woken: %v, to look at %v", keys, p.NextSweep)
	}
	if p.NoteSighting(c, grants.Unseen); !c.OwesPause() || c.OwesSighting() || c.SaysAfter(c.Found) != grants.Paused {
		t.Errorf("found %v, to be told: %v, in another way: %v", c.Found, c.OwesPause(), c.OwesSighting())
	}
	if keys := a.ClusterPaused(types.NamespacedName{Namespace: "team", Name: "prod"}); len(keys) != 1 {
		t.Errorf("until it is on record: %v", keys)
	}
}

// One manager looks for all namespaces' Clusters, another only for its own.
func TestWhatCannotBeSeenIsNotSaid(t *testing.T) {
	a, _ := looker(noCluster)
	a.Namespace = "ns"
	p := aPool(t, "10.0.0.1-10.0.0.9")
	c := seeBlock(p, "x", 4, has("10.0.0.4/30"), written(t, grants.Unlooked))
	if found := a.look(p.Key, c, a.lookAtClusters(t.Context())); found != grants.Unlooked {
		t.Errorf("found: %v", found)
	}
}
