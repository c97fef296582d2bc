package grants

import "time"

// Failures has the namespaces with claimants for which writes fail, so that one namespace neither fills the pool nor
// makes the manager retry all of its claimants. A namespace is failing while a known claimant of it has failed.
type Failures struct {
	// failing are the namespaces with claimants that cannot be served, and statusFailing are those with claimants
	// whose status cannot be written. nextTrialAt is when the next claimant that waits for others of its namespace is
	// tried.
	failing, statusFailing failingNamespaces
	nextTrialAt            time.Time
	// healthyNamespaces are the namespaces in which a claimant was served since the last failure.
	healthyNamespaces map[string]struct{}

	claimants *Claimants
	grants    *Grants
}
