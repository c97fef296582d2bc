package allocator_test

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// Scenarios of pools of the in-cluster provider as the drop-in serves them: by a mirror that exists already.

var (
	foreignPoolRef = ipamv1.IPPoolReference{APIGroup: incluster.GroupVersion.Group, Kind: incluster.IPPoolKind, Name: "theirs"}
	mirrorName     = incluster.PoolKinds[0].MirrorName(foreignPoolRef.Name)
)

func makeMirror(addresses string, owners ...metav1.OwnerReference) action {
	return sim.NewAttempt("mirror a pool of "+addresses, func(w *world) bool {
		pool := &v1alpha1.NetworkPool{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: mirrorName, OwnerReferences: owners},
			Spec:       Pool(addresses, func(s *v1alpha1.NetworkPoolSpec) { s.AllowOverlap = true }),
		}
		incluster.SealSpec(pool)
		return w.api.Create(pool) == nil
	})
}

var foreignPoolOwner = metav1.OwnerReference{
	APIVersion: incluster.GroupVersion.String(), Kind: foreignPoolRef.Kind, Name: foreignPoolRef.Name, UID: "theirs", Controller: ptr.To(true),
}

// addForeignClaim adds a claim that names the mirrored pool.
func addForeignClaim(name string) action {
	return sim.NewAttempt("add claim "+name+" of their pool", func(w *world) bool {
		c := claim(name)
		c.Spec.PoolRef = foreignPoolRef
		return w.api.Create(c) == nil
	})
}

// handPoolOver marks the mirror of a pool that was handed over, so that others may name it.
var handPoolOver = sim.NewAttempt("hand their pool over", func(w *world) bool {
	return faults.EditObject(w.api, ref(faults.Pools, mirrorName), func(o *v1alpha1.NetworkPool) {
		incluster.SetOrRemoveAnnotation(o, incluster.HandedOverAnnotation, "", true)
		incluster.HandOverMirror(o, &metav1.ObjectMeta{Name: foreignPoolRef.Name, UID: foreignPoolOwner.UID})
	}) == nil
})

// endMirror makes the mirror an independent pool.
var endMirror = sim.NewAttempt("end their pool", func(w *world) bool {
	return faults.EditObject(w.api, ref(faults.Pools, mirrorName), func(o *v1alpha1.NetworkPool) { incluster.EndMirror(o) }) == nil
})

// untilForeignPoolUnused waits until no claim names the mirrored pool.
var untilForeignPoolUnused = until("no claim names their pool", func(w *world) bool {
	return !slices.ContainsFunc(w.api.List(faults.Claims), func(o client.Object) bool { return o.(*ipamv1.IPAddressClaim).Spec.PoolRef == foreignPoolRef })
})

var mirrors = []scenario{
	{
		name: "drop-in", spec: Pool("10.1.0.1-10.1.0.2"), capacity: 3, ordered: true, claims: []string{"a"},
		before: []action{makeMirror("10.0.0.1-10.0.0.2", foreignPoolOwner), addForeignClaim("x")},
		script: []action{addForeignClaim("y"), addForeignClaim("z"), remove("x"), forceDelete(faults.Addresses, "y"), another, remove("y"), addForeignClaim("x")},
		want:   map[string]string{"a": "10.1.0.1"},
	},
	{
		name: "drop-in of a mirror made by hand", spec: Pool("10.1.0.1-10.1.0.2"), capacity: 2,
		before: []action{makeMirror("10.0.0.1-10.0.0.2"), addForeignClaim("x")}, script: []action{another, addForeignClaim("y"), remove("x")},
	},
	{
		// A claim that names the mirror by its own name is granted nothing: the other provider would grant its address
		// again.
		name: "drop-in by name", spec: Pool("10.1.0.1-10.1.0.2"), capacity: 1, before: []action{makeMirror("10.0.0.1-10.0.0.2", foreignPoolOwner), addForeignClaim("x")},
		script: []action{addTo(mirrorName, "direct"), remove("direct")},
	},
	{
		// U85: the mirror of a pool that has ended is a pool like others; a claim that names the ended pool is granted
		// nothing.
		name: "drop-in that ends", spec: Pool("10.1.0.1-10.1.0.2"), capacity: 2,
		before: []action{makeMirror("10.0.0.1-10.0.0.2", foreignPoolOwner), handPoolOver, addForeignClaim("x")},
		script: []action{addTo(mirrorName, "direct"), remove("x"), untilForeignPoolUnused, endMirror, addForeignClaim("y"), addTo(mirrorName, "z"), another},
	},
}

func init() { scenarios = slices.Concat(scenarios, mirrors) } //nolint:gochecknoinits // one list, in three files
