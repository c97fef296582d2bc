package v1alpha1

// NetworkMode says who gives the addresses.
// +kubebuilder:validation:Enum=ipam;cloud
type NetworkMode string

const (
	// IPAMMode takes addresses from pools.
	IPAMMode NetworkMode = "ipam"
	// CloudMode leaves addresses to the infrastructure: nothing is allocated.
	CloudMode NetworkMode = "cloud"
)

// AllocationMode says whether the load-balancer addresses of a Cluster change over its life.
// +kubebuilder:validation:Enum=static;elastic
type AllocationMode string

const (
	// StaticAllocation gives a Cluster one block for life.
	StaticAllocation AllocationMode = "static"
	// ElasticAllocation begins small, and grows and shrinks with the Services of the Cluster.
	ElasticAllocation AllocationMode = "elastic"
)

// LoadBalancerType is a load balancer that Services of a Cluster get their addresses from.
// +kubebuilder:validation:Enum=MetalLB;Cilium
type LoadBalancerType string

const (
	// MetalLBLoadBalancer is MetalLB: blocks are shown as IPAddressPools.
	MetalLBLoadBalancer LoadBalancerType = "MetalLB"
	// CiliumLoadBalancer is the LB IPAM of Cilium: blocks are shown as CiliumLoadBalancerIPPools.
	CiliumLoadBalancer LoadBalancerType = "Cilium"
)

// Projection says how the blocks of a Cluster appear in its MetalLB.
// +kubebuilder:validation:Enum=DefaultPool;PoolPerAllocation
type Projection string

const (
	// DefaultPoolProjection puts all blocks into one IPAddressPool, default-pool.
	DefaultPoolProjection Projection = "DefaultPool"
	// PoolPerAllocationProjection gives each block an IPAddressPool of its own, named as the IPAllocation. One
	// that is given up serves no new Services before its range is taken away.
	PoolPerAllocationProjection Projection = "PoolPerAllocation"
)

// Sizes that hold where neither the Cluster nor the ProviderConfig says one.
const (
	// DefaultPoolSize is the block of a Cluster in static mode.
	DefaultPoolSize = 8
	// DefaultInitialPoolSize is the first block of a Cluster in elastic mode.
	DefaultInitialPoolSize = 2
	// DefaultGrowthIncrement is what a Cluster grows by in elastic mode.
	DefaultGrowthIncrement = 2
)

// ProviderNetwork is where addresses come from.
type ProviderNetwork struct {
	// mode is ipam, for addresses from poolRefs, or cloud, for addresses from the infrastructure.
	// +optional
	// +kubebuilder:default=cloud
	Mode NetworkMode `json:"mode,omitempty"`
	// poolRefs are the pools that Clusters get their blocks from, in mode ipam.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.all(p, self.exists_one(o, o.name == p.name && o.kind == p.kind))",message="names one pool twice; remove one of the two entries"
	PoolRefs []ProviderPoolReference `json:"poolRefs,omitempty"`
	// subnet is the network of the machines: a name such as "VM Network - VLAN 40", or a CIDR.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Subnet string `json:"subnet,omitempty"`
	// gateway of the machines. Empty is absent.
	// +optional
	Gateway OptionalAddress `json:"gateway,omitempty"`
	// dnsServers of the machines, in order.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	DNSServers []Address `json:"dnsServers,omitempty"`
	// timeServers of the machines: names or addresses.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	TimeServers []string `json:"timeServers,omitempty"`
	// loadBalancer says how many addresses a Cluster gets for its Services.
	// +optional
	LoadBalancer *LoadBalancerPool `json:"loadBalancer,omitempty"`
	// quotaPerTenant is what one Cluster may have at most. What is absent is not limited.
	// +optional
	QuotaPerTenant *TenantQuota `json:"quotaPerTenant,omitempty"`
}

// ProviderPoolReference names a pool and says when it is tried: a NetworkPool of the ProviderConfig's
// namespace, or a GlobalNetworkPool.
type ProviderPoolReference struct {
	PoolReference `json:",inline"`

	// priority of the pool: the lowest is tried first, equal ones in the order of the list.
	// +optional
	// +kubebuilder:default=0
	Priority int32 `json:"priority,omitempty"`
}

// LoadBalancerPool says how many addresses a Cluster gets for its Services. The Cluster's annotation
// butler.butlerlabs.dev/lb-pool-size overrides defaultPoolSize and initialPoolSize.
type LoadBalancerPool struct {
	// defaultPoolSize is the number of addresses of a Cluster in static mode.
	// +optional
	// +kubebuilder:default=8
	// +kubebuilder:validation:Minimum=1
	DefaultPoolSize *int32 `json:"defaultPoolSize,omitempty"`
	// allocationMode is static, for one block for life, or elastic, for blocks that follow demand.
	// +optional
	// +kubebuilder:default=static
	AllocationMode AllocationMode `json:"allocationMode,omitempty"`
	// initialPoolSize is the number of addresses a Cluster begins with in elastic mode. With 0 it gets
	// its first addresses when a Service asks for one.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=0
	InitialPoolSize *int32 `json:"initialPoolSize,omitempty"`
	// growthIncrement is the least number of addresses by which a Cluster grows in elastic mode.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=1
	GrowthIncrement *int32 `json:"growthIncrement,omitempty"`
	// type is the load balancer of the Cluster that is shown its blocks. A Cluster that has blocks keeps the one that is
	// shown them.
	// +optional
	// +kubebuilder:default=MetalLB
	Type LoadBalancerType `json:"type,omitempty"`
	// projection says how the blocks of a Cluster appear in its load balancer.
	// +optional
	// +kubebuilder:default=DefaultPool
	Projection Projection `json:"projection,omitempty"`
	// class is the load-balancer class of the Services that are served. Services of other classes are ignored. For MetalLB
	// it is that of its flag --lb-class; if absent, Services without a class are served. For Cilium, if absent, these and
	// those of the classes io.cilium/l2-announcer and io.cilium/bgp-control-plane are served.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Class string `json:"class,omitempty"`
}

// TenantQuota is what one Cluster may have at most.
type TenantQuota struct {
	// maxNodeIPs is the number of addresses for machines.
	// +optional
	// +kubebuilder:validation:Minimum=1
	MaxNodeIPs *int32 `json:"maxNodeIPs,omitempty"`
	// maxLoadBalancerIPs is the number of addresses for Services, all blocks together.
	// +optional
	// +kubebuilder:validation:Minimum=1
	MaxLoadBalancerIPs *int32 `json:"maxLoadBalancerIPs,omitempty"`
}
