package v1alpha1

// Conditions of a pool. All of them are always present.
const (
	// ReadyCondition is True where the pool grants addresses.
	ReadyCondition = "Ready"
	// CapacityWarningCondition is True at 70 % utilization and above.
	CapacityWarningCondition = "CapacityWarning"
	// CapacityCriticalCondition is True at 85 % utilization and above.
	CapacityCriticalCondition = "CapacityCritical"
	// CapacityExhaustedCondition is True at 95 % utilization and above.
	CapacityExhaustedCondition = "CapacityExhausted"
	// OverlapCondition is True where another pool of the same network has some of the addresses too.
	OverlapCondition = "Overlap"
)

// Reasons of pool conditions.
const (
	// ReadyReason: the pool grants addresses.
	ReadyReason = "Ready"
	// DeletingReason: the pool is being deleted and grants nothing.
	DeletingReason = "Deleting"
	// ValidationFailedReason: the spec cannot be served; what is allocated stays.
	ValidationFailedReason = "ValidationFailed"
	// MovedReason: addresses were moved to another management cluster.
	MovedReason = "Moved"
	// CopiedReason: the pool was copied from another management cluster, which may still give its addresses.
	CopiedReason = "Copied"
	// OverlapReason: an older pool of the same network has some of the addresses.
	OverlapReason = "Overlap"
	// NoOverlapReason: no other pool of the network has any of the addresses.
	NoOverlapReason = "NoOverlap"
	// AdoptingReason: existing addresses were found without a record of an allocator; nothing new
	// is granted until what may still be on its way has landed.
	AdoptingReason = "Adopting"
	// ParentNotReadyReason: the pool is carved from another, which gives it no block.
	ParentNotReadyReason = "ParentNotReady"
	// WaitingForBlockReason: the pool is carved from another, and waits for its first block.
	WaitingForBlockReason = "WaitingForBlock"
	// NotServedReason: the pool mirrors one of the in-cluster provider, and the manager that looked does not serve these.
	NotServedReason = "NotServed"
	// BelowThresholdReason and AboveThresholdReason explain the capacity conditions.
	BelowThresholdReason = "UtilizationBelowThreshold"
	// AboveThresholdReason: utilization is at or above the threshold.
	AboveThresholdReason = "UtilizationAboveThreshold"
)

// WriteFailedReason of Ready of a claimant: a write for it, or for others of its namespace, is not carried out. The message
// says why.
const WriteFailedReason = "WriteFailed"

// Conditions of a ProviderConfig and of the network of a Cluster.
const (
	// PoolAvailableCondition of a ProviderConfig is True where a new Cluster can be given addresses.
	PoolAvailableCondition = "PoolAvailable"
	// NetworkReadyCondition of a Cluster is True where it has the addresses it asked for.
	NetworkReadyCondition = "NetworkReady"
)

// Reasons of these conditions, beside ReadyReason, DeletingReason and ValidationFailedReason.
const (
	// PoolAvailableReason: a pool has room for a new Cluster.
	PoolAvailableReason = "PoolAvailable"
	// PoolExhaustedReason: no pool has a block that is large enough.
	PoolExhaustedReason = "PoolExhausted"
	// AllocationFailedReason: a pool refuses the allocation, whatever room it has.
	AllocationFailedReason = "AllocationFailed"
	// NetworkNotReadyReason: no pool grants anything now.
	NetworkNotReadyReason = "NetworkNotReady"
	// ReconcilingReason: it is being worked on, nothing is wrong yet.
	ReconcilingReason = "Reconciling"
	// QuotaExceededReason: quotaPerTenant does not allow it.
	QuotaExceededReason = "QuotaExceeded"
	// CloudModeReason: the infrastructure provider gives the addresses, not a pool.
	CloudModeReason = "CloudMode"
	// AllocationsRemainReason: the Cluster gets no more addresses, and keeps those that it has.
	AllocationsRemainReason = "AllocationsRemain"
	// AccessDeniedReason: the ProviderConfig does not serve the namespace of the Cluster.
	AccessDeniedReason = "AccessDenied"
)

// Conditions of an IPAllocation that a Cluster's Services get their addresses from, beside ReadyCondition and
// OverlapCondition.
const (
	// InUseCondition of a block that was added on demand is False where no Service has any of its addresses. It
	// is given up when that has been so for the grace period, counted from lastTransitionTime.
	InUseCondition = "InUse"
	// DrainingCondition is True where the block is being taken away from the Cluster: no other Cluster gets it before
	// this one has released it.
	DrainingCondition = "Draining"
	// DemandSatisfiedCondition of the first block of a Cluster is True where every Service that growth can help
	// has an address, or is about to have one.
	DemandSatisfiedCondition = "DemandSatisfied"
	// ClusterSeenCondition of an IPAllocation is True from the moment on at which its Cluster was seen alive. Only
	// then is an allocation whose Cluster does not exist an orphan, and deleted. It is Unknown where the Cluster was
	// paused when it was last seen: clusterctl pauses what it moves, and takes it away.
	ClusterSeenCondition = "ClusterSeen"
	// PoolSeenCondition is the same of an IPAllocation of type pool, and of the pool that it is for. It is Unknown where a
	// Cluster of the namespace of that pool was paused when the pool was last seen.
	PoolSeenCondition = "PoolSeen"
)

// Reasons of these conditions, beside PoolExhaustedReason and ValidationFailedReason.
const (
	// SeenReason: the Cluster was seen alive.
	SeenReason = "Seen"
	// NotSeenReason: the Cluster does not exist, and was not seen yet.
	NotSeenReason = "NotSeen"
	// InUseReason: a Service has an address of the block.
	InUseReason = "InUse"
	// IdleReason: no Service has an address of the block.
	IdleReason = "Idle"
	// ConfirmingReason: the block is removed from the Cluster, and the Cluster has not confirmed yet that it has released it.
	ConfirmingReason = "Confirming"
	// HostSilentReason: the host that had the address of a lease is silent, and no other one can ask whether it has it still.
	HostSilentReason = "HostSilent"
	// InUseAgainReason: a Service has come to need the block before it was given up.
	InUseAgainReason = "InUseAgain"
	// TenantUnreachableReason: the API server of the Cluster does not answer.
	TenantUnreachableReason = "TenantUnreachable"
	// TenantRefusedReason: the API server of the Cluster answers, and refuses what is asked of it, for lack of rights.
	TenantRefusedReason = "TenantRefused"
	// ForeignPoolReason: the workload cluster has a pool of another owner where the blocks are to be shown.
	ForeignPoolReason = "ForeignPool"
	// ForeignAdvertisementReason: it has an L2Advertisement of another owner in the place of ours, which does not announce
	// the blocks.
	ForeignAdvertisementReason = "ForeignAdvertisement"
	// MetalLBMissingReason: MetalLB is not installed in the Cluster.
	MetalLBMissingReason = "MetalLBMissing"
	// CiliumMissingReason: LB IPAM of Cilium is not installed in the Cluster.
	CiliumMissingReason = "CiliumMissing"
	// TypeChangedReason: the ProviderConfig names another load balancer than the one that is shown the blocks.
	TypeChangedReason = "TypeChanged"
	// NotPlacedReason: Services are left without an address although there is room for them, or a pool of the Cluster cannot
	// be read, and the answer is unknown.
	NotPlacedReason = "NotPlaced"
	// SatisfiedReason: no Service waits for an address that growth could give.
	SatisfiedReason = "Satisfied"
	// StaticReason: the Cluster has one block for life.
	StaticReason = "Static"
	// QuotaReachedReason: quotaPerTenant.maxLoadBalancerIPs leaves nothing, or not enough.
	QuotaReachedReason = "QuotaReached"
)

// Conditions of a ClusterCIDR, beside ReadyCondition and OverlapCondition.
const (
	// ExhaustedCondition is True where no other Node can be served.
	ExhaustedCondition = "Exhausted"
)

// PodCIDRsReadyCondition of a Cluster is True while each of its Nodes has its pod CIDRs. Its reasons are those of a
// ClusterCIDR, NoMatchReason, ConflictReason and TenantUnreachableReason.
const PodCIDRsReadyCondition = "PodCIDRsReady"

// Reasons of these conditions, beside ReadyReason, DeletingReason, ValidationFailedReason, AdoptingReason and
// NoOverlapReason.
const (
	// ExhaustedReason: all node CIDRs of the range are taken.
	ExhaustedReason = "Exhausted"
	// RoomLeftReason: other Nodes can be served.
	RoomLeftReason = "RoomLeft"
	// SharedRangeReason: another ClusterCIDR has some of the addresses too. What one gives, the other does not.
	SharedRangeReason = "SharedRange"
	// ServiceCIDRReason: some of the addresses are for Services, and are not given to Nodes.
	ServiceCIDRReason = "ServiceCIDR"
	// FenceDamagedReason: what keeps managers from giving one pod CIDR twice cannot be read; nothing is granted.
	FenceDamagedReason = "FenceDamaged"
	// NodesRefusedReason: the API server refuses the pod CIDRs of Nodes, by a policy or for lack of rights, or to show the
	// Nodes and what they depend on.
	NodesRefusedReason = "NodesRefused"
	// NoMatchReason: no ClusterCIDR selects the Cluster, or some of its Nodes.
	NoMatchReason = "NoMatch"
	// ConflictReason: some Nodes of the Cluster have overlapping pod CIDRs.
	ConflictReason = "Conflict"
	// FenceRefusedReason: it cannot be read or written now; nothing is granted.
	FenceRefusedReason = "FenceRefused"
)
