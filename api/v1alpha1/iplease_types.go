package v1alpha1

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// IPLeaseKind is the kind of one address that a namespace holds for its Services.
	IPLeaseKind = "IPLease"

	// IPLeaseFinalizer holds an IPLease that is being deleted until its address is released.
	IPLeaseFinalizer = "butler.butlerlabs.dev/iplease"

	// AllocatedReason of the Ready condition: the lease has its address.
	AllocatedReason = "Allocated"

	// LeaseShownFinalizer holds an IPLease that is being deleted until nothing shows its address to the world any more.
	// The controller that shows the address of a lease adds it first.
	LeaseShownFinalizer = "butler.butlerlabs.dev/lease-shown"
)

const (
	// LeaseAnnotation on a Service of type LoadBalancer names the lease that it gets its address from, or two, one of each
	// family, with a comma between them. A lease of another namespace is named with that: "namespace/name".
	LeaseAnnotation = "butler.butlerlabs.dev/lease"

	// LeasedAddressesAnnotation on a Service is what the manager has published it with.
	LeasedAddressesAnnotation = "butler.butlerlabs.dev/leased-addresses"

	// LeasedLabel is on Services that the manager has published: MetalLB gives the addresses of leases to no others.
	LeasedLabel = "butler.butlerlabs.dev/leased"

	// LeaseSatisfiedCondition of a Service that names a lease is True where it has its ports.
	LeaseSatisfiedCondition = "butler.butlerlabs.dev/LeaseSatisfied"

	// MadeForServicesLabel is on leases that the manager makes for Services of a load balancer class. Its value is the name of
	// the one Service that may use the lease; of a lease for an address that Services ask for it is empty.
	MadeForServicesLabel = "butler.butlerlabs.dev/made-for-services"

	// TriedAddressesAnnotation on a Service lists, with commas between them, the addresses of leases that were made for it and
	// for which a foreign machine answered. The manager writes it, and removes it when the Service is shown. A user who
	// removes it before makes the manager try again.
	TriedAddressesAnnotation = "butler.butlerlabs.dev/tried-addresses"

	// HostLoadBalancerClass is the class of Services whose addresses hosts show by themselves. Services of the other classes
	// of pools are served by a MetalLB that is started with the class (--lb-class).
	HostLoadBalancerClass = "butler.butlerlabs.dev/host"

	// HostLBAnnotation on coordination Leases of the namespace butler-host-lb is what hosts say of themselves and of the
	// addresses that they show.
	HostLBAnnotation = "butler.butlerlabs.dev/host-lb"

	// AnnouncedCondition of a lease is True where its address is announced, from the first Service on.
	AnnouncedCondition = "Announced"
	// MaxLeasedPorts is how many ports of a lease Services have at most.
	MaxLeasedPorts = 512
)

// Reasons of AnnouncedCondition.
const (
	// AnnouncedReason: MetalLB has taken the address, or a host has it.
	AnnouncedReason = "Announced"
	// MetalLBRefusesReason: MetalLB does not take the address.
	MetalLBRefusesReason = "MetalLBRefuses"
	// NoHostReason: no host that is alive has the address.
	NoHostReason = "NoHost"
	// NoCommonNodeReason: no host's Node has a ready endpoint of every Service of the lease that is to be served by its own
	// Node (externalTrafficPolicy Local).
	NoCommonNodeReason = "NoCommonNode"
	// AddressInUseReason: a machine that is none of the hosts answers for the address.
	AddressInUseReason = "AddressInUse"
	// ContestedReason: another one of the hosts answers for the address, or another machine claims it while a host has it.
	ContestedReason = "Contested"
	// PortInUseOnHostReason: a process of the host listens on a port that is to be forwarded.
	PortInUseOnHostReason = "PortInUseOnHost"
	// PortNotSupportedReason: a host that forwards by itself does not forward that protocol, or has nowhere to forward to.
	PortNotSupportedReason = "PortNotSupported"
	// PortFullReason of an event, and of what a host says: a port has no room for all clients. It is served, and announced.
	PortFullReason = "PortFull"
	// HostErrorReason: a host cannot do what it is to, for the reason that the message says.
	HostErrorReason = "HostError"
)

// Reasons of LeaseSatisfiedCondition, beside IdleReason: the Service had no ready endpoint for so long that its address was
// given up; NotPlacedReason: it has its ports, and MetalLB does not give it the address; and NotServedReason: the manager runs
// without the flag by which Services of its kind are served, and the Service keeps what it has.
const (
	// GrantedReason: the Service has all of its ports.
	GrantedReason = "Granted"
	// PortTakenReason: another Service has one of them.
	PortTakenReason = "PortTaken"
	// NotDeclaredReason: spec.ports of the lease does not have one of them, or not for this Service.
	NotDeclaredReason = "NotDeclared"
	// LeaseNotFoundReason: there is no such lease.
	LeaseNotFoundReason = "LeaseNotFound"
	// LeaseNotReadyReason: the lease has no address, or is being deleted.
	LeaseNotReadyReason = "LeaseNotReady"
	// LeaseUnfitReason: what the Service asks for and what the leases are does not go together.
	LeaseUnfitReason = "LeaseUnfit"
	// NotAllowedReason: the lease is not for this Service, by its namespace or because it was made for another one.
	NotAllowedReason = "NotAllowed"
	// AddressAttemptsExhaustedReason: a foreign machine answers for each of the addresses that the Service got, and it gets
	// no more of them.
	AddressAttemptsExhaustedReason = "AddressAttemptsExhausted"
	// NoPoolReason: no pool of the load balancer class of the Service gives it an address.
	NoPoolReason = "NoPool"
)

// What status.shownBy says of a lease: who announces its address.
const (
	ShownByMetalLB = "MetalLB"
	ShownByHost    = "Host"
)

// LeasePort is a port that Services may have of a lease.
type LeasePort struct {
	// protocol of the port.
	// +required
	// +kubebuilder:validation:Enum=TCP;UDP;SCTP
	Protocol corev1.Protocol `json:"protocol"`
	// port is its number.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
	// service is the name of the Service that may have the port. Absent, any Service that may use the lease may. To change
	// it hands the port over.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Service string `json:"service,omitempty"`
	// namespace is that of the service, where it is not the one of the lease.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
}

// LeasedPort is a port that a Service has.
type LeasedPort struct {
	// protocol of the port.
	// +required
	Protocol corev1.Protocol `json:"protocol"`
	// port is its number.
	// +required
	Port int32 `json:"port"`
	// service is the name of the Service that has it.
	// +required
	Service string `json:"service"`
	// namespace is that of the Service, where it is not the one of the lease.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// uid is that of the Service.
	// +required
	UID types.UID `json:"uid"`
}

// Of is the name of the Service, after its namespace where that is not the one of the lease.
func (p *LeasedPort) Of() string {
	if p.Namespace == "" {
		return p.Service
	}
	return p.Namespace + "/" + p.Service
}

// Leases let a pool give addresses to IPLeases.
type Leases struct {
	// quotaPerNamespace is how many addresses of this pool the leases of one namespace may have. Absent: any number.
	// +optional
	// +kubebuilder:validation:Minimum=0
	QuotaPerNamespace *int32 `json:"quotaPerNamespace,omitempty"`
	// loadBalancerClass is the class of Services that get leases of this pool made for them. Absent, the pool gives addresses
	// to leases that name it, and to no others. It begins with butler.butlerlabs.dev/, so that no other load balancer
	// answers for it.
	// +optional
	// +kubebuilder:validation:MaxLength=85
	// +kubebuilder:validation:XValidation:rule="self.matches('^butler[.]butlerlabs[.]dev/[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')",message="must be butler.butlerlabs.dev/ and a name of lower case letters, digits, dots and hyphens, such as butler.butlerlabs.dev/metallb"
	LoadBalancerClass string `json:"loadBalancerClass,omitempty"`
	// priority orders the pools of a class: the one with the lowest number that has room is asked first.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	Priority int32 `json:"priority,omitempty"`
	// releaseIdleAfterSeconds is after how many seconds without a ready endpoint the lease of a Service of the class is given
	// up; with an endpoint the Service gets an address again, maybe another. 0, the default: never.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2592000
	ReleaseIdleAfterSeconds int32 `json:"releaseIdleAfterSeconds,omitempty"`
}

// IPLeaseSpec asks a pool for one address.
// +kubebuilder:validation:XValidation:rule="has(self.address) == has(oldSelf.address) && (!has(self.address) || self.address == oldSelf.address)",message="is immutable, and cannot be added or removed later: a lease keeps its address; delete this IPLease and create another one",fieldPath=".address"
type IPLeaseSpec struct {
	// poolRef names the pool: a NetworkPool of the same namespace, or a GlobalNetworkPool. The pool has to give leases
	// (spec.leases).
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable: a lease keeps its address; delete this IPLease and create another one"
	PoolRef PoolReference `json:"poolRef"`
	// address asks for this address and no other.
	// +optional
	Address PinnedAddress `json:"address,omitempty"`
	// namespaceSelector selects, by their labels, other namespaces whose Services may use the lease. Absent, it is for those
	// of its own namespace alone.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	// ports are those that Services may have. Absent, they get the ports that they ask for, first come, first served.
	// +optional
	// +listType=map
	// +listMapKey=protocol
	// +listMapKey=port
	// +kubebuilder:validation:MaxItems=512
	Ports []LeasePort `json:"ports,omitempty"`
}

// IPLeaseStatus is what the lease was given.
type IPLeaseStatus struct {
	// conditions of the lease. Ready is True where it has its address.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// address is the one that the lease has. It never changes while the lease lives.
	// +optional
	Address string `json:"address,omitempty"`
	// network names the layer-2 or routing domain that the address belongs to: spec.network of the pool.
	// +optional
	Network string `json:"network,omitempty"`
	// shownBy is who shows the address to the world, from the first Service on: MetalLB or Host. Services that
	// another one shows do not get the lease then.
	// +optional
	ShownBy string `json:"shownBy,omitempty"`
	// ports are those that Services have. A port belongs to one Service.
	// +optional
	// +listType=map
	// +listMapKey=protocol
	// +listMapKey=port
	// +kubebuilder:validation:MaxItems=512
	Ports []LeasedPort `json:"ports,omitempty"`
	// observedGeneration is the generation of the spec the status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
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
// +kubebuilder:printcolumn:name="Shown",type=string,JSONPath=`.status.shownBy`
// +kubebuilder:printcolumn:name="Announced",type=string,JSONPath=`.status.conditions[?(@.type=="Announced")].reason`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type IPLease struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec IPLeaseSpec `json:"spec"`
	// +optional
	Status IPLeaseStatus `json:"status,omitempty"`
}

// GetConditions serves cluster-api's util/conditions.
func (l *IPLease) GetConditions() []metav1.Condition { return l.Status.Conditions }

// SetConditions serves cluster-api's util/conditions.
func (l *IPLease) SetConditions(c []metav1.Condition) { l.Status.Conditions = c }

// AddressInUse reports whether the condition Announced shows that a foreign machine answers for the address of the lease.
func (l *IPLease) AddressInUse() bool {
	return slices.ContainsFunc(l.Status.Conditions, func(c metav1.Condition) bool {
		return c.Type == AnnouncedCondition && c.Status == metav1.ConditionFalse && c.Reason == AddressInUseReason
	})
}

// IPLeaseList is a list of IPLeases.
// +kubebuilder:object:root=true
type IPLeaseList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []IPLease `json:"items"`
}
