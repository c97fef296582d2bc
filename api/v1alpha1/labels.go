package v1alpha1

// Labels of the IPAllocations that are made for a Cluster. Values are at most 63 characters long: a
// longer name is shortened, so what decides is the spec, never a label.
const (
	// TeamLabel is the namespace of the Cluster. On a Namespace it says whose the namespace is: those
	// that have it may use the ProviderConfigs that do not say otherwise.
	TeamLabel = "butler.butlerlabs.dev/team"
	// TenantLabel is the name of the Cluster.
	TenantLabel = "butler.butlerlabs.dev/tenant"
	// NetworkPoolLabel is the name of the pool.
	NetworkPoolLabel = "butler.butlerlabs.dev/network-pool"
	// ChildPoolLabel is the name of the pool that an allocation of type pool is for.
	ChildPoolLabel = "butler.butlerlabs.dev/child-pool"
	// AllocationTypeLabel is the type of the allocation: nodes, loadbalancer, pool or pods.
	AllocationTypeLabel = "butler.butlerlabs.dev/allocation-type"
	// AllocationRoleLabel is InitialRole or GrowthRole.
	AllocationRoleLabel = "butler.butlerlabs.dev/allocation-role"
	// ProviderConfigLabel is the name of the ProviderConfig. On a Cluster it asks for the addresses of
	// that ProviderConfig.
	ProviderConfigLabel = "butler.butlerlabs.dev/provider-config"
)

// Values of AllocationRoleLabel.
const (
	// InitialRole is the block a Cluster began with. It stays as long as the Cluster.
	InitialRole = "initial"
	// GrowthRole is a block that was added on demand, and is deleted when nothing uses it.
	GrowthRole = "growth"
)

const (
	// LBPoolSizeAnnotation on a Cluster is how many load-balancer addresses it begins with. It goes
	// before what the ProviderConfig says.
	LBPoolSizeAnnotation = "butler.butlerlabs.dev/lb-pool-size"

	// TriedPoolsAnnotation on a Cluster that has no block yet lists the pools that had none for it. It is
	// written by the manager, as JSON, and removed when the Cluster is served. On an IPLease that was created
	// for a Service it lists the pools that had no address for the Service before.
	TriedPoolsAnnotation = "butler.butlerlabs.dev/tried-pools"

	// TriedGrowthPoolsAnnotation is the same for the block that a Cluster is to grow by.
	TriedGrowthPoolsAnnotation = "butler.butlerlabs.dev/tried-growth-pools"

	// ReleaseUnconfirmedAnnotation on an IPAllocation of a Cluster that does not answer releases its block without
	// proof that nothing there uses it any more. It is for operators who know that.
	ReleaseUnconfirmedAnnotation = "butler.butlerlabs.dev/release-unconfirmed"

	// ReleaseHeldAnnotation on a pool releases entries of its status.held: RANGE@ID for each, separated by commas. One
	// that names no entry does nothing, so it may stay.
	ReleaseHeldAnnotation = "butler.butlerlabs.dev/release-held"

	// ManagementClusterAnnotation on a pool names the management cluster that serves it: the UID of its namespace
	// kube-system. It is written by the manager. Where it names another cluster the pool came from there. A
	// GlobalNetworkPool grants nothing until the annotation is removed; a NetworkPool grants nothing until that, or until all
	// that came with it is proven to be here.
	ManagementClusterAnnotation = "butler.butlerlabs.dev/management-cluster"

	// ClustersAnnotation on a NetworkPool names some of the Clusters of its namespace, separated by commas. It is written by
	// the manager, and goes along when the namespace is moved: where none of them is, not all has arrived.
	ClustersAnnotation = "butler.butlerlabs.dev/clusters"

	// HandOverAnnotation on an IPAddressPool or L2Advertisement of MetalLB's in a workload cluster, with the value "true", lets
	// the manager take over what another owner made.
	HandOverAnnotation = "butler.butlerlabs.dev/hand-over"

	// HandedOverAnnotation on an IPAddressPool that was handed over is what it had before, as JSON. It is written by the
	// manager.
	HandedOverAnnotation = "butler.butlerlabs.dev/handed-over"

	// TenantNetworkFinalizer holds a Cluster that is being deleted until its blocks are released.
	TenantNetworkFinalizer = "butler.butlerlabs.dev/tenant-network"

	// TenantPoolFinalizer holds an IPAllocation that is being deleted until the MetalLB of the Cluster that was shown its
	// block has released it.
	TenantPoolFinalizer = "butler.butlerlabs.dev/tenant-pool"

	// CiliumPoolFinalizer is TenantPoolFinalizer of a block that is shown to Cilium: who was shown a block is on record in
	// the write that comes before.
	CiliumPoolFinalizer = "butler.butlerlabs.dev/cilium-pool"

	// CarvedPoolFinalizer holds an IPAllocation of type pool that is being deleted until the pool that it is for has
	// closed the block, and nothing of it is in use.
	CarvedPoolFinalizer = "butler.butlerlabs.dev/carved-pool"

	// PodsFinalizer holds an IPAllocation of type pods that is being deleted until no Node of the Cluster has a pod CIDR of
	// the block, nor can get one.
	PodsFinalizer = "butler.butlerlabs.dev/node-cidrs"
)

// NodeCIDRsLabel on a Cluster has its Nodes get their pod CIDRs from the ClusterCIDRs that select it, whatever value it has.
const NodeCIDRsLabel = "butler.butlerlabs.dev/node-cidrs"

// ClusterCIDRAnnotation on a Node is the name of the ClusterCIDR that its pod CIDRs are from. It only attributes: what is
// in use is known by the pod CIDRs themselves. On an IPAllocation of type pods it is that of the ClusterCIDR which the block
// is for.
const ClusterCIDRAnnotation = "butler.butlerlabs.dev/cluster-cidr"

const (
	// ClaimFinalizer keeps a claim until its address is released. The name is the in-cluster
	// provider's, which consumers and tools know.
	ClaimFinalizer = "ipam.cluster.x-k8s.io/ReleaseAddress"
	// AddressFinalizer protects an IPAddress while its claim lives. The in-cluster provider's name.
	AddressFinalizer = "ipam.cluster.x-k8s.io/ProtectAddress"

	// DeleteForMoveAnnotation is what clusterctl puts on an object before it force-deletes it on the source
	// of a move (cluster-api cmd/clusterctl/api/v1alpha3).
	DeleteForMoveAnnotation = "clusterctl.cluster.x-k8s.io/delete-for-move"

	// MoveLabel has clusterctl take an object along that no Cluster owns (the same).
	MoveLabel = "clusterctl.cluster.x-k8s.io/move"
)
