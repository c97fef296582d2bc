package allocator

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// writeRecorder is an API server that records the writes of one claim, and their preconditions.
type writeRecorder struct {
	client.Client
	claim *ipamv1.IPAddressClaim
	// read is the answer to a live read.
	read     error
	recorded []string
}

func (w *writeRecorder) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	if c, ok := obj.(*ipamv1.IPAddressClaim); ok && w.read == nil {
		w.claim.DeepCopyInto(c)
	}
	return w.read
}

func (w *writeRecorder) Create(_ context.Context, obj client.Object, _ ...client.CreateOption) error {
	w.recorded = append(w.recorded, "create "+obj.(*ipamv1.IPAddress).Spec.Address)
	obj.SetUID("address-a")
	obj.SetResourceVersion("7")
	return nil
}

func (w *writeRecorder) Delete(_ context.Context, obj client.Object, _ ...client.DeleteOption) error {
	w.recorded = append(w.recorded, "delete "+obj.GetName())
	return nil
}

func (w *writeRecorder) Patch(_ context.Context, obj client.Object, patch client.Patch, _ ...client.PatchOption) error {
	return w.patch("metadata ", obj, patch)
}

func (w *writeRecorder) Status() client.SubResourceWriter { return statusWriteRecorder{w: w} }

type statusWriteRecorder struct {
	client.SubResourceWriter
	w *writeRecorder
}

func (s statusWriteRecorder) Patch(_ context.Context, obj client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
	return s.w.patch("status ", obj, patch)
}

func (w *writeRecorder) patch(label string, obj client.Object, patch client.Patch) error {
	raw, err := patch.Data(obj)
	if err != nil {
		return err
	}
	sent := &ipamv1.IPAddressClaim{}
	if err := json.Unmarshal(raw, sent); err != nil {
		return err
	}
	w.recorded = append(w.recorded, label+sent.Annotations[v1alpha1.AddressAnnotation]+" on "+string(sent.UID)+" at "+sent.ResourceVersion)
	switch o := obj.(type) {
	case *ipamv1.IPAddressClaim:
		w.claim.DeepCopyInto(o)
		o.Annotations, o.Finalizers = map[string]string{v1alpha1.AddressAnnotation: "10.0.0.1"}, []string{v1alpha1.ClaimFinalizer}
		o.ResourceVersion, o.Status = sent.ResourceVersion+"0", sent.Status
	case *ipamv1.IPAddress:
		o.UID, o.ResourceVersion, o.Spec.PoolRef = sent.UID, sent.ResourceVersion+"0", grantstest.PoolKey.PoolReference()
	}
	return nil
}

// TestServeClaimantWriteOrder checks the order of the writes, and on what each of them depends (R1, R3).
func TestServeClaimantWriteOrder(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.4")
	api := &writeRecorder{}
	c := grantstest.ObserveClaim(p, "a", 0, func(c *ipamv1.IPAddressClaim) {
		c.ResourceVersion = "5"
		api.claim = c
	})
	a := New(Options{Client: api, Live: api, ManagerID: "me", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
	p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
	p.Grants.ByClaimant[c.Owner.UID].Committed, p.Grants.ByClaimant[c.Owner.UID].CommitConfirmedAt = true, grantstest.Noon
	if err := a.jobs.serveClaimant(t.Context(), grants.NewPool(p), *c); err != nil {
		t.Fatal(err)
	}
	want := []string{"metadata 10.0.0.1 on uid-a at 5", "create 10.0.0.1", "status  on uid-a at 50"}
	if d := cmp.Diff(want, api.recorded); d != "" {
		t.Error(d)
	}
}

// TestServeClaimantSkipsWrites checks what a job must not write, and how it must not interfere with a reconcile that
// runs beside it.
func TestServeClaimantSkipsWrites(t *testing.T) {
	tests := map[string]struct {
		// as is what the pool knows of claim "a" with UID "uid-a".
		as          func(p *grants.PoolState) *grants.Claimant
		live        func(*ipamv1.IPAddressClaim)
		fails       bool
		termSuspect bool
	}{
		"AnOldGrant": {as: func(p *grants.PoolState) *grants.Claimant { // it was dispatched in time, and waited for a writer
			c := grantstest.ObserveClaim(p, "a", 0)
			p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
			p.Grants.ByClaimant[c.Owner.UID].Committed, p.Grants.ByClaimant[c.Owner.UID].CommitConfirmedAt = true, grantstest.Noon.Add(-term.RequestTimeout-1)
			return c
		}},
		"AGrantGivenBack": {as: func(p *grants.PoolState) *grants.Claimant { // while it waited for a writer
			c := grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress("10.0.0.1"))
			p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
			g := p.Grants.ByClaimant[c.Owner.UID]
			g.Committed, g.CommitConfirmedAt, g.Confirmed = true, grantstest.Noon, true
			return c
		}},
		"AnotherRecord": {as: func(p *grants.PoolState) *grants.Claimant {
			c := grantstest.ObserveClaim(p, "a", 0)
			p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
			p.Grants.ByClaimant[c.Owner.UID].Committed, p.Grants.ByClaimant[c.Owner.UID].CommitConfirmedAt = true, grantstest.Noon
			return grantstest.ObserveClaim(p, "a", 0, grantstest.WithVersion("4"), grantstest.WithRecordedAddress("10.0.0.9"))
		}, live: grantstest.WithRecordedAddress("10.0.0.9"), fails: true, termSuspect: true},
		"TheNextClaimsIPAddress": {as: func(p *grants.PoolState) *grants.Claimant { // ours is gone, and the watch is behind
			grantstest.ObserveAddress(p, "a", "10.0.0.1", "uid-next")
			return grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress("10.0.0.1"))
		}, live: grantstest.WithUID("uid-next", "9")},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.4")
			c := tc.as(p)
			underWay := &grants.PendingCommit{}
			p.Term.PendingCommit = underWay
			api := &writeRecorder{claim: grantstest.NewClaim("a", 0, grantstest.WithVersion("5"))}
			if tc.live != nil {
				tc.live(api.claim)
			}
			a := New(Options{Client: api, Live: api, ManagerID: "me", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
			if err := a.jobs.serveClaimant(t.Context(), grants.NewPool(p), *c); (err != nil) != tc.fails {
				t.Errorf("error: %v", err)
			}
			if len(api.recorded) > 0 {
				t.Errorf("it wrote %v", api.recorded)
			}
			if p.Term.NeedsRevalidation != tc.termSuspect || p.Term.PendingCommit != underWay || !p.Term.Holder {
				t.Errorf("termSuspect %v, holder %v, the commit that is under way: %v", p.Term.NeedsRevalidation, p.Term.Holder, p.Term.PendingCommit)
			}
		})
	}
}

// TestResolveOrphan checks that an IPAddress is removed on proof that its claim is gone, whatever the watches have
// shown (R2).
func TestResolveOrphan(t *testing.T) {
	gone := apierrors.NewNotFound(schema.GroupResource{}, "a")
	tests := map[string]struct {
		reason string
		claim  types.UID
		read   error
		want   []string
		fails  bool
	}{
		"TheClaimLives": {reason: "its watch is behind", claim: "uid-a"},
		"Gone":          {reason: "a live read finds none", read: gone, want: []string{"metadata  on address-a at 1", "delete a"}},
		"AnotherOne":    {reason: "the name is that of another claim by now", claim: "uid-new", want: []string{"metadata  on address-a at 1", "delete a"}},
		"NoAnswer":      {reason: "no proof", read: apierrors.NewTimeoutError("lost", 1), fails: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.4")
			grantstest.ObserveAddress(p, "a", "10.0.0.1", "uid-a")
			api := &writeRecorder{read: tc.read, claim: &ipamv1.IPAddressClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: tc.claim, ResourceVersion: "3"},
				Spec:       ipamv1.IPAddressClaimSpec{PoolRef: grantstest.PoolKey.PoolReference()},
			}}
			a := New(Options{Client: api, Live: api, Recorder: events.NewFakeRecorder(9), Clock: clocktesting.NewFakeClock(grantstest.Noon)})
			s := p.Addresses.Orphans[types.NamespacedName{Namespace: "ns", Name: "a"}]
			s.OrphanedSince = grantstest.Noon.Add(-a.OrphanGrace)
			if _, err := a.addresses.resolveOrphan(t.Context(), grants.NewPool(p), s.Address); (err != nil) != tc.fails {
				t.Errorf("%s: %v", tc.reason, err)
			}
			if d := cmp.Diff(tc.want, api.recorded); d != "" {
				t.Errorf("%s: %s", tc.reason, d)
			}
		})
	}
}

// statusOnlyAPI is an API server that refuses to change objects, and accepts their statuses.
type statusOnlyAPI struct {
	client.Client
	statuses int
}

func (f *statusOnlyAPI) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{}, "any")
}

func (f *statusOnlyAPI) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return apierrors.NewForbidden(schema.GroupResource{}, "x", nil)
}

func (f *statusOnlyAPI) Status() client.SubResourceWriter { return statusOnlyWriter{f: f} }

type statusOnlyWriter struct {
	client.SubResourceWriter
	f *statusOnlyAPI
}

func (s statusOnlyWriter) Patch(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
	s.f.statuses++
	return nil
}

// TestRefusalKeepsStatusOfAdoptedAllocation checks that no refusal is written over the status of an IPAllocation that
// is adopted: it is all that shows what the IPAllocation has (R8, R10).
func TestRefusalKeepsStatusOfAdoptedAllocation(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.60")
	p.Quarantine.Adopting = true
	c := grantstest.ObserveAllocation(p, "x", 4, grantstest.WithAllocatedStatus("10.0.0.1", "10.0.0.4"))
	api := &statusOnlyAPI{}
	a := New(Options{Client: api, Live: api, ManagerID: "me", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
	if err := a.jobs.serveClaimant(t.Context(), grants.NewPool(p), *c); !apierrors.IsForbidden(err) {
		t.Errorf("it fails with %v", err)
	}
	if api.statuses > 0 || p.Inventory.FindBlockingFact(c.PublishedRange, ledger.Owner{Name: "another"}) == nil {
		t.Errorf("%d statuses are written; what it has is free", api.statuses)
	}
}
