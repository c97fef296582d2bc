package allocator

import (
	"context"
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// refusingAPI is an API server that answers every request with an error.
type refusingAPI struct{ client.Client }

func (refusingAPI) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errRefused
}

func (refusingAPI) Create(context.Context, client.Object, ...client.CreateOption) error {
	return errRefused
}

func (refusingAPI) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return errRefused
}

var errRefused = apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "x", errors.New("a policy refuses it"))

// TestFailedJobsEnqueueByOneRule checks that the pool is enqueued by the same rule, whichever job failed.
func TestFailedJobsEnqueueByOneRule(t *testing.T) {
	for name, begin := range map[string]func(a *Allocator, p *grants.PoolState) func(){
		"AClaim": func(a *Allocator, p *grants.PoolState) func() {
			c := grantstest.ObserveClaim(p, "a", 0)
			fails := func(context.Context, *grants.Pool, grants.Claimant) error { return errRefused }
			return func() { a.jobs.runClaimantJob(t.Context(), grants.NewPool(p), c.Owner.UID, serveJob, fails) }
		},
		"AnIPAddressWithoutAClaim": func(a *Allocator, p *grants.PoolState) func() {
			grantstest.ObserveAddress(p, "a", "10.0.0.1", "gone")
			o := p.Addresses.Orphans[types.NamespacedName{Namespace: "ns", Name: "a"}]
			return func() { a.addresses.runOrphanJob(t.Context(), grants.NewPool(p), o.Address) }
		},
		"TheEndOfAMove": func(a *Allocator, p *grants.PoolState) func() {
			moved := grantstest.MovedAddress("a", "10.0.0.1")
			p.ObserveAddress(moved)
			p.Base.Pool.PoolStatus().Held = []v1alpha1.HeldRange{{First: "10.0.0.1", Last: "10.0.0.1", Reason: v1alpha1.MovedReason}}
			p.Moves.UnfinishedMoves(grantstest.Noon, 9)
			return func() { a.addresses.finishAddressMove(t.Context(), grants.NewPool(p), moved) }
		},
		"ABlock": func(a *Allocator, p *grants.PoolState) func() {
			p.Base.Pool.PoolSpec().Carve = &v1alpha1.Carve{PoolRef: v1alpha1.PoolReference{Name: "site"}, PrefixLength: 30}
			r := grants.BlockRequest{Verb: carve.CreateBlock, Name: "pool-1"}
			p.Carved.BeginBlockRequest(r)
			return func() { a.requests.runBlockRequest(t.Context(), grants.NewPool(p), r) }
		},
	} {
		for delay, wakes := range map[time.Duration]bool{time.Millisecond: false, time.Hour: true} {
			woken := 0
			a := New(Options{Client: refusingAPI{}, Live: refusingAPI{}, Recorder: events.NewFakeRecorder(9), ManagerID: "us", Clock: clocktesting.NewFakeClock(grantstest.Noon)})
			a.Start(t.Context(), func(pools.Key) { woken++ })
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
			run := begin(a, p)
			p.Queues.ActiveJobs, p.Queues.NextReconcileAt, woken = 9, grantstest.Noon.Add(delay), 0
			if run(); (woken > 0) != wakes || p.Queues.ActiveJobs != 8 {
				t.Errorf("%s: a pool that is reconciled in %v is woken %d times, and has %d jobs", name, delay, woken, p.Queues.ActiveJobs)
			}
		}
	}
}
