package grants

// AdmissionResult is the decision on a claimant that is made before an address is chosen.
type AdmissionResult struct {
	// Wait reports whether nothing is done for the claimant now; its status then shows only what blocks it. Quiet
	// reports whether even that is not written here. FinalizerHeld reports whether a finalizer of another controller
	// on its IPAddress blocks it, not a pause.
	Wait, Quiet, FinalizerHeld bool
	// OwnedByCluster reports whether the address belongs to the Cluster of the claimant, which exists.
	OwnedByCluster bool
	// Refusal is why the claimant gets nothing, nil if an address may be chosen for it.
	Refusal *Refusal
	// ClusterState is the observed state of the Cluster, ClusterReady if it was not checked. In any other state the
	// claimant is checked again when the Cluster changes.
	ClusterState ClusterState
}

// AdmissionFunc decides on a claimant.
type AdmissionFunc func(c *Claimant) AdmissionResult

// ClusterState is the state of the Cluster of a claimant, as far as it decides whether the claimant may be served.
type ClusterState int

// The states of a Cluster: its claimants may be served, it is paused, it does not exist, or it could not be read.
const (
	ClusterReady ClusterState = iota
	ClusterPaused
	ClusterNotFound
	ClusterUnknown
)
