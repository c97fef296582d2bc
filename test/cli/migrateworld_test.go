package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/migrate"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// world is a namespace with a pool of the in-cluster provider, claims with addresses of it, and a claim that waits.
type world struct {
	ns      string
	source  migrate.Source
	pool    client.Object
	cluster *clusterv1.Cluster
	before  map[string]claimAndAddress
	network string
	// claims are the claims that are imported; owners own them besides the Cluster.
	claims []string
	owners []types.UID
}

// importedWorld is a world that can be imported, and rolled back.
type importedWorld interface {
	base() *world
	// expectHeld checks that no other claim can get an address in use, expectMoved that all are in our pool, and
	// expectBack that everything is as before.
	expectHeld(t *testing.T)
	expectMoved(t *testing.T)
	expectBack(t *testing.T)
}

func (w *world) base() *world { return w }

// claimAndAddress is a claim and its IPAddress, without the fields that change when they are created again.
type claimAndAddress struct {
	PoolRef                       ipamv1.IPPoolReference
	Labels, Annotations           map[string]string
	Finalizers                    []string
	Owners                        []string
	Ref                           string
	Address, Gateway              string
	Prefix                        int32
	AddressPool                   ipamv1.IPPoolReference
	AddressLabels                 map[string]string
	AddressFinalizers, AddrOwners []string
}

const foreignFinalizer = "metal3data.infrastructure.cluster.x-k8s.io"

// inClusterPool returns a pool of the in-cluster provider; without a namespace it is a global one.
func inClusterPool(ns, name, network string) *unstructured.Unstructured {
	kind := incluster.IPPoolKind
	if ns == "" {
		kind = incluster.GlobalIPPoolKind
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "ipam.cluster.x-k8s.io/v1alpha2", "kind": kind,
		"metadata": map[string]any{"name": name, "namespace": ns, "annotations": map[string]any{clusterv1.PausedAnnotation: ""}, "labels": map[string]any{"site": "a"}},
		"spec": map[string]any{
			"addresses": []any{network + ".10-" + network + ".20", network + ".33/28"}, "prefix": int64(24), "gateway": network + ".1",
			"excludedAddresses": []any{network + ".12", network + ".200"}, "addressReuseGracePeriodSeconds": int64(60),
		},
	}}
}

var worlds atomic.Int64

// newWorld creates a world in a namespace and a network of its own.
func newWorld(t *testing.T, global bool) *world {
	t.Helper()
	n := worlds.Add(1)
	return newWorldIn(t, newNamespace(t, nil), fmt.Sprintf("10.%d.%d", 100+n/250, n%250), global)
}

// newLocalWorld and newGlobalWorld create a world with a pool of each scope.
func newLocalWorld(t *testing.T) *world {
	t.Helper()
	return newWorld(t, false)
}

func newGlobalWorld(t *testing.T) *world {
	t.Helper()
	return newWorld(t, true)
}

// newWorldIn creates a world in the given namespace and network. The claims are as the provider leaves them.
func newWorldIn(t *testing.T, ns, network string, global bool) *world {
	t.Helper()
	w := &world{ns: ns, network: network, claims: []string{"a", "b", "waits"}}
	w.source = migrate.Source{Kind: incluster.IPPoolKind, Namespace: w.ns, Name: "machines"}
	if global {
		w.source = migrate.Source{Kind: incluster.GlobalIPPoolKind, Name: "machines-" + w.ns}
	}
	w.pool = inClusterPool(w.source.Namespace, w.source.Name, w.network)
	w.cluster = &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "k"},
		Spec:       clusterv1.ClusterSpec{Paused: ptr.To(true), ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "h", Port: 1}},
	}
	create(t, w.pool, w.cluster)
	for name, last := range map[string]string{"a": ".10", "b": ".36"} {
		w.bindClaim(t, name, w.network+last)
	}
	create(t, w.claim("waits"))
	w.before = w.listClaimsAndAddresses(t)
	return w
}

func (w *world) claim(name string) *ipamv1.IPAddressClaim {
	c := framework.MakeClaim(w.ns, name).PoolRef("ipam.cluster.x-k8s.io", w.source.Kind, w.source.Name).ClusterLabel("k").Label("team", "x").Annotate("note", name).Obj()
	c.Finalizers = []string{"ipam.cluster.x-k8s.io/ReleaseAddress", foreignFinalizer}
	c.OwnerReferences = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: "k", UID: w.cluster.UID}}
	return c
}

// bindClaim does what the in-cluster provider does for a claim.
func (w *world) bindClaim(t *testing.T, name, address string) {
	t.Helper()
	claim := w.claim(name)
	create(t, claim)
	create(t, &ipamv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.ns, Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: "k"}, Finalizers: []string{"ipam.cluster.x-k8s.io/ProtectAddress"},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: ipamv1.GroupVersion.String(), Kind: "IPAddressClaim", Name: name, UID: claim.UID, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)},
				{
					APIVersion: "ipam.cluster.x-k8s.io/v1alpha2", Kind: w.source.Kind, Name: w.source.Name, UID: w.pool.GetUID(),
					Controller: ptr.To(false), BlockOwnerDeletion: ptr.To(true),
				},
			},
		},
		Spec: ipamv1.IPAddressSpec{
			ClaimRef: ipamv1.IPAddressClaimReference{Name: name}, PoolRef: claim.Spec.PoolRef,
			Address: address, Prefix: ptr.To[int32](24), Gateway: w.network + ".1",
		},
	})
	claim.Status.AddressRef.Name = name
	if err := k8s.Status().Update(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
}

func (w *world) move(c client.Client) *migrate.Import {
	return &migrate.Import{Client: c, Source: w.source, JournalNamespace: w.ns, Reportf: func(string, ...any) {}}
}

func (w *world) target() v1alpha1.Pool {
	about := metav1.ObjectMeta{Namespace: w.source.Namespace, Name: w.source.Name}
	if w.source.Namespace == "" {
		return &v1alpha1.GlobalNetworkPool{ObjectMeta: about}
	}
	return &v1alpha1.NetworkPool{ObjectMeta: about}
}

// listClaimsAndAddresses reads the claims and their IPAddresses. An owner is formatted as its kind and name, and
// whether its UID is that of an existing object.
func (w *world) listClaimsAndAddresses(t *testing.T) map[string]claimAndAddress {
	t.Helper()
	claims, addresses := &ipamv1.IPAddressClaimList{}, &ipamv1.IPAddressList{}
	for _, l := range []client.ObjectList{claims, addresses} {
		if err := k8s.List(t.Context(), l, client.InNamespace(w.ns)); err != nil {
			t.Fatal(err)
		}
	}
	living := map[types.UID]bool{w.cluster.UID: true, w.pool.GetUID(): true}
	ours := w.target()
	if k8s.Get(t.Context(), client.ObjectKeyFromObject(ours), ours) == nil {
		living[ours.GetUID()] = true
	}
	for _, uid := range w.owners {
		living[uid] = true
	}
	for i := range claims.Items {
		living[claims.Items[i].UID] = true
	}
	owners := func(refs []metav1.OwnerReference) (out []string) {
		for _, r := range refs {
			out = append(out, fmt.Sprintf("%s %s %s %t %t %t", r.APIVersion, r.Kind, r.Name, living[r.UID], ptr.Deref(r.Controller, false), ptr.Deref(r.BlockOwnerDeletion, false)))
		}
		return out
	}
	out := map[string]claimAndAddress{}
	for i := range claims.Items {
		c := &claims.Items[i]
		out[c.Name] = claimAndAddress{
			PoolRef: c.Spec.PoolRef, Labels: c.Labels, Annotations: c.Annotations, Finalizers: c.Finalizers, Owners: owners(c.OwnerReferences), Ref: c.Status.AddressRef.Name,
		}
	}
	for i := range addresses.Items {
		a := &addresses.Items[i]
		x := out[a.Name]
		x.Address, x.Gateway, x.Prefix, x.AddressPool = a.Spec.Address, a.Spec.Gateway, *a.Spec.Prefix, a.Spec.PoolRef
		x.AddressLabels, x.AddressFinalizers, x.AddrOwners = a.Labels, a.Finalizers, owners(a.OwnerReferences)
		out[a.Name] = x
	}
	return out
}

// expectHeld checks that each address in use is in an IPAddress, or on record in a claim of our pool; on the way
// back, if the claim is the old one again already, that the status of our pool holds it.
func (w *world) expectHeld(t *testing.T) {
	t.Helper()
	current := w.listClaimsAndAddresses(t)
	pool, held := w.target(), ""
	if k8s.Get(t.Context(), client.ObjectKeyFromObject(pool), pool) == nil {
		for _, h := range pool.PoolStatus().Held {
			held += h.First + " " + h.Last + " "
		}
	}
	for name, was := range w.before {
		back := current[name].PoolRef.Kind == w.source.Kind && strings.Contains(held, was.Address+" ")
		if x := current[name]; was.Address != "" && !back && x.Address != was.Address && x.Annotations[v1alpha1.AddressAnnotation] != was.Address {
			t.Errorf("no claim holds %s of %s", was.Address, name)
		}
	}
}

// expectBack checks that everything is as it was before.
func (w *world) expectBack(t *testing.T) {
	t.Helper()
	if diff := cmp.Diff(w.before, w.listClaimsAndAddresses(t)); diff != "" {
		t.Errorf("it is not as it was: %s", diff)
	}
	if err := gone(w.target())(t.Context()); err != nil {
		t.Error(err)
	}
	w.expectNoJournal(t)
}

func (w *world) expectNoJournal(t *testing.T) {
	t.Helper()
	if phase, err := w.move(k8s).CurrentPhase(t.Context()); phase != "" || err != nil {
		t.Errorf("the journal says %q: %v", phase, err)
	}
}

// expectMoved checks that everything is as it was, but in our pool.
func (w *world) expectMoved(t *testing.T) {
	t.Helper()
	want := map[string]claimAndAddress{}
	ref := ipamv1.IPPoolReference{APIGroup: v1alpha1.GroupVersion.Group, Kind: v1alpha1.NetworkPoolKind, Name: w.source.Name}
	if w.source.Namespace == "" {
		ref.Kind = v1alpha1.GlobalNetworkPoolKind
	}
	for name, was := range w.before {
		was.PoolRef = ref
		if was.Address != "" {
			was.AddressPool = ref
			was.Annotations = map[string]string{"note": name, v1alpha1.AddressAnnotation: was.Address}
			was.AddrOwners = slices.Clone(was.AddrOwners)
			was.AddrOwners[1] = fmt.Sprintf("%s %s %s true false true", v1alpha1.GroupVersion, ref.Kind, ref.Name)
		}
		want[name] = was
	}
	if diff := cmp.Diff(want, w.listClaimsAndAddresses(t)); diff != "" {
		t.Errorf("it is not as it was: %s", diff)
	}
	pool := w.target()
	if err := k8s.Get(t.Context(), client.ObjectKeyFromObject(pool), pool); err != nil {
		t.Fatal(err)
	}
	if _, paused := pool.GetAnnotations()[clusterv1.PausedAnnotation]; paused || len(pool.PoolStatus().Held) > 0 {
		t.Errorf("the pool is not open: %v %v", pool.GetAnnotations(), pool.PoolStatus().Held)
	}
}

// unpause unpauses the Cluster.
func (w *world) unpause(t *testing.T) {
	t.Helper()
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"paused":false}}`))
	if err := k8s.Patch(t.Context(), w.cluster, patch); err != nil {
		t.Fatal(err)
	}
}

var pausePatch = client.RawPatch(types.MergePatchType, []byte(`{"spec":{"paused":true}}`))

// adopted returns a condition that is met when a manager has taken the pool over and waits (R10: a pool without a
// record of an allocator waits).
func adopted(pool v1alpha1.Pool) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := k8s.Get(ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
			return err
		}
		c := meta.FindStatusCondition(pool.GetConditions(), v1alpha1.ReadyCondition)
		if c == nil || c.Reason != v1alpha1.AdoptingReason || pool.PoolStatus().AllocatedIPs == 0 {
			return fmt.Errorf("%s: %v", pool.GetName(), c)
		}
		return nil
	}
}
