package grants

import (
	"fmt"

	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// Refusal is the reason why a claimant gets nothing now: a reason of the IPAM contract of Cluster API, and a message
// with what a user can do about it.
type Refusal struct{ Reason, Message string }

// AllocationFailed returns the refusal of a claimant that cannot be served as it is.
func AllocationFailed(format string, args ...any) *Refusal {
	return &Refusal{Reason: ipamv1.IPAddressClaimReadyAllocationFailedReason, Message: text.SanitizeMessage(fmt.Sprintf(format, args...))}
}

// PoolNotReady returns the refusal of a claimant whose pool cannot serve it.
func PoolNotReady(format string, args ...any) *Refusal {
	return &Refusal{Reason: ipamv1.IPAddressClaimReadyPoolNotReadyReason, Message: text.SanitizeMessage(fmt.Sprintf(format, args...))}
}

// MayChangeAddress reports whether a claimant may get another address than the one on record. If the in-cluster
// provider and this manager serve a pool in turns, that provider may have granted an address of ours that was not
// published yet: it does not read records.
func (c *Claimant) MayChangeAddress() bool { return c.UsesMirroredPool && !c.StatusHasAddress }

// hasRecordPriority reports whether the record of a claimant has priority over that of another one with the same
// address, as copies of a manifest have. The claimant that has the address in its status has priority, otherwise the
// older one.
func (c *Claimant) hasRecordPriority(other *Claimant) bool {
	if c.StatusHasAddress != other.StatusHasAddress {
		return c.StatusHasAddress
	}
	return isOlderClaimant(c, other)
}
