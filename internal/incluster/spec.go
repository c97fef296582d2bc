package incluster

import (
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Spec is the part of the spec of a pool, of addresses or prefixes, that decides what is handed out.
type Spec struct {
	Addresses                      []v1alpha1.Range `json:"addresses"`
	Prefix                         int32            `json:"prefix"`
	Gateway                        v1alpha1.Address `json:"gateway"`
	AllocateReservedIPAddresses    bool             `json:"allocateReservedIPAddresses"`
	ExcludedAddresses              []v1alpha1.Range `json:"excludedAddresses"`
	AddressReuseGracePeriodSeconds *int64           `json:"addressReuseGracePeriodSeconds"`

	Prefixes               []v1alpha1.Range `json:"prefixes"`
	AllocationPrefixLength int32            `json:"allocationPrefixLength"`
	ExcludedPrefixes       []v1alpha1.Range `json:"excludedPrefixes"`
}

// CountsFromStatus returns the counts of a source pool's status from the status of its mirror. Addresses in use that
// the spec does not cover count as used, too.
func CountsFromStatus(s *v1alpha1.NetworkPoolStatus) map[string]any {
	used := s.AllocatedIPs + s.OutOfRangeIPs
	return map[string]any{"total": s.TotalIPs, "used": used, "free": s.TotalIPs - used, "outOfRange": s.OutOfRangeIPs}
}
