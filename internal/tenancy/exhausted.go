package tenancy

import (
	"fmt"
	"strings"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

const (
	noPools = "mode is ipam, but the ProviderConfig names no pools; add spec.network.poolRefs"

	// maxNamed is how many pools a message names.
	maxNamed = 8
)

// exhausted says of each pool why the Cluster has no block of it. There are no numbers in it that change
// by themselves: the same state is not told twice.
func (f *failover) exhausted() Decision {
	d := Decision{Action: Exhausted, Tried: f.known, Reason: v1alpha1.NetworkNotReadyReason}
	var why []string
	missing, full, refused := 0, 0, 0
	for _, p := range f.Pools {
		why = append(why, describe(p.Ref)+" "+f.failure(p))
		switch {
		case p.State == Missing:
			missing++
		case f.hadNoRoom(p):
			full++
		case f.attempt(p) != nil:
			refused++
		}
	}
	switch {
	case full > 0:
		d.Reason = v1alpha1.PoolExhaustedReason
	case refused > 0:
		d.Reason = v1alpha1.AllocationFailedReason
	case missing == len(f.Pools):
		d.Reason, d.Message = v1alpha1.ValidationFailedReason, f.noneExists()
		return d
	}
	d.Message = fmt.Sprintf("no pool gives %s: %s; add addresses to a pool, ask for fewer with the annotation %s, or add a pool to the ProviderConfig",
		addresses(f.Count), listed(why), v1alpha1.LBPoolSizeAnnotation)
	if f.grows {
		d.Message = fmt.Sprintf("no pool gives %s: %s; add addresses to a pool, or a pool to the ProviderConfig", addresses(f.Count), listed(why))
	}
	return d
}

// noneExists says that the settings name no pool that there is: no other size would help.
func (f *failover) noneExists() string {
	var names []string
	for _, p := range f.Pools {
		names = append(names, describe(p.Ref))
	}
	if len(names) == 1 {
		return fmt.Sprintf("%s of ProviderConfig %s does not exist; create it, or correct network.poolRefs", names[0], f.Config)
	}
	return fmt.Sprintf("none of the pools of ProviderConfig %s exists: %s; create one, or correct network.poolRefs", f.Config, listed(names))
}

// failure is why one pool gives nothing.
func (f *failover) failure(p Pool) string {
	a := f.attempt(p)
	switch {
	case !p.Grants():
		return p.Message
	case a != nil && !a.refused():
		if f.Count == 1 {
			return "has no free address"
		}
		return fmt.Sprintf("has no %d free addresses in a row", f.Count)
	case f.at != nil && f.at.Ref == p.Ref && f.Standing.Message != "":
		return "refuses: " + f.Standing.Message
	}
	return "refused the allocation"
}

func addresses(n int32) string {
	if n == 1 {
		return "an address"
	}
	return fmt.Sprintf("%d addresses", n)
}

// listed joins what is said of pools, up to as many as a person reads.
func listed(items []string) string {
	if n := len(items); n > maxNamed {
		return fmt.Sprintf("%s; and %d more", strings.Join(items[:maxNamed], "; "), n-maxNamed)
	}
	return strings.Join(items, "; ")
}
