package allocator

import (
	"context"
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// singleWriteAPI is an API server that answers one commit with err, if any; live returns what a live read shows then.
type singleWriteAPI struct {
	client.Client
	err     error
	live    func(sent *v1alpha1.NetworkPool) *v1alpha1.NetworkPool
	readErr error
	sent    *v1alpha1.NetworkPool
	writes  int
}

func (o *singleWriteAPI) Status() client.SubResourceWriter { return singleWriteStatus{o: o} }

type singleWriteStatus struct {
	client.SubResourceWriter
	o *singleWriteAPI
}

func (s singleWriteStatus) Update(_ context.Context, obj client.Object, _ ...client.SubResourceUpdateOption) error {
	s.o.sent, _ = obj.DeepCopyObject().(*v1alpha1.NetworkPool)
	s.o.writes++
	if s.o.err == nil {
		obj.SetResourceVersion("11")
	}
	return s.o.err
}

// Patch refuses the status of any other object.
func (s singleWriteStatus) Patch(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
	return errors.New("not now")
}

// Patch refuses the write that a job sends after the commit.
func (o *singleWriteAPI) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return errors.New("not now")
}

func (o *singleWriteAPI) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	if o.readErr == nil {
		o.live(o.sent).DeepCopyInto(obj.(*v1alpha1.NetworkPool))
	}
	return o.readErr
}

func TestCommitGrants(t *testing.T) {
	timeout := apierrors.NewTimeoutError("lost", 1)
	conflict := apierrors.NewConflict(schema.GroupResource{}, "pool", errors.New("old"))
	// before returns the pool as it was before the commit, with a change by another writer.
	before := func(change func(*v1alpha1.NetworkPool)) func(*v1alpha1.NetworkPool) *v1alpha1.NetworkPool {
		return func(sent *v1alpha1.NetworkPool) *v1alpha1.NetworkPool {
			was := sent.DeepCopy()
			was.Status = v1alpha1.NetworkPoolStatus{Allocator: &v1alpha1.AllocatorStatus{Holder: "me", Term: 3}}
			change(was)
			return was
		}
	}
	tests := map[string]struct {
		api    singleWriteAPI
		gone   bool // the claim is gone before the answer
		quiet  bool // the commit has no grant
		want   error
		fails  bool // with any error
		commit bool // the grant is committed
		again  bool // the commit stays
		holds  bool // the term goes on
		reason string
	}{
		"written":             {commit: true, holds: true},
		"written, claim gone": {gone: true, commit: true, holds: true, reason: "the grant is confirmed at once"},
		"answer lost, landed": {
			api: singleWriteAPI{err: timeout, live: func(sent *v1alpha1.NetworkPool) *v1alpha1.NetworkPool {
				sent.ResourceVersion = "11"
				return sent
			}},
			commit: true, holds: true,
		},
		"answer lost, not landed": {
			api:   singleWriteAPI{err: timeout, live: before(func(*v1alpha1.NetworkPool) {})},
			fails: true, again: true, holds: true, reason: "it may land yet: neither free nor granted",
		},
		"answer lost, read lost": {
			api:   singleWriteAPI{err: timeout, readErr: timeout},
			fails: true, again: true, holds: true, reason: "nothing is known",
		},
		"spec edited": {
			api:  singleWriteAPI{err: conflict, live: before(func(p *v1alpha1.NetworkPool) { p.ResourceVersion = "12" })},
			want: errPoolChanged, holds: true, reason: "it cannot land any more: a new plan",
		},
		"another holder": {
			api: singleWriteAPI{err: conflict, live: before(func(p *v1alpha1.NetworkPool) {
				p.ResourceVersion, p.Status.Allocator = "12", &v1alpha1.AllocatorStatus{Holder: "you", Term: 4}
			})},
			want: errTermLost,
		},
		"another term": {
			api: singleWriteAPI{err: conflict, live: before(func(p *v1alpha1.NetworkPool) {
				p.ResourceVersion, p.Status.Allocator.Term = "12", 5
			})},
			want: errTermLost, reason: "another manager was the holder in between",
		},
		"record wiped": {
			api:  singleWriteAPI{err: conflict, live: before(func(p *v1alpha1.NetworkPool) { p.ResourceVersion, p.Status.Allocator = "12", nil })},
			want: errTermLost,
		},
		"another pool of the name": {
			api:  singleWriteAPI{err: conflict, live: before(func(p *v1alpha1.NetworkPool) { p.UID = "new" })},
			want: errTermLost,
		},
		"no grant, edited": {
			quiet: true,
			api:   singleWriteAPI{err: conflict, live: before(func(p *v1alpha1.NetworkPool) { p.ResourceVersion = "12" })},
			want:  errPoolChanged, holds: true, reason: "what a commit without grants says, such as cooling, is not on record",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a := New(Options{Client: &tt.api, Live: &tt.api, ManagerID: "me", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.1")
			c := grantstest.ObserveClaim(p, "a", 0)
			if !tt.quiet {
				p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
			}
			if tt.gone {
				p.ForgetClaimant(c.Owner.UID)
			}
			err := a.status.commitGrants(t.Context(), grants.NewPool(p), p.PrepareCommit(a.now()))
			if (err != nil) != (tt.fails || tt.want != nil) || (tt.want != nil && !errors.Is(err, tt.want)) {
				t.Errorf("%s: error %v", tt.reason, err)
			}
			if g := p.Grants.ByClaimant[c.Owner.UID]; (g != nil && g.Committed) != tt.commit || (g != nil && g.Confirmed != tt.gone) {
				t.Errorf("%s: grant %+v", tt.reason, g)
			}
			if again := p.Term.PendingCommit != nil; again != tt.again || p.Term.Holder != tt.holds {
				t.Errorf("%s: the commit stays: %v; the term goes on: %v", tt.reason, again, p.Term.Holder)
			}
			if tt.api.writes != 1 {
				t.Errorf("%s: written %d times; nothing is applied again before it is known what became of it (R3)", tt.reason, tt.api.writes)
			}
			if free := p.Space.Ledger.HasFreeInZones([]int{0}); free == (tt.commit || tt.again) && !tt.quiet {
				t.Errorf("%s: the address is free: %v", tt.reason, free)
			}
		})
	}
}

// TestCommitIsResentUnchanged checks that a commit that may still land is sent again as it is, whatever has changed
// since (R4).
func TestCommitIsResentUnchanged(t *testing.T) {
	api := &singleWriteAPI{err: apierrors.NewTimeoutError("lost", 1), readErr: errors.New("nothing is known")}
	a := New(Options{Client: api, Live: api, ManagerID: "me", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
	grantstest.ObserveClaim(p, "a", 0)
	p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
	if err := a.status.commitGrants(t.Context(), grants.NewPool(p), p.PrepareCommit(a.now())); err == nil {
		t.Fatal("the commit is known to have landed")
	}
	first := api.sent
	grantstest.ObserveClaim(p, "b", 1)
	edited := p.Base.Pool.DeepCopyObject().(*v1alpha1.NetworkPool)
	edited.ResourceVersion, edited.DeletionTimestamp = "12", &metav1.Time{Time: grantstest.Noon}
	p.RefreshBasePool(edited, "me", grantstest.Noon)
	api.err = nil
	if err := a.status.sendCommit(t.Context(), grants.NewPool(p)); err != nil {
		t.Fatal(err)
	}
	if got, want := api.sent.Status.Allocator.InFlight, first.Status.Allocator.InFlight; len(got) != 1 || got[0] != want[0] || api.sent.ResourceVersion != "10" {
		t.Errorf("sent %v at %s, first %v", got, api.sent.ResourceVersion, want)
	}
	if len(p.Grants.ByClaimant) != 1 || !p.Grants.ByClaimant["uid-a"].Committed {
		t.Errorf("%d grants", len(p.Grants.ByClaimant))
	}
}
