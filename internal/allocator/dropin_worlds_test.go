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
)

// Pools of the in-cluster provider, as the drop-in serves them: by a mirror that is there already.

var (
	theirs = ipamv1.IPPoolReference{APIGroup: incluster.GroupVersion.Group, Kind: incluster.IPPool, Name: "theirs"}
	mirror = incluster.Kinds[0].MirrorName(theirs.Name)
)

func makeMirror(addresses string, owners ...metav1.OwnerReference) action {
	return action{"mirror a pool of " + addresses, func(w *world) bool {
		pool := &v1alpha1.NetworkPool{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: mirror, OwnerReferences: owners},
			Spec:       Pool(addresses, func(s *v1alpha1.NetworkPoolSpec) { s.AllowOverlap = true }),
		}
		incluster.Seal(pool)
		return w.api.Create(pool) == nil
	}}
}

var theirPool = metav1.OwnerReference{
	APIVersion: incluster.GroupVersion.String(), Kind: theirs.Kind, Name: theirs.Name, UID: "theirs", Controller: ptr.To(true),
}

// addTheirs adds a claim that names the pool that is mirrored.
func addTheirs(name string) action {
	return action{"add claim " + name + " of their pool", func(w *world) bool {
		c := claim(name)
		c.Spec.PoolRef = theirs
		return w.api.Create(c) == nil
	}}
}

// handedOver has the mirror of a pool that was handed over named by others.
var handedOver = action{"hand their pool over", func(w *world) bool {
	return w.api.Edit(ref(faults.Pools, mirror), func(o client.Object) {
		incluster.Annotate(o, incluster.HandedOverAnnotation, "", true)
		incluster.HandOver(o.(*v1alpha1.NetworkPool), &metav1.ObjectMeta{Name: theirs.Name, UID: theirPool.UID})
	}) == nil
}}

// endMirror makes a pool of its own of the mirror.
var endMirror = action{"end their pool", func(w *world) bool {
	return w.api.Edit(ref(faults.Pools, mirror), func(o client.Object) { incluster.End(o.(*v1alpha1.NetworkPool)) }) == nil
}}

// nobodyNamesTheirs waits until no claim names the pool that is mirrored.
var nobodyNamesTheirs = until("nobody names their pool", func(w *world) bool {
	return !slices.ContainsFunc(w.api.List(faults.Claims), func(o client.Object) bool { return o.(*ipamv1.IPAddressClaim).Spec.PoolRef == theirs })
})

var mirrors = []scenario{
	{
		name: "drop-in", spec: Pool("10.1.0.1-10.1.0.2"), capacity: 3, ordered: true, claims: []string{"a"},
		before: []action{makeMirror("10.0.0.1-10.0.0.2", theirPool), addTheirs("x")},
		script: []action{addTheirs("y"), addTheirs("z"), remove("x"), forceDelete(faults.Addresses, "y"), another, remove("y"), addTheirs("x")},
		want:   map[string]string{"a": "10.1.0.1"},
	},
	{
		name: "drop-in of a mirror made by hand", spec: Pool("10.1.0.1-10.1.0.2"), capacity: 2,
		before: []action{makeMirror("10.0.0.1-10.0.0.2"), addTheirs("x")}, script: []action{another, addTheirs("y"), remove("x")},
	},
	{
		// A claim that names the mirror by its own name is given nothing: what it had would be given again by the other
		// provider.
		name: "drop-in by name", spec: Pool("10.1.0.1-10.1.0.2"), capacity: 1, before: []action{makeMirror("10.0.0.1-10.0.0.2", theirPool), addTheirs("x")},
		script: []action{addTo(mirror, "direct"), remove("direct")},
	},
	{
		// U85: what mirrored a pool that has ended is a pool like others; who names the other one is given nothing.
		name: "drop-in that ends", spec: Pool("10.1.0.1-10.1.0.2"), capacity: 2,
		before: []action{makeMirror("10.0.0.1-10.0.0.2", theirPool), handedOver, addTheirs("x")},
		script: []action{addTo(mirror, "direct"), remove("x"), nobodyNamesTheirs, endMirror, addTheirs("y"), addTo(mirror, "z"), another},
	},
}

func init() { scenarios = slices.Concat(scenarios, mirrors) } //nolint:gochecknoinits // one list, in three files
