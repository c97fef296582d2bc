package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	m3ipamv1 "github.com/metal3-io/ip-address-manager/api/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/migrate"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// metal3World is a namespace with a pool of Metal3's IPAM: two ranges, a preAllocation, addresses in use, and an
// IPClaim that waits.
type metal3World struct {
	*world
	pool   *m3ipamv1.IPPool
	before []client.Object
	// given maps the names of claims to their addresses.
	given map[string]string
}

func newMetal3World(t *testing.T) *metal3World {
	t.Helper()
	n := worlds.Add(1)
	return newMetal3WorldIn(t, newNamespace(t, nil), fmt.Sprintf("10.%d.%d", 100+n/250, n%250))
}

func newMetal3WorldIn(t *testing.T, ns, network string) *metal3World {
	t.Helper()
	text := func(last string) *m3ipamv1.IPAddressStr { return ptr.To(m3ipamv1.IPAddressStr(network + last)) }
	return newMetal3WorldOf(t, ns, "hosts", m3ipamv1.IPPoolSpec{
		NamePrefix: "prov", ClusterName: ptr.To("k"), Prefix: 25, Gateway: text(".1"), DNSServers: []m3ipamv1.IPAddressStr{"10.0.0.53"},
		Pools: []m3ipamv1.Pool{
			{Start: text(".10"), End: text(".20")},
			{Start: text(".140"), End: text(".150"), Gateway: text(".129")},
		},
		PreAllocations: map[string]m3ipamv1.IPAddressStr{"workers-1-hosts": *text(".145"), "vip-hosts": *text(".20")},
	}, map[string]m3ipamv1.IPAddressSpec{
		"workers-0": {Address: *text(".10"), Prefix: 25, Gateway: text(".1"), DNSServers: []m3ipamv1.IPAddressStr{"10.0.0.53"}},
		"workers-1": {Address: *text(".145"), Prefix: 25, Gateway: text(".129")},
	})
}

// newMetal3WorldOf creates a pool, claims of machines that have addresses of it, and one that waits.
func newMetal3WorldOf(t *testing.T, ns, name string, spec m3ipamv1.IPPoolSpec, allocated map[string]m3ipamv1.IPAddressSpec) *metal3World {
	t.Helper()
	w := &metal3World{
		world: &world{ns: ns, source: migrate.Source{Kind: migrate.Metal3IPPoolKind, Namespace: ns, Name: name}},
		pool:  &m3ipamv1.IPPool{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Finalizers: []string{m3ipamv1.IPPoolFinalizer}}, Spec: spec},
		given: map[string]string{},
	}
	w.world.pool = w.pool
	w.cluster = &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "k"},
		Spec:       clusterv1.ClusterSpec{Paused: ptr.To(true), ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "h", Port: 1}},
	}
	if err := client.IgnoreAlreadyExists(k8s.Create(t.Context(), w.cluster)); err != nil {
		t.Fatal(err)
	}
	if err := k8s.Get(t.Context(), client.ObjectKeyFromObject(w.cluster), w.cluster); err != nil { // it may exist already
		t.Fatal(err)
	}
	w.pool.OwnerReferences = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: "k", UID: w.cluster.UID}}
	create(t, w.pool)
	for data, spec := range allocated {
		claim := w.createIPClaim(t, data)
		if err := framework.FulfilAsMetal3(t.Context(), k8s, w.pool, claim, spec); err != nil {
			t.Fatal(err)
		}
		w.claims, w.owners = append(w.claims, claim.Name), append(w.owners, claim.UID)
		w.given[claim.Name] = string(spec.Address)
	}
	if err := framework.AddMetal3Finalizer(t.Context(), k8s, w.createIPClaim(t, "waits")); err != nil {
		t.Fatal(err)
	}
	w.before = w.listMetal3Objects(t)
	w.world.before = map[string]claimAndAddress{}
	for name, address := range w.given {
		w.world.before[name] = claimAndAddress{Address: address}
	}
	return w
}

// createIPClaim creates the IPClaim of a machine, as CAPM3 does.
func (w *metal3World) createIPClaim(t *testing.T, data string) *m3ipamv1.IPClaim {
	t.Helper()
	uid := types.UID("data-" + data)
	w.owners = append(w.owners, uid)
	claim := framework.NewMetal3Claim(w.ns, data, w.pool.Name, metav1.OwnerReference{
		APIVersion: "infrastructure.cluster.x-k8s.io/v1beta2", Kind: "Metal3Data", Name: data, UID: uid, Controller: ptr.To(true),
	}, map[string]string{clusterv1.ClusterNameLabel: "k"})
	create(t, claim)
	return claim
}

// listMetal3Objects returns the objects of Metal3's kinds that belong to the pool, without the fields that an API
// server sets. The UID of an owner is replaced by whether the owner exists.
func (w *metal3World) listMetal3Objects(t *testing.T) (out []client.Object) {
	t.Helper()
	poolList, claimList, addressList := &m3ipamv1.IPPoolList{}, &m3ipamv1.IPClaimList{}, &m3ipamv1.IPAddressList{}
	for _, l := range []client.ObjectList{poolList, claimList, addressList} {
		if err := k8s.List(t.Context(), l, client.InNamespace(w.ns)); err != nil {
			t.Fatal(err)
		}
	}
	living := map[types.UID]bool{w.cluster.UID: true}
	for _, uid := range w.owners {
		living[uid] = true
	}
	for i := range poolList.Items {
		if p := &poolList.Items[i]; p.Name == w.pool.Name {
			living[p.UID] = true
			out = append(out, p)
		}
	}
	for i := range claimList.Items {
		if c := &claimList.Items[i]; c.Spec.Pool.Name == w.pool.Name {
			out = append(out, c)
		}
	}
	for i := range addressList.Items {
		if a := &addressList.Items[i]; a.Spec.Pool.Name == w.pool.Name {
			out = append(out, a)
		}
	}
	for _, obj := range out {
		owners := slices.Clone(obj.GetOwnerReferences())
		for i := range owners {
			owners[i].UID = types.UID(fmt.Sprintf("living: %t", living[owners[i].UID]))
		}
		obj.SetOwnerReferences(owners)
		obj.SetUID("")
		obj.SetResourceVersion("")
		obj.SetGeneration(0)
		obj.SetCreationTimestamp(metav1.Time{})
		obj.SetManagedFields(nil)
		finalizers := slices.Clone(obj.GetFinalizers())
		slices.Sort(finalizers)
		obj.SetFinalizers(finalizers)
	}
	return out
}

func (w *metal3World) poolExists(t *testing.T) bool {
	t.Helper()
	err := k8s.Get(t.Context(), client.ObjectKeyFromObject(w.pool), &m3ipamv1.IPPool{})
	if client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	return !apierrors.IsNotFound(err)
}

// expectHeld checks that only one of the two pools exists, that CAPM3 finds the address of each machine at any time,
// and that IPAddresses of our pool have the addresses, or our claims have them on record, as soon as our pool is
// open.
func (w *metal3World) expectHeld(t *testing.T) {
	t.Helper()
	pool := w.target()
	ours := k8s.Get(t.Context(), client.ObjectKeyFromObject(pool), pool) == nil
	if ours && w.poolExists(t) {
		t.Error("both pools exist")
	}
	_, paused := pool.GetAnnotations()[clusterv1.PausedAnnotation]
	current := w.listClaimsAndAddresses(t)
	for name, address := range w.given {
		if got := w.readAddressAsCAPM3(t, name); got != address {
			t.Errorf("CAPM3 finds %q for %s, it was %s", got, name, address)
		}
		if ours && !paused && current[name].Address != address && current[name].Annotations[v1alpha1.AddressAnnotation] != address {
			t.Errorf("our pool is open, and no claim holds %s of %s", address, name)
		}
	}
}

func (w *metal3World) expectBack(t *testing.T) {
	t.Helper()
	if diff := cmp.Diff(unserved(w.before), unserved(w.listMetal3Objects(t)), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("it is not as it was: %s", diff)
	}
	if left := w.listOwnObjects(t); len(left) > 0 {
		t.Errorf("claims of ours are left: %v", left)
	}
	if err := gone(w.target())(t.Context()); err != nil {
		t.Error(err)
	}
	w.expectNoJournal(t)
}

// unserved returns the objects without Metal3's finalizer on IPClaims that wait; Metal3's IPAM puts it on again when
// it runs.
func unserved(objects []client.Object) (out []client.Object) {
	for _, obj := range objects {
		obj = obj.DeepCopyObject().(client.Object)
		if c, ok := obj.(*m3ipamv1.IPClaim); ok && c.Status.Address == nil {
			controllerutil.RemoveFinalizer(c, m3ipamv1.IPClaimFinalizer)
		}
		out = append(out, obj)
	}
	return out
}

// expectMoved checks that a claim of our pool exists beside each IPClaim that has an address, and that all objects
// that CAPM3 reads are as before.
func (w *metal3World) expectMoved(t *testing.T) {
	t.Helper()
	if w.poolExists(t) {
		t.Error("the IPPool exists")
	}
	pool := w.target()
	if err := k8s.Get(t.Context(), client.ObjectKeyFromObject(pool), pool); err != nil {
		t.Fatal(err)
	}
	if _, paused := pool.GetAnnotations()[clusterv1.PausedAnnotation]; paused || len(pool.PoolStatus().Held) > 0 {
		t.Errorf("the pool is not open: %v %v", pool.GetAnnotations(), pool.PoolStatus().Held)
	}
	if diff := cmp.Diff(w.wantOwnObjects(), w.listOwnObjects(t)); diff != "" {
		t.Errorf("what is ours: %s", diff)
	}
	var want []client.Object
	for _, obj := range w.before {
		obj = obj.DeepCopyObject().(client.Object)
		switch o := obj.(type) {
		case *m3ipamv1.IPPool:
			continue
		case *m3ipamv1.IPClaim:
			o.Finalizers = []string{framework.Metal3DataFinalizer}
		case *m3ipamv1.IPAddress:
			o.Finalizers = nil
			o.OwnerReferences[0].UID = "living: false" // the garbage collector of Kubernetes removes this reference
		}
		want = append(want, obj)
	}
	if diff := cmp.Diff(want, w.listMetal3Objects(t), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("what CAPM3 looks for: %s", diff)
	}
}

// listOwnObjects returns the claims and IPAddresses of our pool.
func (w *metal3World) listOwnObjects(t *testing.T) map[string]claimAndAddress {
	t.Helper()
	out := w.listClaimsAndAddresses(t)
	maps.DeleteFunc(out, func(_ string, x claimAndAddress) bool { return x.PoolRef.Name != w.pool.Name })
	return out
}

// wantOwnObjects returns the expected claims and IPAddresses of our pool.
func (w *metal3World) wantOwnObjects() map[string]claimAndAddress {
	out := map[string]claimAndAddress{}
	ref := ipamv1.IPPoolReference{APIGroup: v1alpha1.GroupVersion.Group, Kind: v1alpha1.NetworkPoolKind, Name: w.pool.Name}
	label := map[string]string{clusterv1.ClusterNameLabel: "k"}
	for _, obj := range w.before {
		a, ok := obj.(*m3ipamv1.IPAddress)
		if !ok {
			continue
		}
		name := a.Spec.Claim.Name
		out[name] = claimAndAddress{
			PoolRef: ref, Labels: label, Annotations: map[string]string{v1alpha1.AddressAnnotation: string(a.Spec.Address)},
			Finalizers: []string{v1alpha1.ClaimFinalizer}, Owners: []string{
				owner("infrastructure.cluster.x-k8s.io/v1beta2 Metal3Data "+strings.TrimSuffix(name, "-"+w.pool.Name), true, false),
				owner("ipam.metal3.io/v1alpha1 IPClaim "+name, false, false),
			},
			Ref: name, Address: string(a.Spec.Address), Prefix: int32(a.Spec.Prefix), Gateway: string(ptr.Deref(a.Spec.Gateway, "")),
			AddressPool: ref, AddressLabels: label, AddressFinalizers: []string{v1alpha1.AddressFinalizer}, AddrOwners: []string{
				owner("ipam.cluster.x-k8s.io/v1beta2 IPAddressClaim "+name, true, true),
				owner(v1alpha1.GroupVersion.String()+" NetworkPool "+w.pool.Name, false, true),
			},
		}
	}
	return out
}

// owner returns a reference to an owner that exists, in the format of listClaimsAndAddresses.
func owner(ref string, controller, blocks bool) string {
	return fmt.Sprintf("%s true %t %t", ref, controller, blocks)
}

// readAddressAsCAPM3 returns the address of a machine whose template names the pool of Metal3, as CAPM3 reads it:
// empty if CAPM3 would wait.
func (w *metal3World) readAddressAsCAPM3(t *testing.T, name string) string {
	t.Helper()
	claim := &m3ipamv1.IPClaim{}
	if err := k8s.Get(t.Context(), client.ObjectKey{Namespace: w.ns, Name: name}, claim); err != nil {
		t.Fatal(err)
	}
	address := &m3ipamv1.IPAddress{}
	err := k8s.Get(t.Context(), client.ObjectKey{Namespace: w.ns, Name: ptr.Deref(claim.Status.Address, corev1.ObjectReference{}).Name}, address)
	if client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	return string(address.Spec.Address)
}
