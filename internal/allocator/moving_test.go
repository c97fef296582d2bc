package allocator

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ending"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
)

// What clusterctl is deleting and was ended over goes, and not before its address is held on record, nor before clusterctl
// had time to end it.
func TestEndsOfMoves(t *testing.T) {
	theirs := func(c *ipamv1.IPAddressClaim) { c.Finalizers = append(c.Finalizers, "example.com/theirs") }
	lease := func(c *ipamv1.IPAddressClaim) {
		c.Finalizers = []string{v1alpha1.LeaseShownFinalizer} // any other of ours
	}
	holds := func(o *v1alpha1.NetworkPool) {
		o.Status.Held = []v1alpha1.HeldRange{{First: "10.0.0.1", Last: "10.0.0.2", Reason: v1alpha1.MovedReason}}
	}
	for name, tc := range map[string]struct {
		is   []func(*ipamv1.IPAddressClaim)
		pool []func(*v1alpha1.NetworkPool)
		ends bool
		left []string // finalizers
	}{
		"Held":          {is: []func(*ipamv1.IPAddressClaim){remembers("10.0.0.1"), isMoved, ends}, pool: []func(*v1alpha1.NetworkPool){holds}, ends: true, left: []string{}},
		"HeldAndTheirs": {is: []func(*ipamv1.IPAddressClaim){remembers("10.0.0.1"), isMoved, ends, theirs}, pool: []func(*v1alpha1.NetworkPool){holds}, ends: true, left: []string{"example.com/theirs"}},
		"AnotherOfOurs": {is: []func(*ipamv1.IPAddressClaim){isMoved, ends, lease}, ends: true, left: []string{}},
		"NotHeld":       {is: []func(*ipamv1.IPAddressClaim){remembers("10.0.0.1"), isMoved, ends}},
		"MarkedAlone":   {is: []func(*ipamv1.IPAddressClaim){remembers("10.0.0.1"), isMoved}, pool: []func(*v1alpha1.NetworkPool){holds}},
		"DeletedAlone":  {is: []func(*ipamv1.IPAddressClaim){remembers("10.0.0.1"), ends}, pool: []func(*v1alpha1.NetworkPool){holds}},
		"TheirsAlone":   {is: []func(*ipamv1.IPAddressClaim){isMoved, ends, noFinalizer, theirs}},
	} {
		t.Run(name, func(t *testing.T) {
			p := aPool(t, "10.0.0.1-10.0.0.9", tc.pool...)
			c := see(p, "c", 0, tc.is...)
			if got := p.EndsOfMoves(noon, 9); len(got.Claimants) > 0 || (got.Wait > 0) != tc.ends {
				t.Errorf("at once: %+v", got)
			}
			later := noon.Add(ending.Patience)
			if got := p.EndsOfMoves(later, 9).Claimants; slices.Contains(got, c.Owner.UID) != tc.ends {
				t.Errorf("%v ends, want %v", got, tc.ends)
			}
			if got := p.EndsOfMoves(later.Add(time.Second), 9).Claimants; len(got) > 0 {
				t.Errorf("%v again, a second later", got)
			}
			if tc.ends {
				if d := cmp.Diff(map[string]any{"finalizers": tc.left}, grants.EndOfMove(c).Meta); d != "" {
					t.Error(d)
				}
				p.Forget(c.Owner.UID)
				if got := p.EndsOfMoves(later.Add(time.Hour), 9); len(got.Claimants) > 0 || got.Wait > 0 {
					t.Errorf("it is gone: %+v", got)
				}
			}
		})
	}
}

// movedAddress is the IPAddress of a claim, which clusterctl has moved and is deleting.
func movedAddress(name, address string, change ...func(*ipamv1.IPAddress)) *grants.Attached {
	o := &ipamv1.IPAddress{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID("address-" + name), ResourceVersion: "7", Finalizers: []string{v1alpha1.AddressFinalizer},
		Annotations: map[string]string{v1alpha1.DeleteForMoveAnnotation: ""}, DeletionTimestamp: &metav1.Time{Time: noon},
	}}
	o.Spec.ClaimRef.Name, o.Spec.PoolRef, o.Spec.Address = name, testKey.Ref(), address
	o.OwnerReferences = []metav1.OwnerReference{{APIVersion: ipamv1.GroupVersion.String(), Kind: "IPAddressClaim", Name: name, UID: types.UID("uid-" + name)}}
	for _, f := range change {
		f(o)
	}
	return claims.AddressOf(o)
}

// An IPAddress goes before its claim.
func TestEndOfAMovedAddress(t *testing.T) {
	address := func(change ...func(*ipamv1.IPAddress)) *grants.Attached {
		return movedAddress("c", "10.0.0.1", change...)
	}
	held := v1alpha1.HeldRange{First: "10.0.0.1", Last: "10.0.0.1", Reason: v1alpha1.MovedReason}
	for name, tc := range map[string]struct {
		address *grants.Attached
		held    []v1alpha1.HeldRange
		ends    bool
	}{
		"Held":       {address: address(), held: []v1alpha1.HeldRange{held}, ends: true},
		"NotHeld":    {address: address()},
		"Deleted":    {address: address(func(o *ipamv1.IPAddress) { o.Annotations = nil }), held: []v1alpha1.HeldRange{held}},
		"NotDeleted": {address: address(func(o *ipamv1.IPAddress) { o.DeletionTimestamp = nil }), held: []v1alpha1.HeldRange{held}},
		"Without":    {address: address(func(o *ipamv1.IPAddress) { o.Finalizers = nil }), held: []v1alpha1.HeldRange{held}},
	} {
		t.Run(name, func(t *testing.T) {
			p := aPool(t, "10.0.0.1-10.0.0.9", func(o *v1alpha1.NetworkPool) { o.Status.Held = tc.held })
			see(p, "c", 0, remembers("10.0.0.1"), bothReady)
			p.ObserveAttached(tc.address)
			p.EndsOfMoves(noon, 9)
			got := p.EndsOfMoves(noon.Add(ending.Patience), 9).Attached
			if (len(got) == 1) != tc.ends {
				t.Errorf("%d end, want %v", len(got), tc.ends)
			}
			p.ForgetAttached("address-c", types.NamespacedName{Namespace: "ns", Name: "c"})
			if got := p.EndsOfMoves(noon.Add(time.Hour), 9); len(got.Attached) > 0 || got.Wait > 0 {
				t.Errorf("it is gone: %+v", got)
			}
		})
	}
}

// However many IPAddresses are left of a move, and whenever each was seen, those that cannot be ended are tried again at moments
// that are for all, and ever more rarely.
func TestEndsOfMovesThatFail(t *testing.T) {
	p := aPool(t, "10.0.0.1-10.0.0.99", func(o *v1alpha1.NetworkPool) {
		o.Status.Held = []v1alpha1.HeldRange{{First: "10.0.0.1", Last: "10.0.0.99", Reason: v1alpha1.MovedReason}}
	})
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "ipaddresses"}, "a", errors.New("a policy refuses it"))
	const n = 80
	tries := map[time.Duration]int{} // since noon
	for at := time.Duration(0); at < 3*time.Minute; at += 100 * time.Millisecond {
		now := noon.Add(at)
		if i := int(at / (100 * time.Millisecond)); i < n {
			p.ObserveAttached(movedAddress(fmt.Sprint("c", i), fmt.Sprintf("10.0.0.%d", i+1)))
		}
		for _, a := range p.EndsOfMoves(now, n).Attached {
			tries[at]++
			if again := p.NoteEndOfMove(a.UID, refused, now); again.Sub(now) < ending.Patience {
				t.Fatalf("it is tried again after %v", again.Sub(now))
			}
		}
	}
	all := 0
	for at, n := range tries {
		if all += n; at > 2*ending.Patience && at%(10*time.Second) != 0 {
			t.Errorf("%d are tried after %v", n, at)
		}
	}
	if all > 8*n || all < 6*n {
		t.Errorf("%d of them are tried %d times in three minutes: %v", n, all, tries)
	}
}
