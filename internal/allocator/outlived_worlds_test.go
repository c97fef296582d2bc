package allocator_test

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
)

// Claims of a Cluster itself, which somebody deletes while it lives: its address is nobody else's, whatever goes wrong.

// addOwned adds a claim that the Cluster alone owns.
func addOwned(name string) action {
	return action{"add claim " + name + " of the Cluster", func(w *world) bool {
		c := claim(name)
		c.Spec.ClusterName = "tenant"
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind, Name: "tenant", UID: "tenant"}}
		return w.api.Create(c) == nil
	}}
}

var outlived = []scenario{
	{
		// U44: made again, it has its address, although others would have taken it.
		name: "of a Cluster that lives", spec: Pool("10.0.0.1-10.0.0.2"), ordered: true, capacity: 2, before: []action{addOwned("cp")},
		script: []action{remove("cp"), add("a"), add("b"), request("c", "10.0.0.1"), addOwned("cp")},
		want:   map[string]string{"cp": "10.0.0.1", "a": "10.0.0.2"},
	},
	{
		// What the end of the Cluster makes free is free.
		name: "of a Cluster that is gone", spec: Pool("10.0.0.1"), capacity: 1, before: []action{addOwned("cp")},
		script: []action{forceDelete(faults.Clusters, "tenant"), remove("cp"), add("a")},
		want:   map[string]string{"a": "10.0.0.1"},
	},
	{
		name: "of a Cluster that is paused", spec: Pool("10.0.0.1-10.0.0.2"), ordered: true, capacity: 2, before: []action{addOwned("cp")},
		script: []action{holdCluster(true), remove("cp"), add("a"), add("b"), holdCluster(false), addOwned("cp")},
		want:   map[string]string{"cp": "10.0.0.1", "a": "10.0.0.2"},
	},
}

func init() { scenarios = slices.Concat(scenarios, outlived) } //nolint:gochecknoinits // one list, in several files
