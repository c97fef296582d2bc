package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// IPAllocationKind is the kind of a contiguous block of addresses.
	IPAllocationKind = "IPAllocation"

	// IPAllocationFinalizer holds an IPAllocation that is being deleted until its block is released.
	IPAllocationFinalizer = "butler.butlerlabs.dev/ipallocation"

	// AllocatedBy is what status.allocatedBy says of blocks that this allocator granted.
	AllocatedBy = "networkpool-controller"

	// MaxListedAddresses is how many addresses status.addresses lists at most.
	MaxListedAddresses = 65536
)

// AllocationType is what a block is used for.
// +kubebuilder:validation:Enum=nodes;loadbalancer;pool;pods
type AllocationType string

const (
	// NodesAllocation is a block for the machines of a cluster.
	NodesAllocation AllocationType = "nodes"
	// LoadBalancerAllocation is a block for the Services of a cluster.
	LoadBalancerAllocation AllocationType = "loadbalancer"
	// PoolAllocation is a block for a pool that is carved from another (spec.carve).
	PoolAllocation AllocationType = "pool"
	// PodsAllocation is a block that the Nodes of a cluster get their pod CIDRs from.
	PodsAllocation AllocationType = "pods"
)

// AllocationPhase is where an IPAllocation is in its life.
// +kubebuilder:validation:Enum=Pending;Allocated;Released;Failed
type AllocationPhase string

const (
	// AllocationPending waits for its block.
	AllocationPending AllocationPhase = "Pending"
	// AllocationAllocated has its block.
	AllocationAllocated AllocationPhase = "Allocated"
	// AllocationReleased is being deleted.
	AllocationReleased AllocationPhase = "Released"
	// AllocationFailed could not be given a block. It is tried again as soon as the pool changes.
	AllocationFailed AllocationPhase = "Failed"
)

// IPAllocationSpec asks a pool for a contiguous block of addresses.
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable: create another IPAllocation under another name, and delete this one if it is not needed any more"
// +kubebuilder:validation:XValidation:rule="self.type == 'pool' || has(self.tenantClusterRef)",message="an allocation of type nodes, loadbalancer or pods is for a Cluster",fieldPath=".tenantClusterRef",reason=FieldValueRequired
// +kubebuilder:validation:XValidation:rule="self.type == 'pool' || !has(self.childPoolRef)",message="childPoolRef is for allocations of type pool; use tenantClusterRef"
// +kubebuilder:validation:XValidation:rule="self.type in ['pool', 'pods'] || !has(self.prefixLength)",message="prefixLength is for allocations of type pool or pods; use count"
// +kubebuilder:validation:XValidation:rule="self.type != 'pods' || (has(self.prefixLength) && !has(self.count))",message="an allocation of type pods has prefixLength, and no count"
// +kubebuilder:validation:XValidation:rule="self.type != 'pool' || (has(self.childPoolRef) && has(self.prefixLength) && !has(self.count) && !has(self.tenantClusterRef))",message="an allocation of type pool has childPoolRef and prefixLength, and neither tenantClusterRef nor count"
type IPAllocationSpec struct {
	// poolRef names the pool: a NetworkPool of the same namespace, or a GlobalNetworkPool.
	// +required
	PoolRef PoolReference `json:"poolRef"`
	// tenantClusterRef names the Cluster that the block is for. It is required but for type pool.
	// +optional
	TenantClusterRef ClusterReference `json:"tenantClusterRef,omitzero"`
	// childPoolRef names the pool that the block is for, where type is pool: a NetworkPool of the same namespace or, in
	// the namespace of the manager, a GlobalNetworkPool. That pool has to be carved from poolRef.
	// +optional
	ChildPoolRef *PoolReference `json:"childPoolRef,omitempty"`
	// type says what the block is used for. It determines the default count.
	// +required
	Type AllocationType `json:"type"`
	// count is the number of addresses. Absent, it is the default of the pool for the type:
	// tenantAllocation.defaults, else 5 for nodes and 8 for loadbalancer. It is ignored where
	// pinnedRange is set.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Count *int32 `json:"count,omitempty"`
	// prefixLength is that of the block, where type is pool or pods: it is a prefix, and not any addresses in a row.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=128
	PrefixLength *int32 `json:"prefixLength,omitempty"`
	// pinnedRange asks for these addresses and no others.
	// +optional
	PinnedRange *PinnedRange `json:"pinnedRange,omitempty"`
}

// PoolReference names a pool.
type PoolReference struct {
	// kind of the pool.
	// +optional
	// +kubebuilder:default=NetworkPool
	// +kubebuilder:validation:Enum=NetworkPool;GlobalNetworkPool
	Kind string `json:"kind,omitempty"`
	// name of the pool.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// ClusterReference names a Cluster of Cluster API.
type ClusterReference struct {
	// name of the Cluster.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// namespace of the Cluster.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
}

// NamespacedName is the Cluster's.
func (r ClusterReference) NamespacedName() types.NamespacedName {
	return types.NamespacedName{Namespace: r.Namespace, Name: r.Name}
}

// PinnedRange is a range of addresses, both ends included.
// +kubebuilder:validation:XValidation:rule="!isIP(self.startAddress) || !isIP(self.endAddress) || self.startAddress.contains(':') == self.endAddress.contains(':')",message="startAddress and endAddress must be of one family, IPv4 or IPv6"
// +kubebuilder:validation:XValidation:rule="!isIP(self.startAddress) || !isIP(self.endAddress) || self.startAddress.contains(':') || self.endAddress.contains(':') || [(self.startAddress + '.' + self.endAddress).split('.').map(o, int(o))].all(n, ((n[0] * 256 + n[1]) * 256 + n[2]) * 256 + n[3] <= ((n[4] * 256 + n[5]) * 256 + n[6]) * 256 + n[7])",message="endAddress is before startAddress; write the lower address as startAddress",fieldPath=".endAddress"
type PinnedRange struct {
	// startAddress is the first address.
	// +required
	StartAddress Address `json:"startAddress"`
	// endAddress is the last address.
	// +required
	EndAddress Address `json:"endAddress"`
}

// IPAllocationStatus is what the allocation was given.
type IPAllocationStatus struct {
	// conditions of the allocation.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// phase is where the allocation is in its life.
	// +optional
	Phase AllocationPhase `json:"phase,omitempty"`
	// cidr is the block, written as a CIDR if it is one, else as a range first-last.
	// +optional
	CIDR string `json:"cidr,omitempty"`
	// startAddress is the first address of the block.
	// +optional
	StartAddress string `json:"startAddress,omitempty"`
	// endAddress is the last address of the block.
	// +optional
	EndAddress string `json:"endAddress,omitempty"`
	// addresses are those of the block in ascending order: all of them, unless they are more than 65536
	// or their text is larger than an object may be; none, where type is pool or pods. allocatedCount says how many there are.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=65536
	Addresses []string `json:"addresses,omitempty"`
	// allocatedCount is the number of addresses of the block.
	// +required
	AllocatedCount int64 `json:"allocatedCount"`
	// observedGeneration is the generation of the spec the status speaks of.
	// +required
	ObservedGeneration int64 `json:"observedGeneration"`
	// allocatedAt is when the block was granted.
	// +optional
	AllocatedAt *metav1.Time `json:"allocatedAt,omitempty"`
	// allocatedBy names the controller that granted the block.
	// +optional
	AllocatedBy string `json:"allocatedBy,omitempty"`
	// releasedAt is when the deletion of the allocation was noted.
	// +optional
	ReleasedAt *metav1.Time `json:"releasedAt,omitempty"`
}

// IPAllocation is a contiguous block of addresses of a pool, held for a Cluster, or for a pool that is carved from it.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
// +kubebuilder:resource:shortName=ipa,categories=cluster-api
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io="
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io/move="
// +kubebuilder:metadata:labels="cluster.x-k8s.io/provider=ipam-butler"
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1alpha1"
// +kubebuilder:selectablefield:JSONPath=`.spec.poolRef.name`
// +kubebuilder:selectablefield:JSONPath=`.spec.tenantClusterRef.namespace`
// +kubebuilder:selectablefield:JSONPath=`.spec.tenantClusterRef.name`
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.poolRef.name`
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.tenantClusterRef.name`
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Start",type=string,JSONPath=`.status.startAddress`
// +kubebuilder:printcolumn:name="End",type=string,JSONPath=`.status.endAddress`
// +kubebuilder:printcolumn:name="Used",type=string,JSONPath=`.status.conditions[?(@.type=="InUse")].reason`
// +kubebuilder:printcolumn:name="Draining",type=string,JSONPath=`.status.conditions[?(@.type=="Draining")].reason`
// +kubebuilder:printcolumn:name="Demand",type=string,JSONPath=`.status.conditions[?(@.type=="DemandSatisfied")].reason`
// +kubebuilder:printcolumn:name="Child",type=string,priority=1,JSONPath=`.spec.childPoolRef.name`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type IPAllocation struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec IPAllocationSpec `json:"spec"`
	// +optional
	// +kubebuilder:default={phase: "Pending", allocatedCount: 0, observedGeneration: 0}
	Status IPAllocationStatus `json:"status,omitempty"`
}

// GetConditions serves cluster-api's util/conditions.
func (a *IPAllocation) GetConditions() []metav1.Condition { return a.Status.Conditions }

// SetConditions serves cluster-api's util/conditions.
func (a *IPAllocation) SetConditions(c []metav1.Condition) { a.Status.Conditions = c }

// IPAllocationList is a list of IPAllocations.
// +kubebuilder:object:root=true
type IPAllocationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []IPAllocation `json:"items"`
}
