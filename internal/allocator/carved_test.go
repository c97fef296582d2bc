package allocator

import (
	"context"
	"testing"

	"go4.org/netipx"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// childPoolAPI is an API server that has a carved pool, and nothing else.
type childPoolAPI struct {
	client.Client
	pool *v1alpha1.NetworkPool // nil if it does not exist
}

func (c *childPoolAPI) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	if c.pool == nil {
		return apierrors.NewNotFound(schema.GroupResource{}, "pool")
	}
	c.pool.DeepCopyInto(obj.(*v1alpha1.NetworkPool))
	return nil
}

// addresses are the IPAddresses of the pool that a list shows.
type addresses []string

func (l addresses) List(_ context.Context, of client.Object, _ string, visit func(client.Object)) (string, error) {
	if _, ok := of.(*ipamv1.IPAddress); ok {
		for _, text := range l {
			visit(&ipamv1.IPAddress{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a-" + text, UID: types.UID(text), ResourceVersion: "90"},
				Spec: ipamv1.IPAddressSpec{Address: text, ClaimRef: ipamv1.IPAddressClaimReference{Name: "c"}, PoolRef: ipamv1.IPPoolReference{
					APIGroup: v1alpha1.GroupVersion.Group, Kind: v1alpha1.NetworkPoolKind, Name: grantstest.PoolKey.Name,
				}},
			})
		}
	}
	return "100", nil
}

// TestVerifyBlockReleasable checks R13: a block goes back when a live read shows the term in which that was decided,
// and the block is not open, in flight or in use.
func TestVerifyBlockReleasable(t *testing.T) {
	entry := v1alpha1.CarvedBlock{Range: "10.0.0.4/30", Allocation: "pool-1", Prefix: 24}
	tests := map[string]struct {
		live   func(*v1alpha1.NetworkPool)
		here   func(*grants.PoolState)
		gone   bool
		lists  []string
		term   int64
		may    bool
		reason string
	}{
		"Ours": {may: true},
		"ALaterCommit": {live: func(p *v1alpha1.NetworkPool) {
			p.ResourceVersion, p.Status.Allocator.InFlight = "11", []v1alpha1.Grant{{Name: "c"}}
		}, may: true, reason: "a commit of ours is no other term"},
		"AnotherHolder": {live: func(p *v1alpha1.NetworkPool) { p.Status.Allocator.Holder = "another" }, reason: "it may have opened it"},
		"AnotherTerm":   {live: func(p *v1alpha1.NetworkPool) { p.Status.Allocator.Term = 4 }},
		"StatusLost":    {live: func(p *v1alpha1.NetworkPool) { p.Status = v1alpha1.NetworkPoolStatus{} }, reason: "what was in flight is on no record"},
		"AnotherPool":   {live: func(p *v1alpha1.NetworkPool) { p.UID = "another" }},
		"OfBefore":      {term: 2, reason: "it was decided before the pool was taken over again"},
		"Open":          {live: func(p *v1alpha1.NetworkPool) { p.Status.Blocks = []v1alpha1.CarvedBlock{entry} }, reason: "addresses are granted from it"},
		"InFlight": {here: func(m *grants.PoolState) {
			m.Space.Ledger.AddFact(ledger.Fact{Key: ledger.Key{Source: ledger.SourceGrant, UID: "c"}, Range: netipx.MustParseIPRange("10.0.0.5-10.0.0.5")})
		}},
		"Listed":      {lists: []string{"10.0.0.6"}, reason: "the watch has not shown it"},
		"ListedOther": {lists: []string{"10.0.0.9"}, may: true},
		"PoolGone":    {gone: true, here: func(m *grants.PoolState) { m.ClearBasePool() }, may: true},
		"GoneUnseen":  {gone: true, reason: "the watch is behind"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
			api := &childPoolAPI{pool: p.Base.Pool.DeepCopyObject().(*v1alpha1.NetworkPool)}
			if tt.live != nil {
				tt.live(api.pool)
			}
			if tt.gone {
				api.pool = nil
			}
			if tt.here != nil {
				tt.here(p)
			}
			block := &grants.Block{Allocation: carve.Allocation{Namespace: "ns", Name: entry.Allocation, UID: "block", RecordedRanges: []netipx.IPRange{netipx.MustParseIPRange("10.0.0.4-10.0.0.7")}}}
			r := grants.BlockRequest{Verb: carve.RemoveBlockFinalizer, Name: entry.Allocation, Block: block, Term: 3}
			if tt.term != 0 {
				r.Term = tt.term
			}
			a := New(Options{ManagerID: "me", Live: api, Lister: addresses(tt.lists), Clock: clocktesting.NewFakeClock(grantstest.Noon)})
			if err := a.requests.verifyBlockReleasable(t.Context(), grants.NewPool(p), r); (err == nil) != tt.may {
				t.Errorf("%s: %v", tt.reason, err)
			}
			if loses := name == "AnotherHolder" || name == "AnotherTerm" || name == "StatusLost" || name == "AnotherPool"; p.Term.NeedsRevalidation != loses {
				t.Errorf("the term is suspect: %v", p.Term.NeedsRevalidation)
			}
		})
	}
}
