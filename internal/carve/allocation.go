package carve

import (
	"net/netip"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ending"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// Allocation is an IPAllocation that is a block of a carved pool, or of a Cluster for its Nodes, as it was observed
// last.
type Allocation struct {
	Namespace, Name string
	UID             types.UID
	ResourceVersion string
	Created         time.Time
	// PoolRef and PrefixLength are the pool and the size that it requests; PinnedPrefix is the exact prefix if it
	// requests one.
	PoolRef      v1alpha1.PoolReference
	PrefixLength int
	PinnedPrefix netip.Prefix
	// Prefix is the prefix of the block, as the holder of its pool has published it. It is not valid if the holder has
	// published none.
	Prefix netip.Prefix
	// RecordedRanges are all ranges that the block may have: those of its record and of its status. After a move there
	// is only the record.
	RecordedRanges []netipx.IPRange
	// RefusalReason and RefusalMessage are why it has no prefix.
	RefusalReason, RefusalMessage string
	// OtherFinalizers are the finalizers of the object except ours.
	OtherFinalizers []string
	// HasFinalizer reports whether our finalizer is on it; SharesAddresses reports whether another object has some of
	// its addresses; Moved reports whether clusterctl is moving it to another cluster.
	HasFinalizer, Deleting, SharesAddresses, Paused, Moved bool
	// refusalOutdated reports whether its record appeared while this manager watched, and its refusal is older.
	refusalOutdated bool
}

// AllocationFromObject returns an IPAllocation as a block that a finalizer of ours protects.
func AllocationFromObject(a *v1alpha1.IPAllocation, finalizer string) Allocation {
	out := Allocation{
		Namespace: a.Namespace, Name: a.Name, UID: a.UID, ResourceVersion: a.ResourceVersion, Created: a.CreationTimestamp.Time,
		PoolRef: a.Spec.PoolRef, PrefixLength: int(ptr.Deref(a.Spec.PrefixLength, 0)), SharesAddresses: meta.IsStatusConditionTrue(a.Status.Conditions, v1alpha1.OverlapCondition),
		Deleting: a.DeletionTimestamp != nil, Paused: annotations.HasPaused(a), Moved: ending.IsMoved(a),
	}
	for _, f := range a.Finalizers {
		if f == finalizer {
			out.HasFinalizer = true
		} else {
			out.OtherFinalizers = append(out.OtherFinalizers, f)
		}
	}
	if pin := a.Spec.PinnedRange; pin != nil {
		if r, err := poolutil.ParseRange(pin.StartAddress + "-" + pin.EndAddress); err == nil {
			out.PinnedPrefix, _ = r.Prefix()
		}
	}
	if ready := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ReadyCondition); ready != nil && ready.Status == metav1.ConditionFalse {
		out.RefusalReason, out.RefusalMessage = ready.Reason, ready.Message
	}
	// Every user who can create an IPAllocation can write a record; only the holder writes the status.
	published := PublishedRange(a)
	record, _ := poolutil.ParseRange(a.Annotations[v1alpha1.AddressAnnotation])
	for _, r := range []netipx.IPRange{record, published} {
		if r.IsValid() {
			out.RecordedRanges = append(out.RecordedRanges, r)
		}
	}
	if published.IsValid() && published == record {
		out.Prefix, _ = published.Prefix()
	}
	return out
}

// PublishedRange returns the range that the holder of its pool has published in the status of an IPAllocation; it is not
// valid if there is none. The status of an allocation that is pending or failed names no range that counts.
func PublishedRange(a *v1alpha1.IPAllocation) netipx.IPRange {
	if a.Status.Phase != v1alpha1.AllocationAllocated && a.Status.Phase != v1alpha1.AllocationReleased {
		return netipx.IPRange{}
	}
	out, _ := poolutil.ParseRange(a.Status.StartAddress + "-" + a.Status.EndAddress)
	return out
}

// WithHistory returns the block, given the block of its name as it was known before: a refusal that was published
// before the record appeared says nothing about the record.
func (a Allocation) WithHistory(old Allocation) Allocation {
	a.refusalOutdated = old.UID == a.UID && a.RefusalMessage == old.RefusalMessage && (old.refusalOutdated || (len(old.RecordedRanges) == 0 && len(a.RecordedRanges) > 0))
	return a
}

// IsRefused reports whether a block requests certain addresses, those that it had before or those of a lost block, and
// does not get them: another block may replace it.
func (a Allocation) IsRefused() bool {
	return !a.Prefix.IsValid() && !a.refusalOutdated && a.RefusalMessage != "" && (a.PinnedPrefix.IsValid() || len(a.RecordedRanges) > 0)
}

// GrantedPrefix returns the prefix that the block has and that no other object has; it is not valid if there is none.
func (a Allocation) GrantedPrefix() netip.Prefix {
	if a.SharesAddresses {
		return netip.Prefix{}
	}
	return a.Prefix
}

// RecordedPrefixes returns the recorded ranges that are prefixes.
func (a Allocation) RecordedPrefixes() (out []netip.Prefix) {
	for _, r := range a.RecordedRanges {
		if p, ok := r.Prefix(); ok {
			out = append(out, p)
		}
	}
	return out
}
