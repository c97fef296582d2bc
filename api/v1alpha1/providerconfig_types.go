package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// ProviderType is an infrastructure. Nothing depends on it here: the list is there to catch misspelled
// names, "other" is for what it lacks.
// +kubebuilder:validation:Enum=harvester;nutanix;proxmox;azure;aws;gcp;vsphere;metal3;openstack;kubevirt;cloudstack;docker;hetzner;ibmcloud;linode;maas;oci;tinkerbell;vcd;other
type ProviderType string

// ProviderConfigSpec is where the Clusters of an infrastructure get addresses from, and which they may be.
type ProviderConfigSpec struct {
	// provider is the infrastructure.
	// +optional
	Provider ProviderType `json:"provider,omitempty"`
	// credentialsRef names the Secret with the credentials of the infrastructure. This manager never
	// reads it: Cluster API's infrastructure provider has credentials of its own.
	// +optional
	CredentialsRef *CredentialsReference `json:"credentialsRef,omitempty"`

	ProviderSettings `json:",inline"`

	// network is where addresses come from. Absent, they come from the infrastructure.
	// +optional
	Network *ProviderNetwork `json:"network,omitempty"`
	// namespaceSelector selects the namespaces whose Clusters may use this ProviderConfig, in addition to
	// its own namespace, which always may. If absent, namespaces with the label butler.butlerlabs.dev/team
	// may; with scope team, only those whose label names that team.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	// scope says whose the ProviderConfig is.
	// +optional
	Scope *ProviderScope `json:"scope,omitempty"`
	// limits of a team. They are accepted and not enforced: this manager creates no Clusters.
	// +optional
	Limits *ProviderLimits `json:"limits,omitempty"`
}

// ProviderSettings are the sections that Butler reads for its own machines. They are accepted as they
// are, and not read by this manager.
type ProviderSettings struct {
	// harvester is not read by this manager.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Harvester *runtime.RawExtension `json:"harvester,omitempty"`
	// nutanix is not read by this manager.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Nutanix *runtime.RawExtension `json:"nutanix,omitempty"`
	// proxmox is not read by this manager.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Proxmox *runtime.RawExtension `json:"proxmox,omitempty"`
	// azure is not read by this manager.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Azure *runtime.RawExtension `json:"azure,omitempty"`
	// aws is not read by this manager.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	AWS *runtime.RawExtension `json:"aws,omitempty"`
	// gcp is not read by this manager.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	GCP *runtime.RawExtension `json:"gcp,omitempty"`
}

// CredentialsReference names a Secret, and a key of it.
type CredentialsReference struct {
	// name of the Secret.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// namespace of the Secret.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
	// key in the Secret.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key,omitempty"`
}

// ScopeType says whose a ProviderConfig is.
// +kubebuilder:validation:Enum=platform;team
type ScopeType string

const (
	// PlatformScope is for every team.
	PlatformScope ScopeType = "platform"
	// TeamScope is for one team.
	TeamScope ScopeType = "team"
)

// ProviderScope says whose a ProviderConfig is.
type ProviderScope struct {
	// type is platform, for every team, or team, for the one that teamRef names.
	// +optional
	// +kubebuilder:default=platform
	Type ScopeType `json:"type,omitempty"`
	// teamRef names the team.
	// +optional
	TeamRef *TeamReference `json:"teamRef,omitempty"`
}

// TeamReference names a team.
type TeamReference struct {
	// name of the team: the value of the label butler.butlerlabs.dev/team of its namespaces.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// ProviderLimits are what Butler allows a team.
type ProviderLimits struct {
	// maxClustersPerTeam is the number of clusters a team may have.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxClustersPerTeam *int32 `json:"maxClustersPerTeam,omitempty"`
	// maxNodesPerTeam is the number of nodes a team may have.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxNodesPerTeam *int32 `json:"maxNodesPerTeam,omitempty"`
}

// ProviderConfigStatus is what was found of the pools, and what they are good for.
type ProviderConfigStatus struct {
	// conditions of the ProviderConfig.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// ready is true where Clusters are served: the status of the Ready condition, as a boolean.
	// +required
	Ready bool `json:"ready"`
	// validated is true where the settings can be served as they are written: every pool exists.
	// +required
	Validated bool `json:"validated"`
	// lastValidationTime is when validated last changed.
	// +optional
	LastValidationTime *metav1.Time `json:"lastValidationTime,omitempty"`
	// observedGeneration is the generation of the spec the status speaks of.
	// +required
	ObservedGeneration int64 `json:"observedGeneration"`
	// capacity is what is left for new Clusters.
	// +required
	Capacity ProviderCapacity `json:"capacity"`
}

// ProviderCapacity is what is left for new Clusters. Counts saturate at 2^63-1.
type ProviderCapacity struct {
	// availableIPs is the number of free addresses of the pools.
	// +required
	AvailableIPs int64 `json:"availableIPs"`
	// estimatedTenants is the number of new Clusters for which the available addresses suffice, if each
	// takes as many as the settings say.
	// +required
	EstimatedTenants int64 `json:"estimatedTenants"`
}

// The short name is not pc: that is the PriorityClass of Kubernetes.

// ProviderConfig says where the Clusters of an infrastructure get addresses from.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
// +kubebuilder:resource:shortName=bpc,categories=cluster-api
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io="
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io/move="
// +kubebuilder:metadata:labels="cluster.x-k8s.io/provider=ipam-butler"
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1alpha1"
// +kubebuilder:printcolumn:name="Provider",type=string,JSONPath=`.spec.provider`
// +kubebuilder:printcolumn:name="Scope",type=string,JSONPath=`.spec.scope.type`
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.network.mode`
// +kubebuilder:printcolumn:name="Free",type=integer,JSONPath=`.status.capacity.availableIPs`
// +kubebuilder:printcolumn:name="Tenants",type=integer,JSONPath=`.status.capacity.estimatedTenants`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Validated",type=boolean,JSONPath=`.status.validated`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ProviderConfig struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec ProviderConfigSpec `json:"spec"`
	// +optional
	// +kubebuilder:default={ready: false, validated: false, observedGeneration: 0, capacity: {availableIPs: 0, estimatedTenants: 0}}
	Status ProviderConfigStatus `json:"status,omitempty"`
}

// Network is spec.network: mode cloud where there is none.
func (c *ProviderConfig) Network() ProviderNetwork {
	if c.Spec.Network == nil {
		return ProviderNetwork{Mode: CloudMode}
	}
	return *c.Spec.Network
}

// GetConditions serves cluster-api's util/conditions.
func (c *ProviderConfig) GetConditions() []metav1.Condition { return c.Status.Conditions }

// SetConditions serves cluster-api's util/conditions.
func (c *ProviderConfig) SetConditions(to []metav1.Condition) { c.Status.Conditions = to }

// ProviderConfigList is a list of ProviderConfigs.
// +kubebuilder:object:root=true
type ProviderConfigList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ProviderConfig `json:"items"`
}
