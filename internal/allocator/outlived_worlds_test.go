package allocator_test

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// Scenarios of claims of a Cluster itself that a user deletes while the Cluster lives: the address stays the Cluster's,
// whatever goes wrong.

// addOwned adds a claim that only the Cluster owns.
func addOwned(name string) action {
	return sim.NewAttempt("add claim "+name+" of the Cluster", func(w *world) bool {
		c := claim(name)
		c.Spec.ClusterName = "tenant"
		for _, o := range w.api.List(faults.Clusters) {
			c.OwnerReferences = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind, Name: o.GetName(), UID: o.GetUID()}}
		}
		return w.api.Create(c) == nil
	})
}

var outlived = []scenario{
	{
		// U44: the claim keeps its address, whichever claim wants it, until the Cluster is gone.
		name: "of a Cluster that lives", spec: Pool("10.0.0.1-10.0.0.2"), ordered: true, capacity: 2, before: []action{addOwned("cp")},
		script: []action{remove("cp"), add("a"), add("b"), another, forceDelete(faults.Clusters, "tenant"), add("c")},
		want:   map[string]string{"a": "10.0.0.2", "b": "10.0.0.1"},
	},
	{
		// A claim that stays is no work: a manager that has nothing else to do is at rest.
		name: "of a Cluster that stays", spec: Pool("10.0.0.1-10.0.0.2"), ordered: true, capacity: 2, before: []action{addOwned("cp")},
		script: []action{remove("cp"), add("a"), another},
		want:   map[string]string{"cp": "10.0.0.1", "a": "10.0.0.2"},
	},
	{
		name: "of a Cluster that is gone", spec: Pool("10.0.0.1"), capacity: 1, before: []action{addOwned("cp")},
		script: []action{forceDelete(faults.Clusters, "tenant"), remove("cp"), add("a")},
		want:   map[string]string{"a": "10.0.0.1"},
	},
	{
		// A Cluster that was created again under its name does not own the claim.
		name: "of a Cluster made again", spec: Pool("10.0.0.1"), capacity: 1, before: []action{addOwned("cp")},
		script: []action{remove("cp"), forceDelete(faults.Clusters, "tenant"), makeCluster, add("a")},
		want:   map[string]string{"a": "10.0.0.1"},
	},
	{
		name: "of a Cluster that is paused", spec: Pool("10.0.0.1-10.0.0.2"), ordered: true, capacity: 2, before: []action{addOwned("cp")},
		script: []action{setClusterPaused(true), remove("cp"), add("a"), add("b"), setClusterPaused(false), forceDelete(faults.Clusters, "tenant")},
		want:   map[string]string{"a": "10.0.0.2", "b": "10.0.0.1"},
	},
}

func init() { scenarios = slices.Concat(scenarios, outlived) } //nolint:gochecknoinits // one list, in several files
