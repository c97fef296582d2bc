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

	// AddressAnnotation is the record of what an IPAddressClaim or an IPAllocation was given: an
	// address, a prefix, or a range (first-last). It is written once, before the IPAddress or the status,
	// and never changes while the object lives.
	AddressAnnotation = "butler.butlerlabs.dev/address"

	// RequestedAddressAnnotation on an IPAddressClaim asks for one particular address.
	RequestedAddressAnnotation = "butler.butlerlabs.dev/requested-address"
)

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

// clusterctl move looks at the kinds of labelled CRDs alone, and takes a pool along only where its CRD
// says so: without the labels below the claims move and their addresses do not.

// NetworkPool is a pool of addresses for the claims and allocations of its namespace.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
// +kubebuilder:resource:shortName=np,categories=cluster-api
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io="
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io/move="
// +kubebuilder:metadata:labels="cluster.x-k8s.io/provider=ipam-butler"
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1alpha1"
// +kubebuilder:printcolumn:name="CIDR",type=string,JSONPath=`.spec.cidr`
// +kubebuilder:printcolumn:name="First Range",type=string,JSONPath=`.spec.addresses[0]`
// +kubebuilder:printcolumn:name="Parent",type=string,JSONPath=`.spec.carve.poolRef.name`
// +kubebuilder:printcolumn:name="Total",type=integer,JSONPath=`.status.totalIPs`
// +kubebuilder:printcolumn:name="Free",type=integer,JSONPath=`.status.availableIPs`
// +kubebuilder:printcolumn:name="Used",type=integer,JSONPath=`.status.allocatedIPs`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="All Ranges",type=string,priority=1,JSONPath=`.spec.addresses`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NetworkPool struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec NetworkPoolSpec `json:"spec"`
	// +optional
	// +kubebuilder:default={totalIPs: 0, allocatedIPs: 0, availableIPs: 0, outOfRangeIPs: 0, allocationCount: 0, largestFreeBlock: 0, fragmentationPercent: 0, observedGeneration: 0}
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
