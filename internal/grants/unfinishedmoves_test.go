package grants_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ending"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestUnfinishedMoves checks that an object that clusterctl was deleting when it was ended goes, but not before its
// address is held on record, nor before clusterctl had time to finish.
func TestUnfinishedMoves(t *testing.T) {
	withForeignFinalizer := func(c *ipamv1.IPAddressClaim) { c.Finalizers = append(c.Finalizers, "example.com/theirs") }
	lease := func(c *ipamv1.IPAddressClaim) {
		c.Finalizers = []string{v1alpha1.LeaseShownFinalizer} // any other of ours
	}
	holds := func(o *v1alpha1.NetworkPool) {
		o.Status.Held = []v1alpha1.HeldRange{{First: "10.0.0.1", Last: "10.0.0.2", Reason: v1alpha1.MovedReason}}
	}
	for name, tc := range map[string]struct {
		changes []func(*ipamv1.IPAddressClaim)
		pool    []func(*v1alpha1.NetworkPool)
		ends    bool
		left    []string // finalizers
	}{
		"Held":          {changes: []func(*ipamv1.IPAddressClaim){grantstest.WithRecordedAddress("10.0.0.1"), grantstest.MarkedAsMoved, grantstest.WithDeletionTimestamp}, pool: []func(*v1alpha1.NetworkPool){holds}, ends: true, left: []string{}},
		"HeldAndTheirs": {changes: []func(*ipamv1.IPAddressClaim){grantstest.WithRecordedAddress("10.0.0.1"), grantstest.MarkedAsMoved, grantstest.WithDeletionTimestamp, withForeignFinalizer}, pool: []func(*v1alpha1.NetworkPool){holds}, ends: true, left: []string{"example.com/theirs"}},
		"AnotherOfOurs": {changes: []func(*ipamv1.IPAddressClaim){grantstest.MarkedAsMoved, grantstest.WithDeletionTimestamp, lease}, ends: true, left: []string{}},
		"NotHeld":       {changes: []func(*ipamv1.IPAddressClaim){grantstest.WithRecordedAddress("10.0.0.1"), grantstest.MarkedAsMoved, grantstest.WithDeletionTimestamp}},
		"MarkedAlone":   {changes: []func(*ipamv1.IPAddressClaim){grantstest.WithRecordedAddress("10.0.0.1"), grantstest.MarkedAsMoved}, pool: []func(*v1alpha1.NetworkPool){holds}},
		"DeletedAlone":  {changes: []func(*ipamv1.IPAddressClaim){grantstest.WithRecordedAddress("10.0.0.1"), grantstest.WithDeletionTimestamp}, pool: []func(*v1alpha1.NetworkPool){holds}},
		"TheirsAlone":   {changes: []func(*ipamv1.IPAddressClaim){grantstest.MarkedAsMoved, grantstest.WithDeletionTimestamp, noFinalizer, withForeignFinalizer}},
	} {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9", tc.pool...)
			c := grantstest.ObserveClaim(p, "c", 0, tc.changes...)
			if got := p.Moves.UnfinishedMoves(grantstest.Noon, 9); len(got.Claimants) > 0 || (got.Wait > 0) != tc.ends {
				t.Errorf("at once: %+v", got)
			}
			later := grantstest.Noon.Add(ending.MoveGracePeriod)
			if got := p.Moves.UnfinishedMoves(later, 9).Claimants; slices.Contains(got, c.Owner.UID) != tc.ends {
				t.Errorf("%v ends, want %v", got, tc.ends)
			}
			if got := p.Moves.UnfinishedMoves(later.Add(time.Second), 9).Claimants; len(got) > 0 {
				t.Errorf("%v again, a second later", got)
			}
			if tc.ends {
				if d := cmp.Diff(map[string]any{"finalizers": tc.left}, grants.FinishMoveStep(c).MetadataPatch); d != "" {
					t.Error(d)
				}
				p.ForgetClaimant(c.Owner.UID)
				if got := p.Moves.UnfinishedMoves(later.Add(time.Hour), 9); len(got.Claimants) > 0 || got.Wait > 0 {
					t.Errorf("it is gone: %+v", got)
				}
			}
		})
	}
}

// TestInterruptedMoveIsNotFinished checks that the finalizer of an IPAddress is not removed as after a move when the
// annotation of the move was taken off: each attempt would be refused, since it is based on the version that was moved.
func TestInterruptedMoveIsNotFinished(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
	p.Base.Pool.PoolStatus().Held = []v1alpha1.HeldRange{{First: "10.0.0.1", Last: "10.0.0.1", Reason: v1alpha1.MovedReason}}
	grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress("10.0.0.1"))
	p.ObserveAddress(grantstest.MovedAddress("a", "10.0.0.1"))
	p.Moves.UnfinishedMoves(grantstest.Noon, 9)
	if got := p.Moves.UnfinishedMoves(grantstest.Noon.Add(time.Hour), 9).Addresses; len(got) != 1 {
		t.Fatalf("%d addresses are to be ended after the move, not 1", len(got))
	}
	p.ObserveAddress(grantstest.MovedAddress("a", "10.0.0.1", func(o *ipamv1.IPAddress) { o.Annotations, o.ResourceVersion = nil, "8" }))
	if got := p.Moves.UnfinishedMoves(grantstest.Noon.Add(2*time.Hour), 9); len(got.Addresses) != 0 || got.Wait != 0 {
		t.Errorf("%d addresses are to be ended, the next in %v", len(got.Addresses), got.Wait)
	}
}

// TestMovedAddressEndsBeforeItsClaim checks that an IPAddress goes before its claim.
func TestMovedAddressEndsBeforeItsClaim(t *testing.T) {
	address := func(change ...func(*ipamv1.IPAddress)) *grants.Address {
		return grantstest.MovedAddress("c", "10.0.0.1", change...)
	}
	held := v1alpha1.HeldRange{First: "10.0.0.1", Last: "10.0.0.1", Reason: v1alpha1.MovedReason}
	for name, tc := range map[string]struct {
		address *grants.Address
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
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9", func(o *v1alpha1.NetworkPool) { o.Status.Held = tc.held })
			grantstest.ObserveClaim(p, "c", 0, grantstest.WithRecordedAddress("10.0.0.1"), grantstest.WithReadyStatus)
			p.ObserveAddress(tc.address)
			p.Moves.UnfinishedMoves(grantstest.Noon, 9)
			got := p.Moves.UnfinishedMoves(grantstest.Noon.Add(ending.MoveGracePeriod), 9).Addresses
			if (len(got) == 1) != tc.ends {
				t.Errorf("%d end, want %v", len(got), tc.ends)
			}
			p.ForgetAddress("address-c", types.NamespacedName{Namespace: "ns", Name: "c"})
			if got := p.Moves.UnfinishedMoves(grantstest.Noon.Add(time.Hour), 9); len(got.Addresses) > 0 || got.Wait > 0 {
				t.Errorf("it is gone: %+v", got)
			}
		})
	}
}

// TestFailedEndsOfMovesAreRetriedTogether checks that the leftovers of a move that cannot be ended are tried again
// together, and ever more rarely, however many IPAddresses there are and whenever each was seen.
func TestFailedEndsOfMovesAreRetriedTogether(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.99", func(o *v1alpha1.NetworkPool) {
		o.Status.Held = []v1alpha1.HeldRange{{First: "10.0.0.1", Last: "10.0.0.99", Reason: v1alpha1.MovedReason}}
	})
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "ipaddresses"}, "a", errors.New("a policy refuses it"))
	const n = 80
	tries := map[time.Duration]int{} // since noon
	for at := time.Duration(0); at < 3*time.Minute; at += 100 * time.Millisecond {
		now := grantstest.Noon.Add(at)
		if i := int(at / (100 * time.Millisecond)); i < n {
			p.ObserveAddress(grantstest.MovedAddress(fmt.Sprint("c", i), fmt.Sprintf("10.0.0.%d", i+1)))
		}
		for _, a := range p.Moves.UnfinishedMoves(now, n).Addresses {
			tries[at]++
			if again := p.Moves.RecordMoveFinish(a.UID, refused, now); again.Sub(now) < ending.MoveGracePeriod {
				t.Fatalf("it is tried again after %v", again.Sub(now))
			}
		}
	}
	all := 0
	for at, n := range tries {
		if all += n; at > 2*ending.MoveGracePeriod && at%(10*time.Second) != 0 {
			t.Errorf("%d are tried after %v", n, at)
		}
	}
	if all > 8*n || all < 6*n {
		t.Errorf("%d of them are tried %d times in three minutes: %v", n, all, tries)
	}
}
