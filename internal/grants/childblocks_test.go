package grants_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/blocks"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestBlockTakesNextName checks that a block whose name another object has is requested under the next name, once.
func TestBlockTakesNextName(t *testing.T) {
	p := grantstest.NewChildPool(t, grantstest.WithOpenBlock("pool-1", "10.0.0.4/30"), func(o *v1alpha1.NetworkPool) { o.Status.Blocks[0].Draining, o.Spec.Carve.Blocks.Min = true, 0 })
	grantstest.ObserveAddress(p, "a", "10.0.0.5", "uid-a")
	ask := func() (names []string) {
		p.Growth.PlanBlocks(grantstest.Noon, time.Minute)
		out, _ := p.Growth.DueBlockRequests(grantstest.Noon, time.Minute)
		for _, r := range out {
			if r.Verb != carve.CreateBlock || r.PinnedPrefix.String() != "10.0.0.4/30" {
				t.Errorf("%+v", r)
			}
			p.Carved.BeginBlockRequest(r)
			names = append(names, r.Name)
		}
		return names
	}
	if got := ask(); !slices.Equal(got, []string{"pool-1"}) {
		t.Fatal(got)
	}
	if again := ask(); again != nil {
		t.Errorf("%v while it is being asked for", again)
	}
	p.Carved.Requests.MarkNameTaken("pool-1", grantstest.Noon)
	p.Carved.EndBlockRequest(grants.BlockRequest{Verb: carve.CreateBlock, Name: "pool-1"}, nil, grantstest.Noon)
	if got := ask(); !slices.Equal(got, []string{"pool-2"}) {
		t.Errorf("it asks for %v", got)
	}
	if again := ask(); again != nil {
		t.Errorf("%v while it is being asked for", again)
	}
}

// TestStandbyDoesNotTakeOverForNoWork checks that a manager that is not the holder takes no pool over for what
// the holder would not do either: open a block whose network is unknown, or close one while the pool adopts.
func TestStandbyDoesNotTakeOverForNoWork(t *testing.T) {
	for name, tt := range map[string]struct {
		pool  func(*v1alpha1.NetworkPool)
		here  func(*grants.PoolState)
		block *v1alpha1.IPAllocation
		may   bool
	}{
		"NoNetwork": {here: func(p *grants.PoolState) { p.Carved.Parent = grants.ParentPool{} }, block: grantstest.NewBlock("pool-1", grantstest.FirstBlock)},
		"Network":   {block: grantstest.NewBlock("pool-1", grantstest.FirstBlock), may: true},
		"Adopting": {pool: func(o *v1alpha1.NetworkPool) {
			grantstest.WithOpenBlock("pool-1", "10.0.0.4/30")(o)
			o.Status.Blocks[0].Draining = true
			o.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.AdoptingReason, LastTransitionTime: metav1.NewTime(grantstest.Noon)}}
		}, block: grantstest.NewBlock("pool-1", grantstest.FirstBlock, grantstest.Deleted)},
		"Adopted": {pool: func(o *v1alpha1.NetworkPool) {
			grantstest.WithOpenBlock("pool-1", "10.0.0.4/30")(o)
			o.Status.Blocks[0].Draining = true
		}, block: grantstest.NewBlock("pool-1", grantstest.FirstBlock, grantstest.Deleted), may: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewChildPool(t, func(o *v1alpha1.NetworkPool) {
				o.Spec.Carve.Blocks.Min = 0
				if tt.pool != nil {
					tt.pool(o)
				}
			})
			if tt.here != nil {
				tt.here(p)
			}
			grantstest.ObserveBlock(p, tt.block)
			p.Term.Holder = false
			p.MayTakeOver(grantstest.Noon, false, time.Hour, grantstest.AdmitAll, grantstest.AdmitAll)
			if may, _ := p.MayTakeOver(grantstest.Noon.Add(5*time.Second), false, time.Hour, grantstest.AdmitAll, grantstest.AdmitAll); may != tt.may {
				t.Errorf("it takes over: %v", may)
			}
		})
	}
}

// TestWaitStartsAtLastPoolDeletion checks R10: the time during which grants of a pool that is gone may still land
// begins at the last end of the pool.
func TestWaitStartsAtLastPoolDeletion(t *testing.T) {
	p := grantstest.NewChildPool(t)
	grantstest.ObserveBlock(p, grantstest.NewBlock("pool-1", grantstest.FirstBlock, grantstest.Deleted))
	base := p.Base.Pool
	p.ClearBasePool()
	p.Growth.DueBlockRequests(grantstest.Noon, time.Minute)
	p.Term.Holder = false
	p.SetBasePool(base) // created again, and served by another manager
	p.ClearBasePool()
	if out, _ := p.Growth.DueBlockRequests(grantstest.Noon.Add(time.Hour), time.Minute); len(out) > 0 {
		t.Errorf("%s at once", out[0].Verb)
	}
	if out, _ := p.Growth.DueBlockRequests(grantstest.Noon.Add(time.Hour+time.Minute), time.Minute); len(out) != 1 {
		t.Errorf("%v after that", out)
	}
}

// TestMovedBlockInUseIsNotRequested checks that a block that was moved away is not requested again, although a claim
// still uses its addresses.
func TestMovedBlockInUseIsNotRequested(t *testing.T) {
	p := grantstest.NewChildPool(t, grantstest.WithOpenBlock("pool-1", "10.0.0.4/30"))
	grantstest.ObserveAddress(p, "a", "10.0.0.5", "uid-a")
	b := grantstest.ObserveBlock(p, grantstest.NewBlock("pool-1", grantstest.FirstBlock, grantstest.MovedAway))
	p.Carved.ForgetBlock(b.UID, b.Name)
	p.Base.Pool.PoolStatus().Blocks[0].Draining = true
	if p.Growth.PlanBlocks(grantstest.Noon, time.Minute); len(p.Carved.Decision.Recreate) > 0 {
		t.Errorf("%+v", p.Carved.Decision)
	}
}

// TestForgedRecordIsReportedOnItsObject checks that a record, which any user can write, over the block of another
// object is reported on its own object only.
func TestForgedRecordIsReportedOnItsObject(t *testing.T) {
	site := grantstest.NewPool(t, "10.0.0.0-10.0.0.15", func(o *v1alpha1.NetworkPool) {
		o.Spec.AllocateReservedIPAddresses, o.Spec.Carvable = true, &v1alpha1.Carvable{}
	})
	site.Base.Key = grantstest.SiteKey
	victim := grantstest.NewBlock("pool-1", grantstest.FirstBlock)
	forged := grantstest.NewBlock("evil", func(o *v1alpha1.IPAllocation) {
		o.Namespace, o.Annotations[v1alpha1.AddressAnnotation] = "evil", "10.0.0.0/28"
		o.Finalizers = []string{v1alpha1.IPAllocationFinalizer}
	})
	site.ObserveClaimant(blocks.NewClaimant(victim))
	site.ObserveClaimant(blocks.NewClaimant(forged))
	if overlap := site.Inventory.OverlapMessageFor(site.Claimants.ByUID[victim.UID]); overlap != "" {
		t.Error(overlap)
	}
	if overlap := site.Inventory.OverlapMessageFor(site.Claimants.ByUID[forged.UID]); !strings.Contains(overlap, "10.0.0.4/30") {
		t.Errorf("%q", overlap)
	}
	// It came with both, as a restore may bring it.
	both := grantstest.NewBlock("pool-2", grantstest.WithBlockAddresses("10.0.0.6/31", "10.0.0.6", "10.0.0.7"))
	site.ObserveClaimant(blocks.NewClaimant(both))
	for _, o := range []*v1alpha1.IPAllocation{victim, both} {
		if overlap := site.Inventory.OverlapMessageFor(site.Claimants.ByUID[o.UID]); overlap == "" {
			t.Errorf("%s does not report the other", o.Name)
		}
	}
}

// TestMovedBlockIsNotReleased checks that a block that was moved away stays on record as open, whatever becomes of
// the IPAllocation: a person opens the pool again.
func TestMovedBlockIsNotReleased(t *testing.T) {
	p := grantstest.NewChildPool(t, grantstest.WithOpenBlock("pool-1", "10.0.0.4/30"))
	b := grantstest.ObserveBlock(p, grantstest.NewBlock("pool-1", grantstest.FirstBlock, grantstest.MovedAway))
	p.Carved.ForgetBlock(b.UID, b.Name)
	for range 2 {
		p.Growth.PlanBlocks(grantstest.Noon, time.Minute)
		if len(p.Carved.Decision.Close) > 0 || p.Carved.Decision.NewBlocks > 0 {
			t.Errorf("%+v", p.Carved.Decision)
		}
		p.Base.Pool.PoolStatus().Blocks[0].Draining = true
	}
	if reason, message := p.Status.ClosedReason(grantstest.Noon); reason != v1alpha1.MovedReason {
		t.Errorf("%s: %s", reason, message)
	}
}

// TestVerifiedBlocksEndWithTerm checks that blocks that were verified in an earlier term, or in a term of an
// earlier pool, which also counted from the beginning, are verified again.
func TestVerifiedBlocksEndWithTerm(t *testing.T) {
	p := grantstest.NewChildPool(t)
	b := grantstest.ObserveBlock(p, grantstest.NewBlock("pool-1", grantstest.FirstBlock))
	p.Carved.VerifyBlock(b.UID, b.Name, p.Term.CurrentTerm())
	p.RebuildLedger(&grants.ListedObjects{})
	p.Growth.PlanBlocks(grantstest.Noon, time.Minute)
	if diff := cmp.Diff(carve.Decision{Verify: []string{"pool-1"}}, p.Carved.Decision); diff != "" {
		t.Error(diff)
	}
}

// TestStandbyKnowsShortfall checks that a manager that has not planned yet knows what the waiting claims need,
// and becomes the holder for them when no other manager requests it.
func TestStandbyKnowsShortfall(t *testing.T) {
	p := grantstest.NewChildPool(t, grantstest.WithOpenBlock("pool-1", "10.0.0.4/32"))
	grantstest.ObserveBlock(p, grantstest.NewBlock("pool-1", grantstest.WithBlockAddresses("10.0.0.4/32", "10.0.0.4", "10.0.0.4")))
	grantstest.ObserveAddress(p, "a", "10.0.0.4", "uid-a")
	waits := grantstest.ObserveClaim(p, "b", 1)
	p.Term.Holder, p.Term.Number = false, 0
	p.Planner.PlanGrants(grantstest.Noon, 0, grantstest.AdmitAll)
	waits.Status = &grants.PublishedStatus{Refusal: *grants.PoolNotReady("it is on its way")}
	may, wait := p.MayTakeOver(grantstest.Noon, false, time.Hour, grantstest.AdmitAll, grantstest.AdmitAll)
	if may || wait == 0 {
		t.Fatalf("takes over: %v, comes back after %v", may, wait)
	}
	if may, _ = p.MayTakeOver(grantstest.Noon.Add(time.Hour), false, time.Hour, grantstest.AdmitAll, grantstest.AdmitAll); !may {
		t.Error("no manager requests a block")
	}
}

// TestOwnerSeenAliveStaysRecorded checks that an owner that was found once was alive: that it ended before the status
// showed it makes no difference.
func TestOwnerSeenAliveStaysRecorded(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
	c := grantstest.ObserveAllocation(p, "x", 4)
	p.Owners.RecordOwnerSeen(c, grants.OwnerSeenAlive)
	p.Owners.RecordOwnerSeen(c, grants.OwnerNeverSeen)
	if c.ObservedOwnerSeen != grants.OwnerSeenAlive {
		t.Errorf("it says %v", c.ObservedOwnerSeen)
	}
}

// TestClaimsReferToErrorsOfPool checks that the pool reports the last error of a request for a block, and that the
// claims refer to the pool: thousands of claims may wait for a block, and the error may differ at each try.
func TestClaimsReferToErrorsOfPool(t *testing.T) {
	p := grantstest.NewChildPool(t)
	c := grantstest.ObserveClaim(p, "a", 0)
	r := grants.BlockRequest{Verb: carve.CreateBlock, Name: "pool-1"}
	p.Carved.BeginBlockRequest(r)
	p.Carved.EndBlockRequest(r, errors.New("etcd is slow"), grantstest.Noon)
	_, refused := p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
	if refusal := refused[c]; refusal == nil || strings.Contains(refusal.Message, "etcd") || !strings.Contains(refusal.Message, "its condition Ready shows") {
		t.Errorf("the refusal of the claim is %v", refusal)
	}
	p.Growth.PlanBlocks(grantstest.Noon, time.Minute)
	ready := meta.FindStatusCondition(p.PrepareCommit(grantstest.Noon).Pool.GetConditions(), v1alpha1.ReadyCondition)
	if !strings.Contains(ready.Message, "etcd is slow") {
		t.Errorf("the pool says %s", ready.Message)
	}
}
