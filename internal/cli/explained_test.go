package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/allocator"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// home is the UID of the management cluster.
const home = "home"

// management is a management cluster in memory. A manager runs in it only while serve runs.
type management struct {
	client.WithWatch

	t     *testing.T
	alloc *allocator.Allocator
	// seen holds the objects that the manager's watches have shown.
	seen map[types.UID]client.Object
	// filter is the value of the label by which the manager selects claims (--watch-filter).
	filter string
	// refused makes the API server refuse to create IPAddresses.
	refused bool
	// quota is the number of addresses that a Cluster may have; 0 means no limit.
	quota int64
	made  int
}

func newManagement(t *testing.T) *management {
	t.Helper()
	known, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	w := &management{t: t, seen: map[types.UID]client.Object{}}
	w.WithWatch = fake.NewClientBuilder().WithScheme(known).
		WithStatusSubresource(&v1alpha1.NetworkPool{}, &v1alpha1.GlobalNetworkPool{}, &ipamv1.IPAddressClaim{}, &v1alpha1.IPAllocation{}, &v1alpha1.IPLease{}, &v1alpha1.ClusterCIDR{}).
		WithInterceptorFuncs(interceptor.Funcs{Create: w.createObject}).Build()
	return w
}

// createObject creates an object and sets what an API server sets.
func (w *management) createObject(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
	if _, ok := o.(*ipamv1.IPAddress); ok && w.refused {
		return apierrors.NewForbidden(ipamv1.GroupVersion.WithResource("ipaddresses").GroupResource(), o.GetName(), errors.New("a policy refuses it"))
	}
	w.made++
	o.SetUID(types.UID(fmt.Sprint("uid-", w.made)))
	o.SetGeneration(1)
	o.SetCreationTimestamp(metav1.Now())
	return c.Create(ctx, o, opts...)
}

// create creates objects, one after the other.
func (w *management) create(objects ...client.Object) {
	w.t.Helper()
	for _, o := range objects {
		if err := w.Create(w.t.Context(), o.DeepCopyObject().(client.Object)); err != nil {
			w.t.Fatal(err)
		}
		<-time.After(time.Second)
	}
}

// get reads an object again.
func (w *management) get(o client.Object) {
	w.t.Helper()
	if err := w.Get(w.t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		w.t.Fatal(err)
	}
}

// edit changes the object of a kind and a name, as kubectl edit does.
func edit[O client.Object](w *management, o O, name string, change func(O)) {
	w.t.Helper()
	o.SetName(name)
	place(o)
	w.get(o)
	change(o)
	o.SetGeneration(o.GetGeneration() + 1)
	if err := w.Update(w.t.Context(), o); err != nil {
		w.t.Fatal(err)
	}
}

// delete deletes the object of a kind and a name.
func (w *management) delete(o client.Object, name string) {
	w.t.Helper()
	o.SetName(name)
	place(o)
	if err := w.Delete(w.t.Context(), o); err != nil {
		w.t.Fatal(err)
	}
}

// list visits all objects that the manager watches.
func (w *management) list(visit func(client.Object)) {
	w.t.Helper()
	for _, l := range []client.ObjectList{
		&ipamv1.IPAddressList{}, &ipamv1.IPAddressClaimList{}, &v1alpha1.IPAllocationList{}, &v1alpha1.IPLeaseList{}, &v1alpha1.NetworkPoolList{}, &v1alpha1.GlobalNetworkPoolList{},
	} {
		if err := w.List(w.t.Context(), l); err != nil {
			w.t.Fatal(err)
		}
		items, err := meta.ExtractList(l)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, o := range items {
			visit(o.(client.Object))
		}
	}
}

// lists is the allocator.Lister of the manager.
type lists struct{ *management }

// List implements allocator.Lister.
func (l lists) List(_ context.Context, of client.Object, namespace string, visit func(client.Object)) (string, error) {
	l.list(func(o client.Object) {
		if fmt.Sprintf("%T", o) == fmt.Sprintf("%T", of) && (namespace == "" || o.GetNamespace() == namespace) {
			visit(o)
		}
	})
	return "1", nil
}

// serve runs the manager until nothing is due any more.
func (w *management) serve() {
	w.t.Helper()
	if w.alloc == nil {
		w.alloc = allocator.New(allocator.Options{
			Client: w, Live: w, Lister: lists{w}, Recorder: events.NewFakeRecorder(1000), ManagerID: "me", Elected: true, ManagementCluster: home, WatchFilter: w.filter,
			NodeQuota: func(context.Context, types.NamespacedName) (int64, bool) { return w.quota, w.quota > 0 },
		})
		w.alloc.Start(w.t.Context(), func(pools.Key) {})
	}
	for range 16 {
		for _, pool := range w.watch() {
			if _, err := w.alloc.Reconcile(w.t.Context(), pools.KeyForPool(pool), pool); err != nil {
				w.t.Logf("%s: %v", pools.KeyForPool(pool), err)
			}
		}
		synctest.Wait()
		<-time.After(15 * time.Second)
	}
}

// watch shows the manager all changes since the last call, and returns the pools.
func (w *management) watch() (all []v1alpha1.Pool) {
	now := map[types.UID]client.Object{}
	w.list(func(o client.Object) {
		now[o.GetUID()] = o
		if pool, ok := o.(v1alpha1.Pool); ok {
			w.alloc.ObservePool(pool)
			all = append(all, pool)
			return
		}
		w.alloc.ObserveObject(o)
	})
	for _, uid := range slices.Sorted(maps.Keys(w.seen)) {
		if now[uid] != nil {
			continue
		}
		if pool, ok := w.seen[uid].(v1alpha1.Pool); ok {
			_, _ = w.alloc.Reconcile(w.t.Context(), pools.KeyForPool(pool), nil)
			continue
		}
		w.alloc.ForgetObject(w.seen[uid])
	}
	w.seen = now
	return all
}

// place sets the namespace of an object whose kind is namespaced.
func place(o client.Object) {
	switch o.(type) {
	case *v1alpha1.GlobalNetworkPool, *v1alpha1.ClusterCIDR: // cluster-scoped
	default:
		o.SetNamespace("ns")
	}
}

// explain returns the output of the command `explain`.
func (w *management) explain(arg string) string {
	w.t.Helper()
	flags := genericclioptions.NewConfigFlags(true)
	*flags.Namespace = "ns"
	p := &plugin{Env: EnvFromStreams(nil, nil, nil, time.Now), flags: flags}
	e, err := p.explainObject(w.t.Context(), w, arg)
	if apierrors.IsNotFound(err) {
		return "is gone"
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return p.formatExplanation(e)
}

// finding is a test case: a state that the command explains, the advice that it gives, and the act that follows the
// advice.
type finding struct {
	objects []client.Object
	// before runs after the manager has served the objects.
	before func(*management)
	// unserved reports that no manager runs before the command does.
	unserved               bool
	of                     string
	wantReason, wantAdvice string
	applyAdvice            func(*management)
	// want is the output of the command after the advice was followed.
	want string
}

// TestExplainNamesStepsThatHelp checks that the advice of `explain` helps (W29): after a user follows it and the
// manager serves, `explain` does not report the finding any more.
func TestExplainNamesStepsThatHelp(t *testing.T) {
	ours := v1alpha1.GroupVersion.Group
	pool := func(addresses ...string) *framework.PoolBuilder {
		return framework.MakePool("p").Namespace("ns").Addresses(addresses...).Prefix(24)
	}
	older := func() *v1alpha1.NetworkPool {
		return framework.MakePool("elder").Namespace("ns").Addresses("10.0.0.1-10.0.0.9").Prefix(24).Obj()
	}
	two := pool("10.0.0.1-10.0.0.2").Obj()
	claim := func(name string) *framework.ClaimBuilder { return framework.MakeClaim("ns", name).Pool("p") }
	c := claim("c").Obj()
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "tenant"}}
	of := func(objects ...client.Object) []client.Object { return objects }
	add := func(objects ...client.Object) func(*management) {
		return func(w *management) { w.create(objects...) }
	}
	editPool := func(name string, change func(*v1alpha1.NetworkPool)) func(*management) {
		return func(w *management) { edit(w, &v1alpha1.NetworkPool{}, name, change) }
	}
	editClaim := func(change func(*ipamv1.IPAddressClaim)) func(*management) {
		return func(w *management) { edit(w, &ipamv1.IPAddressClaim{}, "c", change) }
	}
	// remake deletes an object and creates it again with another content, as users do to change an immutable field.
	remake := func(o client.Object) func(*management) {
		return func(w *management) {
			w.delete(o.DeepCopyObject().(client.Object), o.GetName())
			w.serve()
			w.create(o)
		}
	}
	widen := editPool("p", func(p *v1alpha1.NetworkPool) { p.Spec.Addresses = append(p.Spec.Addresses, "10.0.0.32-10.0.0.63") })
	drop := func(o client.Object, name string) func(*management) {
		return func(w *management) { w.delete(o.DeepCopyObject().(client.Object), name) }
	}
	resumed := func(o metav1.Object) {
		a := o.GetAnnotations()
		delete(a, clusterv1.PausedAnnotation)
		o.SetAnnotations(a)
	}
	const foreign = "example.com/hold"
	held := func(o client.Object) { controllerutil.AddFinalizer(o, foreign) }
	freed := func(o client.Object) { controllerutil.RemoveFinalizer(o, foreign) }
	then := func(steps ...func(*management)) func(*management) {
		return func(w *management) {
			for _, s := range steps {
				s(w)
			}
		}
	}
	served := func(w *management) { w.serve() }
	again := served // after another step
	nothing := func(*management) {}
	// ofQuota gives a Cluster its only address by quota, and creates another claim of it.
	ofQuota := func(w *management) {
		w.quota = 1
		w.create(claim("x").Cluster("tenant").Obj(), claim("c").Cluster("tenant").Obj())
	}
	const granted, missing = "has 10.0.0.1 of NetworkPool p", "NetworkPool ns/p does not exist"

	for name, tc := range map[string]finding{
		"the pool is created":                {objects: of(c), of: "claim/c", wantReason: missing, wantAdvice: "create the pool", applyAdvice: add(two), want: granted},
		"the claim names a pool that exists": {objects: of(two, claim("c").Pool("q").Obj()), of: "claim/c", wantReason: "NetworkPool ns/q does not exist", wantAdvice: "or create the object again with the right poolRef", applyAdvice: remake(c), want: granted},
		"the claim names the kind that is":   {objects: of(two, claim("c").GlobalPool("p").Obj()), of: "claim/c", wantReason: "GlobalNetworkPool p does not exist", wantAdvice: "there is a NetworkPool ns/p: if that is meant, create the object again with its kind", applyAdvice: remake(c), want: granted},
		"the pool is created all the same":   {objects: of(framework.MakeGlobalPool("p").Addresses("10.9.0.1").Prefix(24).Obj(), c), of: "claim/c", wantReason: missing, wantAdvice: "else create the pool", applyAdvice: add(two), want: granted},
		"the claim has our group":            {objects: of(two, claim("c").PoolRef("butler.butlerlab.dev", "NetworkPool", "p").Obj()), of: "claim/c", wantReason: "a group that no provider is known for", wantAdvice: "create the claim again with apiGroup " + ours, applyAdvice: remake(c), want: granted},
		"the claim has our group after all":  {objects: of(two, claim("c").PoolRef("example.com", "NetworkPool", "p").Obj()), of: "claim/c", wantReason: "another provider serves it, if there is one", wantAdvice: "set apiGroup " + ours + " and kind NetworkPool", applyAdvice: remake(c), want: granted},
		"the claim has a kind of ours":       {objects: of(two, claim("c").PoolRef(ours, "networkpool", "p").Obj()), of: "claim/c", wantReason: "its poolRef names kind networkpool", wantAdvice: "create the claim again with kind NetworkPool", applyAdvice: remake(c), want: granted},
		"the claim names a pool of ours":     {objects: of(two, claim("c").PoolRef("ipam.cluster.x-k8s.io", "InClusterIPPool", "p").Obj()), of: "claim/c", wantReason: "InClusterIPPool ns/p does not exist", wantAdvice: "create this claim again with the right poolRef", applyAdvice: remake(c), want: granted},
		"a manager runs for a claim":         {objects: of(two, c), unserved: true, of: "claim/c", wantReason: "no manager has reconciled NetworkPool ns/p yet", wantAdvice: "is the manager running", applyAdvice: nothing, want: granted},
		"a manager runs for a pool":          {objects: of(two), unserved: true, of: "np/p", wantReason: "no manager has reconciled it", wantAdvice: "is the manager running", applyAdvice: nothing, want: "grants addresses"},
		"a manager comes to see the spec":    {objects: of(two), before: then(served, widen), unserved: true, of: "np/p", wantReason: "the manager has not seen this spec yet", wantAdvice: "check that a manager is running", applyAdvice: nothing, want: "grants addresses"},
		"a manager comes to serve a claim":   {objects: of(two), before: then(served, add(c)), unserved: true, of: "claim/c", wantReason: "nothing is in its way", wantAdvice: "is one running", applyAdvice: nothing, want: granted},
		"a claim has the label of the filter": {objects: of(two, c), before: func(w *management) { w.filter = "x" }, of: "claim/c", wantReason: "nothing is in its way", wantAdvice: "does its --watch-filter select the label " + clusterv1.WatchLabel + ", which is not set here",
			applyAdvice: editClaim(func(c *ipamv1.IPAddressClaim) { c.Labels = map[string]string{clusterv1.WatchLabel: "x"} }), want: granted},

		"a younger pool has other addresses":               {objects: of(older(), two, c), of: "claim/c", wantReason: "grants nothing now (Overlap)", wantAdvice: "give the pool other addresses", applyAdvice: editPool("p", func(p *v1alpha1.NetworkPool) { p.Spec.Addresses = []string{"10.0.0.32"} }), want: "has 10.0.0.32"},
		"a younger pool is in another network":             {objects: of(older(), two, c), of: "np/p", wantReason: "Overlap", wantAdvice: "or another spec.network", applyAdvice: editPool("p", func(p *v1alpha1.NetworkPool) { p.Spec.Network = "other" }), want: "grants addresses"},
		"a younger pool may overlap":                       {objects: of(older(), two, c), of: "claim/c", wantReason: "grants nothing now (Overlap)", wantAdvice: "or set spec.allowOverlap", applyAdvice: editPool("p", func(p *v1alpha1.NetworkPool) { p.Spec.AllowOverlap = true }), want: granted},
		"an elder pool has other addresses":                {objects: of(older(), two), of: "np/elder", wantReason: "NetworkPool ns/p", wantAdvice: "give one of the two pools other addresses", applyAdvice: editPool("p", func(p *v1alpha1.NetworkPool) { p.Spec.Addresses = []string{"10.0.0.32"} }), want: "grants addresses"},
		"of two that both grant one is in another network": {objects: of(older(), pool("10.0.0.1").AllowOverlap().Obj()), of: "np/p", wantReason: "NetworkPool ns/elder", wantAdvice: "or another spec.network, unless both are to give the same addresses", applyAdvice: editPool("p", func(p *v1alpha1.NetworkPool) { p.Spec.Network = "other" }), want: "grants addresses"},
		"a spec is corrected":                              {objects: of(pool("10.0.0.9-10.0.0.1").Obj(), c), of: "claim/c", wantReason: "grants nothing now (ValidationFailed)", wantAdvice: "correct the field of the pool that the message names", applyAdvice: editPool("p", func(p *v1alpha1.NetworkPool) { p.Spec.Addresses = []string{"10.0.0.1-10.0.0.9"} }), want: granted},
		"a pool that leaves nothing is widened":            {objects: of(pool("10.0.0.1").Reserved("10.0.0.1").Obj(), c), of: "claim/c", wantReason: "grants nothing now (PoolExhausted)", wantAdvice: "add addresses to the pool", applyAdvice: widen, want: "has 10.0.0.32"},
		"a pool that leaves nothing reserves fewer":        {objects: of(pool("10.0.0.1").Reserved("10.0.0.1").Obj()), of: "np/p", wantReason: "PoolExhausted", wantAdvice: "or reserve fewer", applyAdvice: editPool("p", func(p *v1alpha1.NetworkPool) { p.Spec.Reserved = nil }), want: "grants addresses"},
		"a pool that is deleted is not used":               {objects: of(two, claim("x").Obj(), otherPool("q"), c), before: then(served, drop(two, "p"), add(claim("d").Obj()), again), of: "claim/d", wantReason: "grants nothing now (Deleting)", wantAdvice: "use another pool", applyAdvice: remake(claim("d").Pool("q").Obj()), want: "has 10.1.0.1"},
		"what a deleted pool has is deleted":               {objects: of(two, c), before: then(served, drop(two, "p"), again), of: "np/p", wantReason: "Deleting", wantAdvice: "delete the Machines of those claims, and what was made by hand", applyAdvice: drop(c, "c"), want: "is gone"},

		"a claim is paused no more": {objects: of(two), before: add(claim("c").Annotate(clusterv1.PausedAnnotation, "").Obj()), of: "claim/c", wantReason: "it is paused by its annotation", wantAdvice: "kubectl annotate ipaddressclaims.ipam.cluster.x-k8s.io -n ns c cluster.x-k8s.io/paused-", applyAdvice: editClaim(func(c *ipamv1.IPAddressClaim) { resumed(c) }), want: granted},
		"a pool is paused no more":  {objects: of(pool("10.0.0.1").Annotate(clusterv1.PausedAnnotation, "").Obj(), c), of: "claim/c", wantReason: "NetworkPool ns/p is paused", wantAdvice: "remove the annotation", applyAdvice: editPool("p", func(p *v1alpha1.NetworkPool) { resumed(p) }), want: granted},
		"the pool says so, too":     {objects: of(pool("10.0.0.1").Annotate(clusterv1.PausedAnnotation, "").Obj()), of: "np/p", wantReason: "it is paused", wantAdvice: "remove the annotation", applyAdvice: editPool("p", func(p *v1alpha1.NetworkPool) { resumed(p) }), want: "grants addresses"},
		"a Cluster is paused no more": {objects: of(pausedCluster(true), two, claim("c").Cluster("tenant").Obj()), of: "claim/c", wantReason: "its Cluster ns/tenant is paused", wantAdvice: `{"spec":{"paused":false}}`, applyAdvice: func(w *management) {
			edit(w, &clusterv1.Cluster{}, "tenant", func(c *clusterv1.Cluster) { c.Spec.Paused = new(bool) })
		}, want: granted},
		"a Cluster has no annotation any more": {objects: of(two, claim("c").Cluster("tenant").Obj()), before: func(w *management) {
			k := cluster.DeepCopy()
			k.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
			w.create(k)
		}, of: "claim/c", wantReason: "its Cluster ns/tenant is paused", wantAdvice: "or remove the annotation " + clusterv1.PausedAnnotation, applyAdvice: func(w *management) {
			edit(w, &clusterv1.Cluster{}, "tenant", func(c *clusterv1.Cluster) { resumed(c) })
		}, want: granted},
		"the Cluster of a claim is created": {objects: of(two, claim("c").Cluster("tenant").Obj()), of: "claim/c", wantReason: "tenant", wantAdvice: "create the Cluster", applyAdvice: add(cluster), want: granted},

		"a full pool has more addresses":     {objects: of(two, claim("x").Obj(), claim("y").Obj(), c), of: "claim/c", wantReason: "has no free address", wantAdvice: "add addresses to the pool", applyAdvice: widen, want: "has 10.0.0.32"},
		"a full pool has fewer claims":       {objects: of(two, claim("x").Obj(), claim("y").Obj(), c), of: "claim/c", wantReason: "has no free address", wantAdvice: "or delete machines or claims", applyAdvice: drop(c, "x"), want: granted},
		"a pool is full no more":             {objects: of(two, claim("x").Obj(), claim("y").Obj()), of: "np/p", wantReason: "0/2 IPs available", wantAdvice: "add addresses to the pool", applyAdvice: widen, want: "grants addresses"},
		"a pool has fewer claims":            {objects: of(two, claim("x").Obj(), claim("y").Obj()), of: "np/p", wantReason: "0/2 IPs available", wantAdvice: "or delete machines or claims that are not needed", applyAdvice: drop(c, "x"), want: "grants addresses"},
		"another address is asked for":       {objects: of(two, claim("c").RequestAddress("10.0.0.99").Obj()), of: "claim/c", wantReason: "10.0.0.99", wantAdvice: "ask for another", applyAdvice: editClaim(func(c *ipamv1.IPAddressClaim) { c.Annotations[v1alpha1.RequestedAddressAnnotation] = "10.0.0.1" }), want: granted},
		"no address is asked for":            {objects: of(two, claim("c").RequestAddress("10.0.0.99").Obj()), of: "claim/c", wantReason: "10.0.0.99", wantAdvice: "or remove the annotation", applyAdvice: editClaim(func(c *ipamv1.IPAddressClaim) { delete(c.Annotations, v1alpha1.RequestedAddressAnnotation) }), want: granted},
		"a block asks for fewer":             {objects: of(cluster, two, framework.MakeAllocation("ns", "b").Count(4).Obj()), of: "ipallocation/b", wantReason: "(2 free, at most 2 in a row)", wantAdvice: "ask for fewer", applyAdvice: remake(framework.MakeAllocation("ns", "b").Count(2).Obj()), want: "has 10.0.0.1-10.0.0.2"},
		"a lease asks for another":           {objects: of(leased(two), framework.MakeLease("ns", "l").RequestAddress("10.0.0.99").Obj()), of: "iplease/l", wantReason: "10.0.0.99", wantAdvice: "spec.address is immutable, so create the lease again with another one", applyAdvice: remake(framework.MakeLease("ns", "l").RequestAddress("10.0.0.1").Obj()), want: granted},
		"what refuses the writes is changed": {objects: of(two, c), before: func(w *management) { w.refused = true }, of: "claim/c", wantReason: "a policy refuses it", wantAdvice: "change the quota, policy or schema that refuses it", applyAdvice: func(w *management) { w.refused = false }, want: granted},

		"a finalizer of a claim is removed": {objects: of(two, c), before: then(served, editClaim(func(c *ipamv1.IPAddressClaim) { held(c) }), drop(c, "c"), again), of: "claim/c", wantReason: "the finalizer example.com/hold holds it", wantAdvice: "the controller that set it has to remove it", applyAdvice: editClaim(func(c *ipamv1.IPAddressClaim) { freed(c) }), want: "is gone"},
		"a finalizer of an IPAddress is removed": {objects: of(two, c), before: then(served, func(w *management) {
			edit(w, &ipamv1.IPAddress{}, "c", func(a *ipamv1.IPAddress) { held(a) })
		}, drop(c, "c"), again), of: "claim/c", wantReason: "IPAddress ns/c is kept by finalizer example.com/hold", wantAdvice: "ask its owner to remove it", applyAdvice: func(w *management) {
			edit(w, &ipamv1.IPAddress{}, "c", func(a *ipamv1.IPAddress) { freed(a) })
		}, want: "is gone"},
		"the claim of a deleted IPAddress is deleted": {objects: of(two, c), before: then(served, drop(&ipamv1.IPAddress{}, "c"), again), of: "claim/c", wantReason: "IPAddress ns/c was deleted, and stays as long as the claim", wantAdvice: "delete the claim", applyAdvice: drop(c, "c"), want: "is gone"},
		"a manager releases a claim":                  {objects: of(two, c), before: then(served, drop(c, "c")), unserved: true, of: "claim/c", wantReason: "no finalizer of another controller and no pause holds it", wantAdvice: "if not, check that a manager is running", applyAdvice: nothing, want: "is gone"},
		"a pool that is gone is created again": {objects: of(two, c), before: then(served, func(w *management) {
			edit(w, &v1alpha1.NetworkPool{}, "p", func(p *v1alpha1.NetworkPool) { p.Finalizers = nil })
		}, drop(two, "p")), unserved: true, of: "claim/c", wantReason: missing + ": nothing keeps another pool from granting its addresses", wantAdvice: "create the pool again, with these addresses in it", applyAdvice: add(two), want: granted},
		"the Cluster of a block is created": {objects: of(two, framework.MakeAllocation("ns", "b").Count(2).Obj()), of: "ipallocation/b", wantReason: "tenant", wantAdvice: "create the Cluster", applyAdvice: add(cluster), want: "has 10.0.0.1-10.0.0.2"},
		"a load balancer releases a block": {objects: of(cluster, two, framework.MakeAllocation("ns", "b").Count(2).Obj()), before: then(served, func(w *management) {
			edit(w, &v1alpha1.IPAllocation{}, "b", func(b *v1alpha1.IPAllocation) { controllerutil.AddFinalizer(b, v1alpha1.TenantPoolFinalizer) })
		}, drop(&v1alpha1.IPAllocation{}, "b"), again), of: "ipallocation/b", wantReason: "the Cluster has not released the block yet", wantAdvice: "the component load-balancers takes the finalizer " + v1alpha1.TenantPoolFinalizer + " off", applyAdvice: func(w *management) {
			edit(w, &v1alpha1.IPAllocation{}, "b", func(b *v1alpha1.IPAllocation) { controllerutil.RemoveFinalizer(b, v1alpha1.TenantPoolFinalizer) })
		}, want: "is gone"},
		"a lease is shown no more": {objects: of(leased(two), framework.MakeLease("ns", "l").Obj()), before: then(served, func(w *management) {
			edit(w, &v1alpha1.IPLease{}, "l", func(l *v1alpha1.IPLease) { controllerutil.AddFinalizer(l, v1alpha1.LeaseShownFinalizer) })
		}, drop(&v1alpha1.IPLease{}, "l"), again), of: "iplease/l", wantReason: "its address is shown to the world still", wantAdvice: "the controller that set the finalizer takes it off then", applyAdvice: func(w *management) {
			edit(w, &v1alpha1.IPLease{}, "l", func(l *v1alpha1.IPLease) { controllerutil.RemoveFinalizer(l, v1alpha1.LeaseShownFinalizer) })
		}, want: "is gone"},
		"a quota is raised":      {objects: of(cluster, two), before: ofQuota, of: "claim/c", wantReason: "quota", wantAdvice: "raise the quota", applyAdvice: func(w *management) { w.quota = 2 }, want: "has 10.0.0.2"},
		"a quota has room again": {objects: of(cluster, two), before: ofQuota, of: "claim/c", wantReason: "quota", wantAdvice: "delete claims", applyAdvice: drop(c, "x"), want: granted},
		"a finalizer of a ClusterCIDR is removed": {objects: of(&v1alpha1.ClusterCIDR{
			ObjectMeta: metav1.ObjectMeta{Name: "r", Finalizers: []string{"example.com/hold"}}, Spec: v1alpha1.ClusterCIDRSpec{IPv4: "10.128.0.0/16", PerNodeHostBits: 8},
		}), before: drop(&v1alpha1.ClusterCIDR{}, "r"), of: "cc/r", wantReason: "the finalizer example.com/hold holds it", wantAdvice: "the controller that set it has to remove it", applyAdvice: func(w *management) {
			edit(w, &v1alpha1.ClusterCIDR{}, "r", func(r *v1alpha1.ClusterCIDR) { freed(r) })
		}, want: "is gone"},
		"a copied pool is opened": {objects: of(framework.MakeGlobalPool("g").Addresses("10.0.0.1").Prefix(24).Obj()), before: func(w *management) {
			edit(w, &v1alpha1.GlobalNetworkPool{}, "g", func(g *v1alpha1.GlobalNetworkPool) {
				g.Annotations = map[string]string{v1alpha1.ManagementClusterAnnotation: "another"}
			})
		}, of: "gnp/g", wantReason: "Copied", wantAdvice: "`kubectl annotate globalnetworkpool NAME " + v1alpha1.ManagementClusterAnnotation + "-`", applyAdvice: func(w *management) {
			edit(w, &v1alpha1.GlobalNetworkPool{}, "g", func(g *v1alpha1.GlobalNetworkPool) { g.Annotations = nil })
		}, want: "grants addresses"},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, tc.run) })
	}
}

func (tc finding) run(t *testing.T) {
	w := newManagement(t)
	w.create(tc.objects...)
	if tc.before != nil {
		tc.before(w)
	}
	if !tc.unserved {
		w.serve()
	}
	output := w.explain(tc.of)
	why, do := "", ""
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if reason, found := strings.CutPrefix(line, "why:"); found && strings.Contains(reason, tc.wantReason) {
			why = reason
		} else if advice, found := strings.CutPrefix(line, "to do:"); found && why != "" && do == "" {
			do = advice
		}
	}
	if why == "" || !strings.Contains(do, tc.wantAdvice) {
		t.Fatalf("%s", output)
	}
	tc.applyAdvice(w)
	w.serve()
	after := w.explain(tc.of)
	if strings.Contains(after, why) || !strings.Contains(after, tc.want) {
		t.Errorf("it said\n%sand says then\n%s", output, after)
	}
}

// leased returns a copy of a pool that serves leases.
func leased(p *v1alpha1.NetworkPool) *v1alpha1.NetworkPool {
	p = p.DeepCopy()
	p.Spec.Leases = &v1alpha1.Leases{}
	return p
}

// otherPool returns a pool with other addresses.
func otherPool(name string) *v1alpha1.NetworkPool {
	return framework.MakePool(name).Namespace("ns").Addresses("10.1.0.1").Prefix(24).Obj()
}

func pausedCluster(paused bool) *clusterv1.Cluster {
	return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "tenant"}, Spec: clusterv1.ClusterSpec{Paused: &paused}}
}
