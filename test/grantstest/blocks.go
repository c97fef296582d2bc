package grantstest

import (
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/blocks"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// ObserveAllocation feeds a pool an IPAllocation of count addresses; 0 means that its spec has no count.
func ObserveAllocation(p *grants.PoolState, name string, count int32, change ...func(*v1alpha1.IPAllocation)) *grants.Claimant {
	o := &v1alpha1.IPAllocation{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID("uid-" + name), ResourceVersion: "1", Generation: 1,
		CreationTimestamp: metav1.NewTime(Noon), Annotations: map[string]string{},
	}}
	o.Spec = v1alpha1.IPAllocationSpec{PoolRef: v1alpha1.PoolReference{Name: PoolKey.Name}, Type: v1alpha1.LoadBalancerAllocation}
	if count > 0 {
		o.Spec.Count = &count
	}
	for _, f := range change {
		f(o)
	}
	p.ObserveClaimant(blocks.NewClaimant(o))
	return p.Claimants.ByUID[o.UID]
}

// WithBlock sets the record of an allocation, and our finalizer.
func WithBlock(block string) func(*v1alpha1.IPAllocation) {
	return func(o *v1alpha1.IPAllocation) {
		o.Annotations[v1alpha1.AddressAnnotation], o.Finalizers = block, []string{v1alpha1.IPAllocationFinalizer}
	}
}

// WithAllocatedStatus sets the status that Butler writes for an allocated block.
func WithAllocatedStatus(first, last string) func(*v1alpha1.IPAllocation) {
	return func(o *v1alpha1.IPAllocation) {
		o.Status = v1alpha1.IPAllocationStatus{Phase: v1alpha1.AllocationAllocated, StartAddress: first, EndAddress: last}
	}
}

// WithPinnedRange pins an allocation to a range.
func WithPinnedRange(first, last string) func(*v1alpha1.IPAllocation) {
	return func(o *v1alpha1.IPAllocation) {
		o.Spec.PinnedRange = &v1alpha1.PinnedRange{StartAddress: first, EndAddress: last}
	}
}

// ForNodes makes an allocation one for Nodes.
func ForNodes(o *v1alpha1.IPAllocation) { o.Spec.Type = v1alpha1.NodesAllocation }

// SiteKey is the key of the pool whose blocks the child pool has.
var SiteKey = pools.Key{Kind: v1alpha1.NetworkPoolKind, Namespace: "ns", Name: "site"}

// NewChildPool returns a pool that is carved from site in blocks of /30, and that this manager holds.
func NewChildPool(t *testing.T, change ...func(*v1alpha1.NetworkPool)) *grants.PoolState {
	t.Helper()
	p := NewPool(t, "", append([]func(*v1alpha1.NetworkPool){func(o *v1alpha1.NetworkPool) { CarveFrom(o, SiteKey.Name) }}, change...)...)
	p.Carved.Parent = grants.ParentPool{AddressBits: 32, NetworkFor: p.Space.Layout.NetworkForAddress}
	p.RebuildLedger(&grants.ListedObjects{})
	return p
}

// CarveFrom makes a pool carved from another one.
func CarveFrom(o *v1alpha1.NetworkPool, parent string) {
	o.Spec = v1alpha1.NetworkPoolSpec{AllocateReservedIPAddresses: true, Carve: &v1alpha1.Carve{
		PoolRef: v1alpha1.PoolReference{Name: parent}, PrefixLength: 30, Blocks: v1alpha1.CarvedBlocks{Min: 1, Max: 3},
	}}
}

// WithOpenBlock puts a block on record as open.
func WithOpenBlock(name, prefix string) func(*v1alpha1.NetworkPool) {
	return func(o *v1alpha1.NetworkPool) {
		o.Status.Blocks = append(o.Status.Blocks, v1alpha1.CarvedBlock{Range: prefix, Allocation: name, UID: "uid-" + name, Prefix: 24})
	}
}

// NewBlock returns a block of site for the pool, with our finalizer. It has no addresses yet.
func NewBlock(name string, change ...func(*v1alpha1.IPAllocation)) *v1alpha1.IPAllocation {
	o := &v1alpha1.IPAllocation{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID("uid-" + name), ResourceVersion: "5", Generation: 1,
		CreationTimestamp: metav1.NewTime(Noon), Annotations: map[string]string{}, Finalizers: []string{v1alpha1.CarvedPoolFinalizer},
	}}
	o.Spec = v1alpha1.IPAllocationSpec{
		PoolRef: v1alpha1.PoolReference{Name: SiteKey.Name}, Type: v1alpha1.PoolAllocation, PrefixLength: ptr.To[int32](30),
		ChildPoolRef: &v1alpha1.PoolReference{Name: PoolKey.Name},
	}
	for _, f := range change {
		f(o)
	}
	return o
}

// WithBlockAddresses sets the addresses of a block, as the parent's holder writes them.
func WithBlockAddresses(prefix, first, last string) func(*v1alpha1.IPAllocation) {
	return func(o *v1alpha1.IPAllocation) {
		o.Annotations[v1alpha1.AddressAnnotation] = prefix
		o.Finalizers = append(o.Finalizers, v1alpha1.IPAllocationFinalizer)
		WithAllocatedStatus(first, last)(o)
	}
}

// FirstBlock gives a block the second /30 of site.
var FirstBlock = WithBlockAddresses("10.0.0.4/30", "10.0.0.4", "10.0.0.7")

// Deleted marks a block as being deleted.
func Deleted(o *v1alpha1.IPAllocation) { o.DeletionTimestamp = ptr.To(metav1.NewTime(Noon)) }

// MovedAway marks a block as being deleted by clusterctl, which has moved it.
func MovedAway(o *v1alpha1.IPAllocation) {
	Deleted(o)
	o.Annotations[v1alpha1.DeleteForMoveAnnotation] = ""
}

// Shared sets the condition of a block that overlaps with another pool.
func Shared(o *v1alpha1.IPAllocation) {
	o.Status.Conditions = append(o.Status.Conditions, metav1.Condition{Type: v1alpha1.OverlapCondition, Status: metav1.ConditionTrue, Message: "x has it too"})
}

// Refused sets the condition of a block that its parent cannot give.
func Refused(o *v1alpha1.IPAllocation) { o.Status.Conditions = []metav1.Condition{NotReady} }

// NotReady is the condition of a block that its parent refuses.
var NotReady = metav1.Condition{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: "PoolExhausted", Message: "site is full"}

// ObserveBlock feeds a block to a pool.
func ObserveBlock(p *grants.PoolState, o *v1alpha1.IPAllocation) *grants.Block {
	b, _ := BlockKind.BlockFromObject(o)
	p.ObserveBlock(b)
	return b
}

// WithWrittenStatus sets the status that the allocator would write for an allocation.
func WithWrittenStatus(t *testing.T, seen grants.OwnerSeen) func(*v1alpha1.IPAllocation) {
	t.Helper()
	return func(o *v1alpha1.IPAllocation) {
		o.Spec.TenantClusterRef = v1alpha1.ClusterReference{Namespace: "team", Name: "prod"}
		c := blocks.NewClaimant(o)
		text, err := json.Marshal(blocks.AllocatedStep(c, c.RecordedRange, "", seen, Noon).StatusPatch)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &o.Status); err != nil {
			t.Fatal(err)
		}
	}
}
