package tenancy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Ended decides what becomes of the IPAllocations of a Cluster that is to have no more of them. What was only asked for is
// taken back: unanswered are those to delete. What was given stays until somebody deletes it, as Services may be reached at
// it. message names what stays; empty: nothing. why says why the Cluster gets no more, and how to change that. Those for pods
// are none of ours.
func Ended(has []*v1alpha1.IPAllocation, why string) (unanswered []*v1alpha1.IPAllocation, message string) {
	var stays []string
	for _, a := range has {
		switch {
		case a.Spec.Type == v1alpha1.PodsAllocation:
		case a.DeletionTimestamp == nil && a.Status.Phase != v1alpha1.AllocationAllocated && !StandingOf(a).Manual:
			unanswered = append(unanswered, a)
		default:
			stays = append(stays, a.Namespace+"/"+a.Name)
		}
	}
	if len(stays) == 0 {
		return unanswered, ""
	}
	slices.Sort(stays)
	named := strings.Join(stays[:min(len(stays), maxNamed)], ", ")
	if n := len(stays) - maxNamed; n > 0 {
		named += fmt.Sprintf(" and %d more", n)
	}
	return unanswered, fmt.Sprintf("%s; the Cluster keeps what it has until you delete the IPAllocation %s: Services that have its addresses in default-pool lose them then", why, named)
}
