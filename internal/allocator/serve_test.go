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
)

// writes is an API server that notes what is written of one claim, and on which fence.
type writes struct {
	client.Client
	claim *ipamv1.IPAddressClaim
	// read is the answer to a live read.
	read error
	did  []string
}

func (w *writes) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	if c, is := obj.(*ipamv1.IPAddressClaim); is && w.read == nil {
		w.claim.DeepCopyInto(c)
	}
	return w.read
}

func (w *writes) Create(_ context.Context, obj client.Object, _ ...client.CreateOption) error {
	w.did = append(w.did, "create "+obj.(*ipamv1.IPAddress).Spec.Address)
	obj.SetUID("address-a")
	obj.SetResourceVersion("7")
	return nil
}

func (w *writes) Delete(_ context.Context, obj client.Object, _ ...client.DeleteOption) error {
	w.did = append(w.did, "delete "+obj.GetName())
	return nil
}

func (w *writes) Patch(_ context.Context, obj client.Object, patch client.Patch, _ ...client.PatchOption) error {
	return w.patch("metadata ", obj, patch)
}

func (w *writes) Status() client.SubResourceWriter { return statusWrites{w: w} }

type statusWrites struct {
	client.SubResourceWriter
	w *writes
}

func (s statusWrites) Patch(_ context.Context, obj client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
	return s.w.patch("status ", obj, patch)
}

func (w *writes) patch(what string, obj client.Object, patch client.Patch) error {
	raw, err := patch.Data(obj)
	if err != nil {
		return err
	}
	sent := &ipamv1.IPAddressClaim{}
	if err := json.Unmarshal(raw, sent); err != nil {
		return err
	}
	w.did = append(w.did, what+sent.Annotations[v1alpha1.AddressAnnotation]+" on "+string(sent.UID)+" at "+sent.ResourceVersion)
	switch o := obj.(type) {
	case *ipamv1.IPAddressClaim:
		w.claim.DeepCopyInto(o)
		o.Annotations, o.Finalizers = map[string]string{v1alpha1.AddressAnnotation: "10.0.0.1"}, []string{v1alpha1.ClaimFinalizer}
		o.ResourceVersion, o.Status = sent.ResourceVersion+"0", sent.Status
	case *ipamv1.IPAddress:
		o.UID, o.ResourceVersion, o.Spec.PoolRef = sent.UID, sent.ResourceVersion+"0", testKey.Ref()
	}
	return nil
}

// The order of the writes, and on what each of them depends (R1, R3).
func TestServe(t *testing.T) {
	p := aPool(t, "10.0.0.1-10.0.0.4")
	api := &writes{}
	c := see(p, "a", 0, func(c *ipamv1.IPAddressClaim) {
		c.ResourceVersion = "5"
		api.claim = c
	})
	a := New(Options{Client: api, Live: api, ID: "me", Clock: clocktesting.NewFakeClock(noon)})
	p.Plan(noon, 9, anyone)
	p.Grants[c.Owner.UID].Committed, p.Grants[c.Owner.UID].At = true, noon
	if err := a.serve(t.Context(), grants.PoolOf(p), *c); err != nil {
		t.Fatal(err)
	}
	want := []string{"metadata 10.0.0.1 on uid-a at 5", "create 10.0.0.1", "status  on uid-a at 50"}
	if d := cmp.Diff(want, api.did); d != "" {
		t.Error(d)
	}
}

// What a job must not write, and what it must not do to the turn that goes on beside it.
func TestServeLeaves(t *testing.T) {
	tests := map[string]struct {
		// as is what the pool knows, of claim "a" with UID "uid-a".
		as          func(p *grants.Memory) *grants.Claimant
		live        func(*ipamv1.IPAddressClaim)
		fails       bool
		termSuspect bool
	}{
		"AnOldGrant": {as: func(p *grants.Memory) *grants.Claimant { // it was handed out in time, and waited for a writer
			c := see(p, "a", 0)
			p.Plan(noon, 9, anyone)
			p.Grants[c.Owner.UID].Committed, p.Grants[c.Owner.UID].At = true, noon.Add(-term.RequestTimeout-1)
			return c
		}},
		"AGrantGivenBack": {as: func(p *grants.Memory) *grants.Claimant { // while it waited for a writer
			c := see(p, "a", 0, remembers("10.0.0.1"))
			p.Plan(noon, 9, anyone)
			g := p.Grants[c.Owner.UID]
			g.Committed, g.At, g.Confirmed = true, noon, true
			return c
		}},
		"AnotherRecord": {as: func(p *grants.Memory) *grants.Claimant {
			c := see(p, "a", 0)
			p.Plan(noon, 9, anyone)
			p.Grants[c.Owner.UID].Committed, p.Grants[c.Owner.UID].At = true, noon
			return see(p, "a", 0, version("4"), remembers("10.0.0.9"))
		}, live: remembers("10.0.0.9"), fails: true, termSuspect: true},
		"TheNextClaimsIPAddress": {as: func(p *grants.Memory) *grants.Claimant { // ours is gone, and the watch is behind
			seeAddress(p, "a", "10.0.0.1", "uid-next")
			return see(p, "a", 0, remembers("10.0.0.1"))
		}, live: uid("uid-next", "9")},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := aPool(t, "10.0.0.1-10.0.0.4")
			c := tc.as(p)
			underWay := &grants.PendingCommit{}
			p.Unanswered = underWay
			api := &writes{claim: newClaim("a", 0, version("5"))}
			if tc.live != nil {
				tc.live(api.claim)
			}
			a := New(Options{Client: api, Live: api, ID: "me", Clock: clocktesting.NewFakeClock(noon)})
			if err := a.serve(t.Context(), grants.PoolOf(p), *c); (err != nil) != tc.fails {
				t.Errorf("error: %v", err)
			}
			if len(api.did) > 0 {
				t.Errorf("it wrote %v", api.did)
			}
			if p.TermSuspect != tc.termSuspect || p.Unanswered != underWay || !p.Holder {
				t.Errorf("termSuspect %v, holder %v, the commit that is under way: %v", p.TermSuspect, p.Holder, p.Unanswered)
			}
		})
	}
}

// An IPAddress is removed on proof that its claim is gone, whatever the watches have shown (R2).
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
			p := aPool(t, "10.0.0.1-10.0.0.4")
			seeAddress(p, "a", "10.0.0.1", "uid-a")
			api := &writes{read: tc.read, claim: &ipamv1.IPAddressClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: tc.claim, ResourceVersion: "3"},
				Spec:       ipamv1.IPAddressClaimSpec{PoolRef: testKey.Ref()},
			}}
			a := New(Options{Client: api, Live: api, Recorder: events.NewFakeRecorder(9), Clock: clocktesting.NewFakeClock(noon)})
			s := p.Orphans[types.NamespacedName{Namespace: "ns", Name: "a"}]
			s.Since = noon.Add(-a.OrphanGrace)
			if _, err := a.resolveOrphan(t.Context(), grants.PoolOf(p), s.Attached); (err != nil) != tc.fails {
				t.Errorf("%s: %v", tc.reason, err)
			}
			if d := cmp.Diff(tc.want, api.did); d != "" {
				t.Errorf("%s: %s", tc.reason, d)
			}
		})
	}
}

// forbids is an API server that refuses to change objects, and takes their statuses.
type forbids struct {
	client.Client
	statuses int
}

func (f *forbids) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{}, "any")
}

func (f *forbids) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return apierrors.NewForbidden(schema.GroupResource{}, "x", nil)
}

func (f *forbids) Status() client.SubResourceWriter { return takesStatus{f: f} }

type takesStatus struct {
	client.SubResourceWriter
	f *forbids
}

func (s takesStatus) Patch(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
	s.f.statuses++
	return nil
}

// The status of an IPAllocation that is adopted is all that says what it has: a refusal is not written over it (R8, R10).
func TestARefusalLeavesWhatAStatusShows(t *testing.T) {
	p := aPool(t, "10.0.0.1-10.0.0.60")
	p.Adopting = true
	c := seeBlock(p, "x", 4, shows("10.0.0.1", "10.0.0.4"))
	api := &forbids{}
	a := New(Options{Client: api, Live: api, ID: "me", Clock: clocktesting.NewFakeClock(noon)})
	if err := a.serve(t.Context(), grants.PoolOf(p), *c); !apierrors.IsForbidden(err) {
		t.Errorf("it fails with %v", err)
	}
	if api.statuses > 0 || p.Blocker(c.Shown, ledger.Owner{Name: "another"}) == nil {
		t.Errorf("%d statuses are written; what it has is free", api.statuses)
	}
}
