package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NetworkPoolStatus is what the pool's allocator observed and granted. Counts are of addresses, or
// of prefixes where the pool hands out prefixes; they saturate at 2^63-1.
type NetworkPoolStatus struct {
	// conditions of the pool.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// totalIPs is the number of addresses the pool can hand out at all.
	// +required
	TotalIPs int64 `json:"totalIPs"`
	// allocatedIPs is the number of addresses that are in use or granted.
	// +required
	AllocatedIPs int64 `json:"allocatedIPs"`
	// availableIPs is the number of addresses that can be handed out now.
	// +required
	AvailableIPs int64 `json:"availableIPs"`
	// outOfRangeIPs is the number of addresses in use that the spec no longer covers.
	// +required
	OutOfRangeIPs int64 `json:"outOfRangeIPs"`
	// allocationCount is the number of claims and allocations that hold addresses.
	// +required
	AllocationCount int64 `json:"allocationCount"`
	// largestFreeBlock is the number of addresses of the largest contiguous free block.
	// +required
	LargestFreeBlock int64 `json:"largestFreeBlock"`
	// fragmentationPercent is 0 where all free addresses are contiguous, towards 100 the more they
	// are scattered.
	// +required
	FragmentationPercent int32 `json:"fragmentationPercent"`
	// observedGeneration is the generation of the spec the status speaks of.
	// +required
	ObservedGeneration int64 `json:"observedGeneration"`
	// allocator is the state of the grant protocol; it is written by the manager alone.
	// +optional
	Allocator *AllocatorStatus `json:"allocator,omitempty"`
	// cooling are released addresses that rest before they are given to another claim. Those of leases for which a
	// foreign machine answers rest here for an hour, whatever the spec says.
	// +optional
	// +listType=atomic
	Cooling []CoolingGroup `json:"cooling,omitempty"`
	// released are the free addresses that were in use last, where spec.allocationOrder is LeastRecentlyUsed: ranges separated
	// by commas, what was released longest ago first. What is free and not listed here is handed out before.
	// +optional
	Released string `json:"released,omitempty"`
	// held are addresses kept back until an operator releases them with the annotation butler.butlerlabs.dev/release-held
	// on the pool, which kubectl butler-ipam release-held writes.
	// +optional
	// +listType=atomic
	Held []HeldRange `json:"held,omitempty"`
	// yields lists the older pools of the network to which this pool leaves shared addresses, or which still use some of its addresses after an overlap
	// has ended. The older pool grants shared addresses only after it is listed here with its current generation.
	// +optional
	// +listType=atomic
	Yields []YieldedPool `json:"yields,omitempty"`
	// blocks are those that a carved pool has open. Addresses are granted only from a block that is listed in the version
	// of the pool that the grant is committed upon.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	Blocks []CarvedBlock `json:"blocks,omitempty"`
	// capacityEvents are the last events about the capacity of the pool: one each 10 minutes for each
	// condition, whatever manager records it.
	// +optional
	// +listType=map
	// +listMapKey=condition
	CapacityEvents []CapacityEvent `json:"capacityEvents,omitempty"`
}

// CapacityEvent is the last event about a capacity condition.
type CapacityEvent struct {
	// condition is the type of the condition.
	// +required
	Condition string `json:"condition"`
	// status is what the condition was when the event was recorded.
	// +required
	Status metav1.ConditionStatus `json:"status"`
	// time is when the event was recorded.
	// +required
	Time metav1.Time `json:"time"`
}

// AllocatorStatus says which manager grants addresses of the pool and what it granted that is not
// yet confirmed as an object.
type AllocatorStatus struct {
	// holder is the id of the manager process that granted last. Random per process start.
	// +required
	Holder string `json:"holder"`
	// term grows by one whenever the holder changes.
	// +required
	Term int64 `json:"term"`
	// inFlight are grants whose object is not yet confirmed. Normally empty.
	// +optional
	// +listType=atomic
	InFlight []Grant `json:"inFlight,omitempty"`
}

// YieldedPool is a pool to which another leaves addresses.
type YieldedPool struct {
	// kind of the pool, NetworkPool or GlobalNetworkPool.
	// +required
	Kind string `json:"kind"`
	// namespace of the pool, empty for a GlobalNetworkPool.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// name of the pool.
	// +required
	Name string `json:"name"`
	// uid of the pool.
	// +required
	UID string `json:"uid"`
	// generation of the pool that was yielded to.
	// +required
	Generation int64 `json:"generation"`
}

// Grant gives the range first to last to one object.
type Grant struct {
	// kind of the object, IPAddressClaim, IPAllocation or IPLease.
	// +required
	Kind string `json:"kind"`
	// namespace of the object.
	// +required
	Namespace string `json:"namespace"`
	// name of the object.
	// +required
	Name string `json:"name"`
	// uid of the object.
	// +required
	UID string `json:"uid"`
	// first address granted.
	// +required
	First string `json:"first"`
	// last address granted.
	// +required
	Last string `json:"last"`
}

// CoolingGroup are released ranges that rest until one time.
type CoolingGroup struct {
	// until is when the ranges may be given to another claim.
	// +required
	Until metav1.Time `json:"until"`
	// addresses are the ranges, separated by commas. A range is followed by the namespace and name of the claim that released it, if that is on
	// record: a new claim of that name may have it at once. One without a name goes to no claim before its time. "10.0.0.5 shop/web-0, 10.0.0.8-10.0.0.10".
	// +required
	Addresses string `json:"addresses"`
}

// HeldRange is a range that is kept back until an operator releases it.
type HeldRange struct {
	// id is that of this entry, given at random. The annotation butler.butlerlabs.dev/release-held names it, so that what is
	// held later, the same range too, needs a new release.
	// +optional
	ID string `json:"id,omitempty"`
	// first address of the range.
	// +required
	First string `json:"first"`
	// last address of the range.
	// +required
	Last string `json:"last"`
	// reason the range is kept back, for example Moved.
	// +required
	Reason string `json:"reason"`
	// namespace of the claim that had it.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// name of the claim that had it.
	// +optional
	Name string `json:"name,omitempty"`
}
