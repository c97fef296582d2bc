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
	// OverlapReason: an older pool of the same network has some of the addresses.
	OverlapReason = "Overlap"
	// NoOverlapReason: no other pool of the network has any of the addresses.
	NoOverlapReason = "NoOverlap"
	// AdoptingReason: existing addresses were found without a record of an allocator; nothing new
	// is granted until what may still be on its way has landed.
	AdoptingReason = "Adopting"
	// BelowThresholdReason and AboveThresholdReason explain the capacity conditions.
	BelowThresholdReason = "UtilizationBelowThreshold"
	// AboveThresholdReason: utilization is at or above the threshold.
	AboveThresholdReason = "UtilizationAboveThreshold"
)

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
	// AccessDeniedReason: the ProviderConfig does not serve the namespace of the Cluster.
	AccessDeniedReason = "AccessDenied"
)
