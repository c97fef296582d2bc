package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// NetworkPoolKind is the kind of a pool that serves the claims of its own namespace.
	NetworkPoolKind = "NetworkPool"
	// GlobalNetworkPoolKind is the kind of a pool that serves the claims of the namespaces it selects.
	GlobalNetworkPoolKind = "GlobalNetworkPool"

	// PoolFinalizer holds a pool that is being deleted until nothing uses it.
	PoolFinalizer = "butler.butlerlabs.dev/networkpool"

	// AddressAnnotation on an IPAddressClaim is the record of what the claim was given: an address,
	// or a prefix where the pool hands out prefixes. It is written once, before the IPAddress, and
	// never changes while the claim lives.
	AddressAnnotation = "butler.butlerlabs.dev/address"

	// RequestedAddressAnnotation on an IPAddressClaim asks for one particular address.
	RequestedAddressAnnotation = "butler.butlerlabs.dev/requested-address"
)

// NetworkPoolSpec describes the addresses of a pool and how they are handed out.
type NetworkPoolSpec struct {
	// cidr is the address block of the pool, for example 10.40.0.0/21 or fd00::/64.
	// +optional
	CIDR string `json:"cidr,omitempty"`

	// addresses are CIDRs, ranges (first-last) or single addresses that the pool hands out, beside
	// cidr or instead of it. All are of one family.
	// +optional
	// +listType=atomic
	Addresses []string `json:"addresses,omitempty"`

	// subnets are the networks the addresses live in. An address takes its prefix length and gateway
	// from the smallest subnet that contains it.
	// +optional
	// +listType=atomic
	Subnets []Subnet `json:"subnets,omitempty"`

	// prefix is the prefix length of the one subnet of the pool: the short form of subnets.
	// +optional
	Prefix *int32 `json:"prefix,omitempty"`

	// gateway is the gateway of the one subnet of the pool: the short form of subnets. It is never
	// handed out.
	// +optional
	Gateway string `json:"gateway,omitempty"`

	// reserved are addresses that are never handed out.
	// +optional
	// +listType=atomic
	Reserved []ReservedRange `json:"reserved,omitempty"`

	// tenantAllocation confines what is handed out to a part of the pool and sets defaults for
	// allocations without a count. Absent, the whole pool is used.
	// +optional
	TenantAllocation *TenantAllocation `json:"tenantAllocation,omitempty"`

	// network names the layer-2 or routing domain the addresses belong to. Pools of one network must
	// not overlap; the same range in two networks is two different ranges.
	// +optional
	Network string `json:"network,omitempty"`

	// allowOverlap lets this pool hand out addresses although an older pool of the same network
	// has some of them too.
	// +optional
	AllowOverlap bool `json:"allowOverlap,omitempty"`

	// preAllocations reserve an address for the claim of a name. Nobody else is given it.
	// +optional
	PreAllocations map[string]string `json:"preAllocations,omitempty"`

	// allocateReservedIPAddresses also hands out the first and last address of a subnet (IPv6: the
	// first, the subnet-router anycast address). Gateways stay excluded.
	// +optional
	AllocateReservedIPAddresses bool `json:"allocateReservedIPAddresses,omitempty"`

	// addressReuseGracePeriodSeconds is how long a released address rests before it is given to
	// another claim.
	// +optional
	AddressReuseGracePeriodSeconds *int64 `json:"addressReuseGracePeriodSeconds,omitempty"`

	// allocationPrefixLength gives each claim a whole prefix of this length instead of one address.
	// +optional
	AllocationPrefixLength *int32 `json:"allocationPrefixLength,omitempty"`
}

// Subnet is a network that addresses of a pool live in.
type Subnet struct {
	// cidr of the subnet.
	CIDR string `json:"cidr"`
	// gateway of the subnet. It is never handed out.
	// +optional
	Gateway string `json:"gateway,omitempty"`
}

// ReservedRange is a range that is never handed out.
type ReservedRange struct {
	// cidr is a CIDR, a range (first-last) or a single address.
	CIDR string `json:"cidr"`
	// description says what the range is kept for.
	// +optional
	Description string `json:"description,omitempty"`
}

// TenantAllocation confines what a pool hands out.
type TenantAllocation struct {
	// start is the first address that may be handed out.
	Start string `json:"start"`
	// end is the last address that may be handed out.
	End string `json:"end"`
	// defaults are the sizes of allocations that do not say one.
	// +optional
	Defaults *AllocationDefaults `json:"defaults,omitempty"`
}

// AllocationDefaults are the sizes of allocations that do not say one.
type AllocationDefaults struct {
	// nodesPerTenant is the count of an allocation of type nodes.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=1
	NodesPerTenant int32 `json:"nodesPerTenant,omitempty"`
	// lbPoolPerTenant is the count of an allocation of type loadbalancer.
	// +optional
	// +kubebuilder:default=8
	// +kubebuilder:validation:Minimum=1
	LBPoolPerTenant int32 `json:"lbPoolPerTenant,omitempty"`
}

// NetworkPoolStatus is what the pool's allocator observed and granted. Counts are of addresses, or
// of prefixes where the pool hands out prefixes; they saturate at 2^63-1.
type NetworkPoolStatus struct {
	// totalIPs is the number of addresses the pool can hand out at all.
	TotalIPs int64 `json:"totalIPs"`
	// allocatedIPs is the number of addresses that are in use or granted.
	AllocatedIPs int64 `json:"allocatedIPs"`
	// availableIPs is the number of addresses that can be handed out now.
	AvailableIPs int64 `json:"availableIPs"`
	// outOfRangeIPs is the number of addresses in use that the spec no longer covers.
	OutOfRangeIPs int64 `json:"outOfRangeIPs"`
	// allocationCount is the number of claims and allocations that hold addresses.
	AllocationCount int64 `json:"allocationCount"`
	// largestFreeBlock is the number of addresses of the largest contiguous free block.
	LargestFreeBlock int64 `json:"largestFreeBlock"`
	// fragmentationPercent is 0 where all free addresses are contiguous, towards 100 the more they
	// are scattered.
	FragmentationPercent int32 `json:"fragmentationPercent"`
	// observedGeneration is the generation of the spec the status speaks of.
	ObservedGeneration int64 `json:"observedGeneration"`
	// allocator is the state of the grant protocol; it is written by the manager alone.
	// +optional
	Allocator *AllocatorStatus `json:"allocator,omitempty"`
	// cooling are released addresses that rest before they are given to another claim.
	// +optional
	// +listType=atomic
	Cooling []CoolingRange `json:"cooling,omitempty"`
	// held are addresses kept back until an operator removes the entry.
	// +optional
	// +listType=atomic
	Held []HeldRange `json:"held,omitempty"`
	// conditions of the pool.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// AllocatorStatus says which manager grants addresses of the pool and what it granted that is not
// yet confirmed as an object.
type AllocatorStatus struct {
	// holder is the id of the manager process that granted last. Random per process start.
	Holder string `json:"holder"`
	// term grows by one whenever the holder changes.
	Term int64 `json:"term"`
	// inFlight are grants whose object is not yet confirmed. Normally empty.
	// +optional
	// +listType=atomic
	InFlight []Grant `json:"inFlight,omitempty"`
}

// Grant gives the range first to last to one object.
type Grant struct {
	// kind of the object, IPAddressClaim or IPAllocation.
	Kind string `json:"kind"`
	// namespace of the object.
	Namespace string `json:"namespace"`
	// name of the object.
	Name string `json:"name"`
	// uid of the object.
	UID string `json:"uid"`
	// first address granted.
	First string `json:"first"`
	// last address granted.
	Last string `json:"last"`
}

// CoolingRange is a released range that rests until a time.
type CoolingRange struct {
	// first address of the range.
	First string `json:"first"`
	// last address of the range.
	Last string `json:"last"`
	// until is when the range may be given to another claim.
	Until metav1.Time `json:"until"`
	// namespace and name of the claim that released it: a new claim of that name may have it at once.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// name of the claim that released it.
	// +optional
	Name string `json:"name,omitempty"`
}

// HeldRange is a range that is kept back until an operator removes the entry.
type HeldRange struct {
	// first address of the range.
	First string `json:"first"`
	// last address of the range.
	Last string `json:"last"`
	// reason the range is kept back, for example Moved.
	Reason string `json:"reason"`
	// namespace of the claim that had it.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// name of the claim that had it.
	// +optional
	Name string `json:"name,omitempty"`
}

// Pool is a NetworkPool or a GlobalNetworkPool.
// +kubebuilder:object:generate=false
type Pool interface {
	client.Object
	// PoolSpec is the part of the spec that both kinds share.
	PoolSpec() *NetworkPoolSpec
	// PoolStatus is the status.
	PoolStatus() *NetworkPoolStatus
	// GetConditions and SetConditions serve cluster-api's util/conditions.
	GetConditions() []metav1.Condition
	SetConditions([]metav1.Condition)
}

// NetworkPool is a pool of addresses for the claims and allocations of its namespace.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
// +kubebuilder:resource:shortName=np,categories=cluster-api
// +kubebuilder:printcolumn:name="CIDR",type=string,JSONPath=`.spec.cidr`
// +kubebuilder:printcolumn:name="Available",type=integer,JSONPath=`.status.availableIPs`
// +kubebuilder:printcolumn:name="Allocated",type=integer,JSONPath=`.status.allocatedIPs`
// +kubebuilder:printcolumn:name="Total",type=integer,JSONPath=`.status.totalIPs`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NetworkPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   NetworkPoolSpec   `json:"spec"`
	Status NetworkPoolStatus `json:"status,omitempty"`
}

// PoolSpec implements Pool.
func (p *NetworkPool) PoolSpec() *NetworkPoolSpec { return &p.Spec }

// PoolStatus implements Pool.
func (p *NetworkPool) PoolStatus() *NetworkPoolStatus { return &p.Status }

// GetConditions implements Pool.
func (p *NetworkPool) GetConditions() []metav1.Condition { return p.Status.Conditions }

// SetConditions implements Pool.
func (p *NetworkPool) SetConditions(c []metav1.Condition) { p.Status.Conditions = c }

// NetworkPoolList is a list of NetworkPools.
// +kubebuilder:object:root=true
type NetworkPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NetworkPool `json:"items"`
}
