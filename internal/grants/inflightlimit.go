package grants

import (
	"maps"
	"slices"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// MaxInFlightGrants bounds the grants in the status, including those that wait or fail. With the longest names they
// take 160 KB.
const MaxInFlightGrants = 300

// reservedForHealthy is how many of them are reserved for namespaces in which nothing fails. A grant that fails stays
// in flight as long as a write for it may be stored, so a few failing namespaces could use up all of them.
const reservedForHealthy = 100

// inFlightCount counts the grants in flight during a plan.
type inFlightCount struct {
	total, stuck int
	byNamespace  map[string]int
}

func (k *inFlightCount) add(namespace string) {
	k.total++
	k.byNamespace[namespace]++
}

// checkInFlightLimit reports whether a claimant may get a grant now, or returns a refusal. Without either, the
// claimant waits quietly: the grants of its namespace are being written. While grants fail, a namespace in which no
// claimant was served since may have only a few grants in flight, and one at a time when few are left, so that there
// is room for every namespace.
func (p *Planner) checkInFlightLimit(c *Claimant, k *inFlightCount) (refusal *Refusal, may bool) {
	ns := c.Owner.Namespace
	left, inNamespace := MaxInFlightGrants-k.total, k.byNamespace[ns]
	switch _, well := p.failures.healthyNamespaces[ns]; {
	case k.stuck == 0, well:
		may = left > 0
	case left > reservedForHealthy:
		may = inNamespace < term.SerialRetryThreshold
	default:
		may = left > 0 && inNamespace == 0
	}
	switch t := p.failures.failing[ns]; {
	case may:
		return nil, true
	case t != nil:
		return t.refusalForOthers(ns), false
	case left <= 0 && k.stuck > 0:
		return p.stuckGrantsRefusal(), false
	}
	return nil, false
}

// stuckGrantsRefusal returns the refusal for a claimant that waits because grants of other claimants are stuck.
func (p *Planner) stuckGrantsRefusal() *Refusal {
	if names := slices.Sorted(maps.Keys(p.failures.failing)); len(names) > 0 {
		return PoolNotReady("%s grants nothing more while writes of what it has granted fail, as in namespace %s: %v; change what fails them: this claim is served when one of those is",
			p.base.Key, names[0], p.failures.failing[names[0]].lastError)
	}
	return PoolNotReady("%s grants nothing more while the Clusters of so many claims that were granted something are paused; resume one of them", p.base.Key)
}
