package tenancy

import (
	"fmt"
	"slices"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// DecideWithdrawal decides what happens to the IPAllocations of a Cluster that gets no more of them. It returns in
// unanswered those that have not been granted, for the caller to delete. Granted ones stay until a user deletes them,
// because Services may be reachable at their addresses. message names those that stay, empty if none does. why states
// the reason why the Cluster gets no more, and how to change that. Allocations of type pods are not handled here.
func DecideWithdrawal(blocks []*v1alpha1.IPAllocation, why string) (unanswered []*v1alpha1.IPAllocation, message string) {
	var stays []string
	for _, a := range blocks {
		switch {
		case a.Spec.Type == v1alpha1.PodsAllocation:
		case a.DeletionTimestamp == nil && a.Status.Phase != v1alpha1.AllocationAllocated && !NewCurrentAllocation(a).Manual:
			unanswered = append(unanswered, a)
		default:
			stays = append(stays, a.Namespace+"/"+a.Name)
		}
	}
	if len(stays) == 0 {
		return unanswered, ""
	}
	slices.Sort(stays)
	return unanswered, fmt.Sprintf("%s; the Cluster keeps what it has until you delete the IPAllocation %s: Services that have its addresses in default-pool lose them then",
		why, text.JoinNames(stays, maxNamesInMessage))
}
