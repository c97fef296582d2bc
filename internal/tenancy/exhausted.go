package tenancy

import (
	"fmt"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

const (
	noPoolsMessage = "mode is ipam, but the ProviderConfig names no pools; add spec.network.poolRefs"

	// maxNamesInMessage is the maximum number of pools that a message names.
	maxNamesInMessage = 8
)

// exhaustedDecision returns the decision that states for each pool why the Cluster has no block of it. Its message
// contains no numbers that change by themselves, so that an unchanged state is not reported twice.
func (f *poolFailover) exhaustedDecision() Decision {
	d := Decision{Action: ActionExhausted, Attempts: f.recordedAttempts, Reason: v1alpha1.NetworkNotReadyReason}
	var why []string
	missing, full, refused := 0, 0, 0
	for _, p := range f.Pools {
		why = append(why, describePool(p.Ref)+" "+f.failureMessage(p))
		switch {
		case p.Availability == PoolMissing:
			missing++
		case f.hadNoRoom(p):
			full++
		case f.attemptForPool(p) != nil:
			refused++
		}
	}
	switch {
	case full > 0:
		d.Reason = v1alpha1.PoolExhaustedReason
	case refused > 0:
		d.Reason = v1alpha1.AllocationFailedReason
	case missing == len(f.Pools):
		d.Reason, d.Message = v1alpha1.ValidationFailedReason, f.noPoolExistsMessage()
		return d
	}
	d.Message = fmt.Sprintf("no pool gives %s: %s; add addresses to a pool, ask for fewer with the annotation %s, or add a pool to the ProviderConfig",
		formatAddressCount(f.Count), joinPoolMessages(why), v1alpha1.LBPoolSizeAnnotation)
	if f.isGrowth {
		d.Message = fmt.Sprintf("no pool gives %s: %s; add addresses to a pool, or a pool to the ProviderConfig", formatAddressCount(f.Count), joinPoolMessages(why))
	}
	return d
}

// noPoolExistsMessage states that none of the pools that the settings name exists. Asking for another size would not
// help.
func (f *poolFailover) noPoolExistsMessage() string {
	var names []string
	for _, p := range f.Pools {
		names = append(names, describePool(p.Ref))
	}
	if len(names) == 1 {
		return fmt.Sprintf("%s of ProviderConfig %s does not exist; create it, or correct network.poolRefs", names[0], f.Config)
	}
	return fmt.Sprintf("none of the pools of ProviderConfig %s exists: %s; create one, or correct network.poolRefs", f.Config, joinPoolMessages(names))
}

// failureMessage states why a pool grants no block.
func (f *poolFailover) failureMessage(p Pool) string {
	a := f.attemptForPool(p)
	switch {
	case !p.MayGrant():
		return p.Message
	case a != nil && !a.isRefusal():
		if f.Count == 1 {
			return "has no free address"
		}
		return fmt.Sprintf("has no %d free addresses in a row", f.Count)
	case f.currentPool != nil && f.currentPool.Ref == p.Ref && f.Current.Message != "":
		return "refuses: " + f.Current.Message
	}
	return "refused the allocation"
}

func formatAddressCount(n int32) string {
	if n == 1 {
		return "an address"
	}
	return fmt.Sprintf("%d addresses", n)
}

// joinPoolMessages joins messages about pools, up to maxNamesInMessage of them.
func joinPoolMessages(items []string) string { return text.JoinMessages(items, maxNamesInMessage) }
