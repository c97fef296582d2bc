package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// ClusterCIDRKind is the kind of a range that the pod CIDRs of Nodes are cut from.
	ClusterCIDRKind = "ClusterCIDR"

	// ClusterCIDRFinalizer holds a ClusterCIDR that is being deleted until no Node has a pod CIDR of it.
	ClusterCIDRFinalizer = "butler.butlerlabs.dev/clustercidr"
)

// A corev1.NodeSelector bounds neither its lists nor its texts, and the API server takes no rule whose cost it cannot
// bound. So the rules of nodeSelector count to the most terms and requirements that there may be, and look at no key or
// value: what is wrong with these is said in the condition Ready. Rules of a field alone would not see that it is added
// or removed, so one rule makes the whole spec immutable.

// ClusterCIDRSpec says which Nodes get their pod CIDRs from which range, and of what size, as KEP-2593 has it.
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable, because Nodes keep the pod CIDRs that they have; create another ClusterCIDR, and delete this one"
// +kubebuilder:validation:XValidation:rule="has(self.ipv4) || has(self.ipv6) || has(self.ipv4Pool) || has(self.ipv6Pool)",message="a ClusterCIDR needs addresses: set ipv4, ipv6, or both; or, with clusterSelector, ipv4Pool, ipv6Pool"
// +kubebuilder:validation:XValidation:rule="!(has(self.ipv4) && has(self.ipv4Pool))",message="excludes ipv4: the addresses are named, or come from a pool",fieldPath=".ipv4Pool"
// +kubebuilder:validation:XValidation:rule="!(has(self.ipv6) && has(self.ipv6Pool))",message="excludes ipv6: the addresses are named, or come from a pool",fieldPath=".ipv6Pool"
// +kubebuilder:validation:XValidation:rule="has(self.clusterSelector) || !(has(self.ipv4Pool) || has(self.ipv6Pool))",message="blocks of pools are for Clusters: set clusterSelector, or name the range in ipv4 or ipv6"
// +kubebuilder:validation:XValidation:rule="!has(self.ipv4Pool) || self.perNodeHostBits + [1,2,4,8,16,32,64,128,256,512,1024,2048,4096].indexOf(self.ipv4Pool.nodesPerBlock) <= 31",message="a block of so many Nodes is larger than all of the family; use fewer, or fewer perNodeHostBits",fieldPath=".ipv4Pool.nodesPerBlock"
// +kubebuilder:validation:XValidation:rule="!has(self.ipv6Pool) || (has(self.perNodeHostBitsIPv6) ? self.perNodeHostBitsIPv6 : self.perNodeHostBits) + [1,2,4,8,16,32,64,128,256,512,1024,2048,4096].indexOf(self.ipv6Pool.nodesPerBlock) <= 127",message="a block of so many Nodes is larger than all of the family; use fewer, or fewer perNodeHostBits",fieldPath=".ipv6Pool.nodesPerBlock"
// +kubebuilder:validation:XValidation:rule="!(has(self.ipv4) || has(self.ipv4Pool)) || self.perNodeHostBits <= 28",message="must be at most 28 with ipv4; perNodeHostBitsIPv6 can be more",fieldPath=".perNodeHostBits"
// +kubebuilder:validation:XValidation:rule="!has(self.ipv4) || self.perNodeHostBits > 28 || !isCIDR(self.ipv4) || self.ipv4.contains(':') || cidr(self.ipv4).prefixLength() + self.perNodeHostBits <= 32",message="is smaller than what perNodeHostBits gives one Node; use fewer host bits, or a larger CIDR",fieldPath=".ipv4"
// +kubebuilder:validation:XValidation:rule="!has(self.ipv6) || !isCIDR(self.ipv6) || !self.ipv6.contains(':') || cidr(self.ipv6).prefixLength() + (has(self.perNodeHostBitsIPv6) ? self.perNodeHostBitsIPv6 : self.perNodeHostBits) <= 128",message="is smaller than what one Node gets by perNodeHostBitsIPv6 or, without that, perNodeHostBits; use fewer host bits, or a larger CIDR",fieldPath=".ipv6"
type ClusterCIDRSpec struct {
	// nodeSelector selects the Nodes that the range is for. One of its terms has to match, and of a term all that it
	// says. Absent, or without a term: all Nodes for which no ClusterCIDR with a selector has room. It has at most 100
	// terms, of at most 20 matchExpressions and 20 matchFields each.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.nodeSelectorTerms.size() <= 100 && [0,10,20,30,40,50,60,70,80,90].all(i, [0,1,2,3,4,5,6,7,8,9].all(j, i + j >= self.nodeSelectorTerms.size() || ((!has(self.nodeSelectorTerms[i + j].matchExpressions) || self.nodeSelectorTerms[i + j].matchExpressions.size() <= 20) && (!has(self.nodeSelectorTerms[i + j].matchFields) || self.nodeSelectorTerms[i + j].matchFields.size() <= 20))))",message="has at most 100 terms, of at most 20 matchExpressions and 20 matchFields each",fieldPath=".nodeSelectorTerms"
	// +kubebuilder:validation:XValidation:rule="[0,10,20,30,40,50,60,70,80,90].all(i, [0,1,2,3,4,5,6,7,8,9].all(j, i + j >= self.nodeSelectorTerms.size() || !has(self.nodeSelectorTerms[i + j].matchExpressions) || [0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19].all(k, k >= self.nodeSelectorTerms[i + j].matchExpressions.size() || [self.nodeSelectorTerms[i + j].matchExpressions[k]].all(e, e.key != '' && (e.operator in ['In', 'NotIn'] ? has(e.values) && e.values.size() > 0 : e.operator in ['Gt', 'Lt'] ? has(e.values) && e.values.size() == 1 : e.operator in ['Exists', 'DoesNotExist'] && (!has(e.values) || e.values.size() == 0))))))",message="each of matchExpressions has a key, an operator, and values as the operator wants: at least one with In and NotIn, one number with Gt and Lt, none with Exists and DoesNotExist",fieldPath=".nodeSelectorTerms"
	// +kubebuilder:validation:XValidation:rule="[0,10,20,30,40,50,60,70,80,90].all(i, [0,1,2,3,4,5,6,7,8,9].all(j, i + j >= self.nodeSelectorTerms.size() || !has(self.nodeSelectorTerms[i + j].matchFields) || [0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19].all(k, k >= self.nodeSelectorTerms[i + j].matchFields.size() || [self.nodeSelectorTerms[i + j].matchFields[k]].all(e, e.key == 'metadata.name' && e.operator in ['In', 'NotIn'] && has(e.values) && e.values.size() == 1))))",message="each of matchFields has the key metadata.name, the operator In or NotIn, and one value, the name of a Node",fieldPath=".nodeSelectorTerms"
	NodeSelector *corev1.NodeSelector `json:"nodeSelector,omitempty"`

	// perNodeHostBits is how many bits of an address each Node has for its Pods: with 8 it gets a /24 of ipv4 and a
	// /120 of ipv6.
	// +required
	// +kubebuilder:validation:Minimum=4
	// +kubebuilder:validation:Maximum=124
	PerNodeHostBits int32 `json:"perNodeHostBits"`

	// perNodeHostBitsIPv6 is the same of ipv6 alone. Absent, perNodeHostBits counts for both.
	// +optional
	// +kubebuilder:validation:Minimum=4
	// +kubebuilder:validation:Maximum=124
	PerNodeHostBitsIPv6 *int32 `json:"perNodeHostBitsIPv6,omitempty"`

	// ipv4 is the range of IPv4, for example 10.1.0.0/20. A ClusterCIDR has ipv4, ipv6, or both; its Nodes get a pod
	// CIDR of each.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!isCIDR(self) || cidr(self).ip().family() == 4",message="must be of IPv4; a CIDR of IPv6 belongs in ipv6"
	IPv4 Prefix `json:"ipv4,omitempty"`

	// ipv6 is the range of IPv6, for example fd00:1::/48.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!isCIDR(self) || cidr(self).ip().family() == 6",message="must be of IPv6; a CIDR of IPv4 belongs in ipv4"
	IPv6 Prefix `json:"ipv6,omitempty"`

	// ipv4Pool is where blocks of IPv4 come from, instead of ipv4: each Cluster gets some, as its Nodes need them, and no two
	// Clusters have one address. Only with clusterSelector.
	// +optional
	IPv4Pool *PodPool `json:"ipv4Pool,omitempty"`

	// ipv6Pool is where blocks of IPv6 come from, instead of ipv6.
	// +optional
	IPv6Pool *PodPool `json:"ipv6Pool,omitempty"`

	// clusterSelector selects, by their labels, the Clusters of Cluster API whose Nodes the range is for; {} selects all.
	// Of those, the Clusters with the label butler.butlerlabs.dev/node-cidrs are served. Each Cluster has the whole of ipv4
	// and ipv6 for itself, and blocks of its own of ipv4Pool and ipv6Pool. Absent: the range is for the Nodes of the cluster that this object is in.
	// +optional
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`
}

// PodPool says which pool the blocks of a ClusterCIDR come from, and how large they are.
type PodPool struct {
	// kind of the pool: a NetworkPool of the namespace of the Cluster, or a GlobalNetworkPool.
	// +optional
	// +kubebuilder:default=GlobalNetworkPool
	// +kubebuilder:validation:Enum=NetworkPool;GlobalNetworkPool
	Kind string `json:"kind,omitempty"`
	// name of the pool. For pods it should hand out reserved addresses too (allocateReservedIPAddresses), or its first and
	// last block are lost.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// nodesPerBlock is how many Nodes a block is for, a power of two. With 1, each Node has a block of its own.
	// +optional
	// +kubebuilder:default=16
	// +kubebuilder:validation:Enum=1;2;4;8;16;32;64;128;256;512;1024;2048;4096
	NodesPerBlock int32 `json:"nodesPerBlock,omitempty"`
	// maxBlocks is how many blocks a Cluster can have. Absent: as many as the pool gives, at most 256.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=256
	MaxBlocks *int32 `json:"maxBlocks,omitempty"`
}

// ClusterCIDRStatus is what is observed of a ClusterCIDR. Counts are of Nodes; they saturate at 2^63-1.
type ClusterCIDRStatus struct {
	// conditions of the range: Ready, Exhausted and Overlap.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// observedGeneration is the generation of the spec the status speaks of.
	// +required
	ObservedGeneration int64 `json:"observedGeneration"`
	// capacity is how many Nodes the range can ever serve, in one cluster: the least of its families. Of blocks of pools
	// those count that the Clusters have, in all of them.
	// +required
	Capacity int64 `json:"capacity"`
	// allocated is the number of Nodes that have a pod CIDR of the range, over all clusters.
	// +required
	Allocated int64 `json:"allocated"`
	// free is the number of Nodes that can be served now, in the cluster with the least; with blocks of pools, in all of them.
	// Other ClusterCIDRs, Service CIDRs, and pod CIDRs that were set by others may leave less than capacity and allocated
	// say.
	// +required
	Free int64 `json:"free"`
	// clusters are those in which the range is in use, or may be. Only with clusterSelector.
	// +optional
	// +listType=map
	// +listMapKey=namespace
	// +listMapKey=name
	Clusters []ClusterUse `json:"clusters,omitempty"`
}

// ClusterUse is the use of a range in one Cluster. While it is there, a ClusterCIDR that is being deleted stays.
type ClusterUse struct {
	// namespace of the Cluster.
	// +required
	Namespace string `json:"namespace"`
	// name of the Cluster.
	// +required
	Name string `json:"name"`
	// nodes is the number of Nodes of the Cluster that have a pod CIDR of the range.
	// +required
	Nodes int64 `json:"nodes"`
	// free is the number of Nodes of the Cluster that can be served now.
	// +required
	Free int64 `json:"free"`
	// mark is new whenever the range is opened in the Cluster. Who closes it takes the entry away only as it was before.
	// +optional
	Mark string `json:"mark,omitempty"`
}

// ClusterCIDR is a range that Nodes get their pod CIDRs from.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
// +kubebuilder:resource:scope=Cluster,categories=cluster-api
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io="
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io/move="
// +kubebuilder:metadata:labels="cluster.x-k8s.io/provider=ipam-butler"
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1alpha1"
// +kubebuilder:printcolumn:name="PerNodeHostBits",type=integer,JSONPath=`.spec.perNodeHostBits`
// +kubebuilder:printcolumn:name="IPv4",type=string,JSONPath=`.spec.ipv4`
// +kubebuilder:printcolumn:name="IPv6",type=string,JSONPath=`.spec.ipv6`
// +kubebuilder:printcolumn:name="IPv4Pool",type=string,priority=1,JSONPath=`.spec.ipv4Pool.name`
// +kubebuilder:printcolumn:name="IPv6Pool",type=string,priority=1,JSONPath=`.spec.ipv6Pool.name`
// +kubebuilder:printcolumn:name="Free",type=integer,JSONPath=`.status.free`
// +kubebuilder:printcolumn:name="Used",type=integer,JSONPath=`.status.allocated`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterCIDR struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec ClusterCIDRSpec `json:"spec"`
	// +optional
	// +kubebuilder:default={observedGeneration: 0, capacity: 0, allocated: 0, free: 0}
	Status ClusterCIDRStatus `json:"status,omitempty"`
}

// GetConditions serves cluster-api's util/conditions.
func (c *ClusterCIDR) GetConditions() []metav1.Condition { return c.Status.Conditions }

// SetConditions serves cluster-api's util/conditions.
func (c *ClusterCIDR) SetConditions(conditions []metav1.Condition) { c.Status.Conditions = conditions }

// ClusterCIDRList is a list of ClusterCIDRs.
// +kubebuilder:object:root=true
type ClusterCIDRList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterCIDR `json:"items"`
}
