package grants_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestLostBlockGrantsNothing checks that a pool grants nothing from a block that it knows to be lost, and that no
// claim adopts an IPAddress that is in no block: a restore may have brought it, and the parent may have granted the
// block to others since.
func TestLostBlockGrantsNothing(t *testing.T) {
	for name, tt := range map[string]struct {
		block *v1alpha1.IPAllocation
		may   bool
	}{
		"Here":    {block: grantstest.NewBlock("pool-1", grantstest.FirstBlock), may: true},
		"Gone":    {},
		"Deleted": {block: grantstest.NewBlock("pool-1", grantstest.FirstBlock, grantstest.Deleted)},
		"Shared":  {block: grantstest.NewBlock("pool-1", grantstest.FirstBlock, grantstest.Shared)},
	} {
		turn := func(p *grants.PoolState) int {
			if tt.block != nil {
				grantstest.ObserveBlock(p, tt.block)
			}
			p.Carved.ResetShortfall()
			p.Growth.DrainLostBlocks(grantstest.Noon, time.Minute)
			n, _ := p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
			return n
		}
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewChildPool(t, grantstest.WithOpenBlock("pool-1", "10.0.0.4/30"))
			grantstest.ObserveClaim(p, "c", 1)
			if n := turn(p); (n > 0) != tt.may {
				t.Errorf("%d are granted", n)
			}
		})
		t.Run(name+"/Adopted", func(t *testing.T) {
			p := grantstest.NewChildPool(t, grantstest.WithOpenBlock("pool-1", "10.0.0.4/30"))
			grantstest.ObserveAddress(p, "c", "10.0.0.5", "uid-before")
			c := grantstest.ObserveClaim(p, "c", 1, grantstest.WithRecordedAddress("10.0.0.5"))
			turn(p)
			// One that is being deleted still has the address, and no other claim does.
			if got, want := p.Inventory.NeedFor(c) == grants.NeedWrite, tt.may || name == "Deleted"; got != want {
				t.Errorf("it is adopted: %v", got)
			}
			if s := p.Addresses.Orphans[p.Addresses.AddressFor(c).Key()]; p.Inventory.IsOrphanConflicting(s) {
				t.Error("the IPAddress is taken away at once")
			}
		})
	}
}

// strandedClaim returns a claim that has on record the address of an IPAddress that is in no block, and whose claim was
// another one.
func strandedClaim(t *testing.T, owner types.UID, wantMessage string) (*grants.PoolState, *grants.Claimant) {
	t.Helper()
	p := grantstest.NewChildPool(t)
	grantstest.ObserveAddress(p, "c", "10.0.0.5", owner)
	c := grantstest.ObserveClaim(p, "c", 1, grantstest.WithRecordedAddress("10.0.0.5"))
	p.Growth.DrainLostBlocks(grantstest.Noon, time.Minute)
	_, refused := p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
	if refusal := refused[c]; refusal == nil || !strings.Contains(refusal.Message, wantMessage) {
		t.Errorf("%+v", refusal)
	}
	return p, c
}

// TestStrandedClaimAdoptsItsAddress checks that the claim gets a message with what it waits for, and adopts its
// IPAddress when the block exists.
func TestStrandedClaimAdoptsItsAddress(t *testing.T) {
	p, c := strandedClaim(t, "uid-before", "10.0.0.5, which is in no block of NetworkPool ns/pool; waiting until the block is there, or the IPAddress is gone")
	grantstest.ObserveBlock(p, grantstest.NewBlock("pool-1", grantstest.FirstBlock))
	obj := p.Base.Pool.DeepCopyObject().(*v1alpha1.NetworkPool)
	grantstest.WithOpenBlock("pool-1", "10.0.0.4/30")(obj)
	obj.ResourceVersion = "11"
	p.SetBasePool(obj)
	if p.Growth.DrainLostBlocks(grantstest.Noon, time.Minute); p.Inventory.NeedFor(c) != grants.NeedWrite || p.Queues.Waiting.Len() > 0 {
		t.Error("it goes on waiting")
	}
}

// TestStrandedAddressAdviceHelps checks that an IPAddress without owners that is in no block goes when it is deleted
// and its claim is created again (W29).
func TestStrandedAddressAdviceHelps(t *testing.T) {
	p, c := strandedClaim(t, "", "or delete the IPAddress and create the claim again")
	deleted := *p.Addresses.AddressFor(c)
	deleted.Deleting, deleted.ResourceVersion = true, "2"
	p.ObserveAddress(&deleted)
	due := func() int {
		jobs, _ := p.ListDueWrites(grantstest.Noon, 9, time.Minute, grantstest.AdmitAll, grantstest.AdmitAll)
		return len(jobs.ResolveOrphans)
	}
	if n := due(); n != 0 {
		t.Errorf("%d IPAddresses of claims that remember their address go", n)
	}
	p.ForgetClaimant(c.Owner.UID)
	grantstest.ObserveClaim(p, "c", 2, func(c *ipamv1.IPAddressClaim) { c.UID = "uid-again" })
	if n := due(); n != 1 {
		t.Errorf("%d go, and one is in the way", n)
	}
}

// TestPinnedBlockIsNotOutdated checks that a block with pinned addresses has the right size, whatever size the pool
// requests by now.
func TestPinnedBlockIsNotOutdated(t *testing.T) {
	p := grantstest.NewChildPool(t, grantstest.WithOpenBlock("pool-1", "10.0.0.4/30"), func(o *v1alpha1.NetworkPool) {
		o.Status.Blocks[0].Draining, o.Spec.Carve.Blocks.Min, o.Spec.Carve.PrefixLength = true, 0, 31
	})
	grantstest.ObserveAddress(p, "a", "10.0.0.5", "uid-a")
	grantstest.ObserveBlock(p, grantstest.NewBlock("pool-2", grantstest.WithPinnedRange("10.0.0.4", "10.0.0.7")))
	if p.Growth.PlanBlocks(grantstest.Noon, time.Minute); p.Carved.Decision.HasWork() {
		t.Errorf("%+v", p.Carved.Decision)
	}
}

// TestRefusedBlocksDoNotStopGrowth checks that a block that a restore brings waits for its addresses, whatever size the
// pool requests by now; that the replacement of a block that is closed since is of no use; and that neither keeps the
// pool from growing.
func TestRefusedBlocksDoNotStopGrowth(t *testing.T) {
	record := func(o *v1alpha1.IPAllocation) { o.Annotations[v1alpha1.AddressAnnotation] = "10.0.0.4/31" }
	one := func(o *v1alpha1.NetworkPool) { o.Spec.Carve.Blocks = v1alpha1.CarvedBlocks{Min: 0, Max: 1} }
	lost := func(o *v1alpha1.NetworkPool) {
		grantstest.WithOpenBlock("pool-1", "10.0.0.4/30")(o)
		o.Status.Blocks[0].Draining = true
	}
	for name, tt := range map[string]struct {
		pool  func(*v1alpha1.NetworkPool)
		block *v1alpha1.IPAllocation
		here  func(*grants.PoolState)
		want  carve.Decision
	}{
		"Restored":      {block: grantstest.NewBlock("pool-1", record, grantstest.Refused)},
		"RestoredGrows": {block: grantstest.NewBlock("pool-1", record, grantstest.Refused), here: func(p *grants.PoolState) { grantstest.ObserveClaim(p, "b", 1) }, want: carve.Decision{NewBlocks: 1}},
		"TooLate":       {block: grantstest.NewBlock("pool-2", grantstest.WithPinnedRange("10.0.0.4", "10.0.0.7"), grantstest.Refused), want: carve.Decision{Delete: []string{"pool-2"}}},
		"InTime": {pool: lost, block: grantstest.NewBlock("pool-2", grantstest.WithPinnedRange("10.0.0.4", "10.0.0.7"), grantstest.Refused), here: func(p *grants.PoolState) {
			grantstest.ObserveAddress(p, "a", "10.0.0.5", "uid-a")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewChildPool(t, one, func(o *v1alpha1.NetworkPool) {
				if tt.pool != nil {
					tt.pool(o)
				}
			})
			grantstest.ObserveBlock(p, tt.block)
			if tt.here != nil {
				tt.here(p)
			}
			p.Carved.ResetShortfall()
			p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
			p.Growth.PlanBlocks(grantstest.Noon, time.Hour)
			got := p.Carved.Decision
			if got.NextWait = 0; !cmp.Equal(got, tt.want) {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}

// TestDeletedPoolRequestsNoMovedBlock checks that a block that clusterctl moved away is not requested by a pool that is
// being deleted either.
func TestDeletedPoolRequestsNoMovedBlock(t *testing.T) {
	d := carve.DecideBlocks(carve.Pool{Deleting: true, Moved: true, MaxBlocks: 1, MaxOpen: 128}, []carve.Block{{Name: "pool-1", Open: true, Draining: true, Used: 1}}, grantstest.Noon)
	if d.HasWork() {
		t.Errorf("%+v", d)
	}
}

// TestRecordEndsRefusal checks that a block that was refused, and has its record by now, is about to be the pool's:
// its status is from before the record.
func TestRecordEndsRefusal(t *testing.T) {
	p := grantstest.NewChildPool(t)
	grantstest.ObserveBlock(p, grantstest.NewBlock("pool-1", grantstest.Refused))
	turn := func() carve.Decision {
		p.Carved.ResetShortfall()
		p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
		p.Growth.PlanBlocks(grantstest.Noon, time.Hour)
		p.Carved.Decision.NextWait = 0
		return p.Carved.Decision
	}
	if d := turn(); d.HasWork() {
		t.Errorf("refused: %+v", d)
	}
	grantstest.ObserveBlock(p, grantstest.NewBlock("pool-1", grantstest.Refused, func(o *v1alpha1.IPAllocation) {
		o.ResourceVersion, o.Annotations[v1alpha1.AddressAnnotation] = "6", "10.0.0.4/30"
	}))
	if d := turn(); d.HasWork() {
		t.Errorf("with its record: %+v", d)
	}
	grantstest.ObserveClaim(p, "b", 1)
	if d := turn(); d.HasWork() {
		t.Errorf("while a claim waits: %+v", d)
	}
}
