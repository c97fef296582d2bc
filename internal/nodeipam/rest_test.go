package nodeipam_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// A refusal that lasts costs next to nothing meanwhile: missing rights, a policy, a quota.

const (
	// refusalLasts is how long a refusal lasts. maxWritesPerObject is how often one object may be written meanwhile,
	// and maxLogLines is how many log lines one cause may have: a failure is retried after 50 ms, after twice as long
	// each time, and at last twice a minute.
	refusalLasts       = 20 * time.Minute
	maxWritesPerObject = 60
	maxLogLines        = 80
)

// failing returns the answer of an API server whose webhook fails.
func failing(*faults.Request) error {
	return apierrors.NewInternalError(errors.New("failed calling webhook"))
}

// overQuota returns the answer of an API server whose quota of ConfigMaps is exceeded.
func overQuota(r *faults.Request) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, r.Ref.Name, errors.New("exceeded quota"))
}

// writesOf returns a function that selects the writes of some kinds, of all kinds if there are none.
func writesOf(kinds ...faults.Kind) func(*faults.Request) bool {
	return func(r *faults.Request) bool {
		return r.IsWrite() && (len(kinds) == 0 || slices.Contains(kinds, r.Ref.Kind))
	}
}

func callsOf(kind faults.Kind) func(*faults.Request) bool {
	return func(r *faults.Request) bool { return r.Ref.Kind == kind }
}

// refusals are the requests that the API server refuses for a while, or that another writer reverts. Where many Nodes
// come, one allocator serves them all.
var refusals = map[string]struct {
	sim.Obstacle
	nodes int
}{
	"the ConfigMap, missing rights": {Obstacle: sim.Obstacle{Matches: writesOf(faults.ConfigMaps), Err: forbidden}},
	"reads of the ConfigMap":        {Obstacle: sim.Obstacle{Matches: callsOf(faults.ConfigMaps), Err: forbidden}},
	"the ConfigMap, a quota":        {Obstacle: sim.Obstacle{Matches: writesOf(faults.ConfigMaps), Err: overQuota}},
	"Nodes, missing rights":         {Obstacle: sim.Obstacle{Matches: writesOf(faults.Nodes), Err: forbidden}},
	"lists of Nodes": {Obstacle: sim.Obstacle{Err: forbidden, Matches: func(r *faults.Request) bool {
		return r.Ref.Kind == faults.Nodes && r.Verb == "list"
	}}},
	"one Node": {Obstacle: sim.Obstacle{Err: forbidden, Matches: func(r *faults.Request) bool {
		return r.Ref.Kind == faults.Nodes && r.IsWrite() && r.Ref.Name == "n00"
	}}},
	"ClusterCIDRs":               {Obstacle: sim.Obstacle{Matches: writesOf(faults.ClusterCIDRs), Err: forbidden}},
	"reads of ClusterCIDRs":      {Obstacle: sim.Obstacle{Matches: callsOf(faults.ClusterCIDRs), Err: forbidden}},
	"IPAllocations":              {Obstacle: sim.Obstacle{Matches: writesOf(faults.Allocations), Err: forbidden}},
	"a webhook that answers 500": {Obstacle: sim.Obstacle{Matches: writesOf(faults.Nodes), Err: failing}},
	"a webhook that answers 500, for many Nodes": {
		Obstacle: sim.Obstacle{Matches: writesOf(faults.Nodes), Err: failing}, nodes: 20,
	},
	"a webhook that answers 500, for many Nodes and ClusterCIDRs": {
		Obstacle: sim.Obstacle{Matches: writesOf(faults.Nodes, faults.ClusterCIDRs), Err: failing}, nodes: 20,
	},
	"many Nodes, missing rights": {Obstacle: sim.Obstacle{Matches: writesOf(faults.Nodes), Err: forbidden}, nodes: 60},
	"all writes":                 {Obstacle: sim.Obstacle{Matches: writesOf(), Err: forbidden}},
	"a tool that resets the finalizers of ClusterCIDRs": {
		Obstacle: sim.Obstacle{Matches: writesOf(faults.ClusterCIDRs), Revert: func(o client.Object) { o.SetFinalizers(nil) }},
	},
}

// TestRestWhileARefusalLasts adds Nodes while something is refused permanently. There is at most one reconcile a
// second, the writes of each object are bounded, and so is the log; when the refusal ends, all Nodes are served.
func TestRestWhileARefusalLasts(t *testing.T) {
	t.Parallel()
	for _, name := range names(refusals) {
		for _, fleet := range []bool{false, true} {
			for _, start := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/fleet %v/from the start %v", name, fleet, start), func(t *testing.T) {
					t.Parallel()
					runRefusal(t, name, fleet, start)
				})
			}
		}
	}
}

func runRefusal(t *testing.T, name string, fleet, fromTheStart bool) {
	t.Helper()
	s := scenario{name: name, fleet: fleet, before: []client.Object{clusterCIDR("c", "10.0.0.0/16", 8)}, served: 12}
	s.served = max(s.served, refusals[name].nodes)
	if fleet {
		s.pool, s.served = threeBlocks, 6
		s.before = []client.Object{clusterProd(), fromPool("c")}
	}
	most, mostReconciles := maxWritesPerObject, int(refusalLasts/(2*time.Second))
	switch {
	case refusals[name].Revert != nil:
		most = int(refusalLasts / time.Second) // what keeps an object is written again once a second
		mostReconciles = most + 60
	case s.served > 12:
		most = int(refusalLasts / (3 * time.Second)) // the ConfigMap, twice for each time at which Nodes are retried together
	}
	lines := map[string]int{}
	begin := sim.NewAttempt("refuse", func(w *world) bool {
		o := refusals[name].Obstacle
		o.Name = name
		w.StartObstacle(o)
		clear(lines)
		return true
	})
	for i := range s.served {
		n := node(fmt.Sprintf("n%02d", i))
		if !fromTheStart && i%5 == 0 {
			s.script = append(s.script, add(n))
		} else {
			s.before = append(s.before, n)
		}
	}
	if !fromTheStart {
		s.script = append([]action{begin}, s.script...)
	}
	s.script = append(s.script, waitFor(refusalLasts), sim.NewAttempt("it ends", func(w *world) bool {
		w.CheckObstacleCosts(mostReconciles, most)
		for text, n := range lines {
			if n > maxLogLines {
				w.Failf("rest: %d lines in the log while a refusal lasts: %s", n, text)
			}
		}
		w.EndObstacle()
		return true
	}), waitFor(5*time.Minute))
	s.run(t, func(w *world) {
		w.logs = func(text string) { lines[text]++ }
		if fromTheStart {
			begin.Do(w)
		}
	})
}
