package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// GlobalNetworkPoolSpec is a NetworkPoolSpec and the namespaces it serves.
// +kubebuilder:validation:XValidation:rule="!has(self.carve) || self.carve.poolRef.kind == 'GlobalNetworkPool'",message="must name a GlobalNetworkPool: a pool of all namespaces is not carved from a pool of one",fieldPath=".carve.poolRef.kind"
type GlobalNetworkPoolSpec struct {
	NetworkPoolSpec `json:",inline"`

	// namespaceSelector selects the namespaces whose claims the pool serves. Absent, all of them.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
}

// GlobalNetworkPool is a pool of addresses for the claims of several namespaces.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
// +kubebuilder:resource:scope=Cluster,shortName=gnp,categories=cluster-api
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
type GlobalNetworkPool struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec GlobalNetworkPoolSpec `json:"spec"`
	// +optional
	// +kubebuilder:default={totalIPs: 0, allocatedIPs: 0, availableIPs: 0, outOfRangeIPs: 0, allocationCount: 0, largestFreeBlock: 0, fragmentationPercent: 0, observedGeneration: 0}
	Status NetworkPoolStatus `json:"status,omitempty"`
}

// PoolSpec implements Pool.
func (p *GlobalNetworkPool) PoolSpec() *NetworkPoolSpec { return &p.Spec.NetworkPoolSpec }

// PoolStatus implements Pool.
func (p *GlobalNetworkPool) PoolStatus() *NetworkPoolStatus { return &p.Status }

// GetConditions implements Pool.
func (p *GlobalNetworkPool) GetConditions() []metav1.Condition { return p.Status.Conditions }

// SetConditions implements Pool.
func (p *GlobalNetworkPool) SetConditions(c []metav1.Condition) { p.Status.Conditions = c }

// GlobalNetworkPoolList is a list of GlobalNetworkPools.
// +kubebuilder:object:root=true
type GlobalNetworkPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []GlobalNetworkPool `json:"items"`
}
