package allocator

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// listOrderRecorder records whether claims were listed before anything was written.
type listOrderRecorder struct {
	listedObjects

	write       *singleWriteAPI
	listedFirst bool
}

func (l *listOrderRecorder) List(ctx context.Context, of client.Object, namespace string, visit func(client.Object)) (string, error) {
	if _, ok := of.(*ipamv1.IPAddressClaim); ok {
		l.listedFirst = l.listedFirst || l.write.sent == nil
	}
	return l.listedObjects.List(ctx, of, namespace, visit)
}

// TestTakeOver checks that the list comes after the write: grants of the old holder after the list must fail, and its
// earlier grants are in the list or in flight. Here the watches have shown none of them.
func TestTakeOver(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.4", func(o *v1alpha1.NetworkPool) {
		o.Status.Allocator = &v1alpha1.AllocatorStatus{Holder: "you", Term: 7, InFlight: []v1alpha1.Grant{
			{Kind: claims.IPAddressClaimKind, Namespace: "ns", Name: "b", UID: "uid-b", First: "10.0.0.3", Last: "10.0.0.3"},
		}}
	})
	p.Term.Holder = false
	was := p.Base.Pool.DeepCopyObject()
	api := &singleWriteAPI{live: func(*v1alpha1.NetworkPool) *v1alpha1.NetworkPool { return was.(*v1alpha1.NetworkPool) }}
	lists := &listOrderRecorder{write: api}
	lists.addServedClaim(grantstest.PoolKey, "a", "10.0.0.1")
	a := New(Options{Client: api, Live: api, Lister: lists, ManagerID: "me"})
	if err := a.status.takeOverPool(t.Context(), grants.NewPool(p)); err != nil {
		t.Fatal(err)
	}
	if lists.listedFirst {
		t.Error("what exists was listed before the pool was taken over")
	}
	if got := api.sent.Status.Allocator; got.Holder != "me" || got.Term != 8 || len(got.InFlight) != 1 || got.InFlight[0].UID != "uid-b" {
		t.Errorf("the takeover wrote %+v", got)
	}
	for ip, taken := range map[string]bool{"10.0.0.1": true, "10.0.0.2": false, "10.0.0.3": true} {
		if facts := p.Space.Ledger.OverlappingFacts(p.Space.Ledger.UnitRange(netip.MustParseAddr(ip))); (len(facts) > 0) != taken {
			t.Errorf("%s is held by %v", ip, facts)
		}
	}
}

// TestStandbyForgetsEndedObjects checks that a manager that only watches what another manager serves does not remember
// ended objects for ever.
func TestStandbyForgetsEndedObjects(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.4", func(o *v1alpha1.NetworkPool) {
		o.Status.Allocator = &v1alpha1.AllocatorStatus{Holder: "you", Term: 7}
	})
	p.Term.Holder = false
	clock := clocktesting.NewFakeClock(grantstest.Noon)
	a := New(Options{ManagerID: "me", Clock: clock})
	a.pools.byKey[grantstest.PoolKey] = grants.NewPool(p)
	p.ForgetClaimant("gone")
	for range 2 {
		if !p.Claimants.Gone.Has("gone") {
			t.Fatal("an answer that is under way could revive it")
		}
		if _, err := a.Reconcile(t.Context(), grantstest.PoolKey, p.Base.Pool); err != nil || p.Term.Holder {
			t.Fatalf("holder %v, %v", p.Term.Holder, err)
		}
		clock.Step(3 * term.RequestTimeout)
	}
	if p.Claimants.Gone.Has("gone") {
		t.Error("it is remembered longer than a request can last")
	}
}

// TestAdoptionRecordsEvent checks R10: a pool that is adopted records an event, also where the write of the takeover
// has turned its condition, after status.allocator was removed.
func TestAdoptionRecordsEvent(t *testing.T) {
	ready := func(o *v1alpha1.NetworkPool) {
		o.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReadyReason}}
	}
	lost := func(o *v1alpha1.NetworkPool) { o.Status.Allocator = nil }
	ours := func(o *v1alpha1.NetworkPool) { o.Finalizers = []string{v1alpha1.PoolFinalizer} }
	for name, tc := range map[string]struct {
		pool []func(*v1alpha1.NetworkPool)
		used bool
		want []string
	}{
		"a restart":                         {pool: []func(*v1alpha1.NetworkPool){ready, ours}, used: true},
		"a new pool":                        {pool: []func(*v1alpha1.NetworkPool){lost}},
		"a new pool over what is in use":    {pool: []func(*v1alpha1.NetworkPool){lost}, used: true, want: []string{"PoolAdopting"}},
		"status.allocator was taken away":   {pool: []func(*v1alpha1.NetworkPool){ready, ours, lost}, used: true, want: []string{"PoolAdopting"}},
		"a move brought it before the rest": {pool: []func(*v1alpha1.NetworkPool){ours, lost}, want: []string{"PoolAdopting"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9", append(tc.pool, func(o *v1alpha1.NetworkPool) {
				if o.Status.Allocator != nil {
					o.Status.Allocator.Holder = "you"
				}
			})...)
			p.Term.Holder = false
			api, lists, recorder := &singleWriteAPI{}, &listedObjects{}, events.NewFakeRecorder(9)
			if tc.used {
				lists.addServedClaim(grantstest.PoolKey, "a", "10.0.0.1")
			}
			a := New(Options{Client: api, Live: api, Lister: lists, ManagerID: "me", Recorder: recorder, Clock: clocktesting.NewFakeClock(grantstest.Noon)})
			if err := a.status.takeOverPool(t.Context(), grants.NewPool(p)); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				before := p.Base.Pool
				p.SetBasePool(p.PrepareCommit(grantstest.Noon).Pool)
				a.reports.reportPoolStatus(grants.NewPool(p), before)
			}
			var got []string
			for len(recorder.Events) > 0 {
				got = append(got, strings.Fields(<-recorder.Events)[1])
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("%v, not %v", got, tc.want)
			}
		})
	}
}

// TestTakeoverNeedsToKnowTheGrants checks that a manager takes over no pool with grants in flight to objects of a kind
// that it does not know, as after a downgrade: it would not observe them, and grant their addresses again. The version
// that made them goes on.
func TestTakeoverNeedsToKnowTheGrants(t *testing.T) {
	for kind, takes := range map[string]bool{"": true, claims.IPAddressClaimKind: true, v1alpha1.IPAllocationKind: true, v1alpha1.IPLeaseKind: true, "IPSomething": false} {
		t.Run(kind, func(t *testing.T) {
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.4", func(o *v1alpha1.NetworkPool) {
				o.Status.Allocator = &v1alpha1.AllocatorStatus{Holder: "you", Term: 7, InFlight: []v1alpha1.Grant{{Kind: kind, Namespace: "ns", Name: "b", UID: "uid-b", First: "10.0.0.3", Last: "10.0.0.3"}}}
			})
			p.Term.Holder = false
			api := &singleWriteAPI{}
			a := New(Options{Client: api, Live: api, Lister: &listedObjects{}, ManagerID: "me", Recorder: events.NewFakeRecorder(9), Clock: clocktesting.NewFakeClock(grantstest.Noon)})
			err := a.status.takeOverPool(t.Context(), grants.NewPool(p))
			if takes != (err == nil) || takes != p.Term.Holder || takes != (api.writes == 1) {
				t.Errorf("it is the holder: %v, after %d writes: %v", p.Term.Holder, api.writes, err)
			}
		})
	}
}
