package tenancy

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// MovedAway says of a Cluster which of its blocks clusterctl has moved to another management cluster, as the pools say that hold
// their addresses; empty: none. The Cluster is here still where the move was interrupted: what is asked for in the place of such a
// block would be in the way of the move, and what it shows is to stay. A block that is there was not moved, or has come back.
func MovedAway(cluster v1alpha1.ClusterReference, namespace string, pools []v1alpha1.Pool, there func(name string) bool) string {
	for _, pool := range pools {
		for _, h := range pool.PoolStatus().Held {
			if h.Reason == v1alpha1.MovedReason && h.Namespace == namespace && isNameOf(cluster, h.Name) && !there(h.Name) {
				return fmt.Sprintf("IPAllocation %s/%s of the Cluster was moved to another management cluster: resume the move of the namespace; "+
					"if the other cluster does not use its addresses, release %s-%s with kubectl butler-ipam release-held", h.Namespace, h.Name, h.First, h.Last)
			}
		}
	}
	return ""
}

// isNameOf reports whether a name is one that blocks of a Cluster have.
func isNameOf(cluster v1alpha1.ClusterReference, name string) bool {
	if name == Name(cluster) {
		return true
	}
	n, err := strconv.Atoi(name[strings.LastIndex(name, "-")+1:])
	return err == nil && name == GrowthName(cluster, n)
}
