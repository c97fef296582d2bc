package incluster

import (
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Spec is that of a pool of either sort, as far as it decides what is handed out.
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

// CountsOf are what the status of a pool says of its addresses: those in use that the spec does not cover count as
// used, too.
func CountsOf(s *v1alpha1.NetworkPoolStatus) map[string]any {
	used := s.AllocatedIPs + s.OutOfRangeIPs
	return map[string]any{"total": s.TotalIPs, "used": used, "free": s.TotalIPs - used, "outOfRange": s.OutOfRangeIPs}
}
