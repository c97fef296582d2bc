package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

const (
	// IPLeaseKind is the kind of one address that a namespace holds for its Services.
	IPLeaseKind = "IPLease"

	// IPLeaseFinalizer holds an IPLease that is being deleted until its address is released.
	IPLeaseFinalizer = "butler.butlerlabs.dev/iplease"

	// AllocatedReason of the Ready condition: the lease has its address.
	AllocatedReason = "Allocated"

	// LeaseShownFinalizer holds an IPLease that is being deleted until nothing shows its address to the world any more.
	// Whoever shows the address of a lease puts it on first.
	LeaseShownFinalizer = "butler.butlerlabs.dev/lease-shown"
)

// Leases let a pool give addresses to IPLeases.
type Leases struct {
	// quotaPerNamespace is how many addresses of this pool the leases of one namespace may have. Absent: any number.
	// +optional
	// +kubebuilder:validation:Minimum=0
	QuotaPerNamespace *int32 `json:"quotaPerNamespace,omitempty"`
}

// IPLeaseSpec asks a pool for one address.
// +kubebuilder:validation:XValidation:rule="has(self.address) == has(oldSelf.address) && (!has(self.address) || self.address == oldSelf.address)",message="is immutable, and cannot be added or removed later: a lease keeps its address; delete this IPLease and create another one",fieldPath=".address"
type IPLeaseSpec struct {
	// poolRef names the pool: a NetworkPool of the same namespace, or a GlobalNetworkPool. The pool has to give leases
	// (spec.leases).
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable: a lease keeps its address; delete this IPLease and create another one"
	PoolRef PoolReference `json:"poolRef"`
	// address asks for this address and no other.
	// +optional
	Address PinnedAddress `json:"address,omitempty"`
}

// IPLeaseStatus is what the lease was given.
type IPLeaseStatus struct {
	// address is the one that the lease has. It never changes while the lease lives.
	// +optional
	Address string `json:"address,omitempty"`
	// network names the layer-2 or routing domain that the address belongs to: spec.network of the pool.
	// +optional
	Network string `json:"network,omitempty"`
	// observedGeneration is the generation of the spec the status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions of the lease. Ready is True where it has its address.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// IPLease is one address of a pool that a namespace holds until the lease is deleted. It has no expiry.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
// +kubebuilder:resource:shortName=ipl,categories=cluster-api
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io="
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io/move="
// +kubebuilder:metadata:labels="cluster.x-k8s.io/provider=ipam-butler"
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1alpha1"
// +kubebuilder:selectablefield:JSONPath=`.spec.poolRef.name`
// +kubebuilder:printcolumn:name="Address",type=string,JSONPath=`.status.address`
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.poolRef.name`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type IPLease struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec IPLeaseSpec `json:"spec"`
	// +optional
	Status IPLeaseStatus `json:"status,omitempty"`
}

// GetConditions serves cluster-api's util/conditions.
func (l *IPLease) GetConditions() []metav1.Condition { return l.Status.Conditions }

// SetConditions serves cluster-api's util/conditions.
func (l *IPLease) SetConditions(c []metav1.Condition) { l.Status.Conditions = c }

// IPLeaseList is a list of IPLeases.
// +kubebuilder:object:root=true
type IPLeaseList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []IPLease `json:"items"`
}
