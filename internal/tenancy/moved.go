package tenancy

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// DescribeMovedBlock returns a message that names a block of the Cluster that clusterctl has moved to another
// management cluster, according to the status of the pools that hold its addresses; empty if there is none. Such a
// Cluster still exists here if the move was interrupted: a new block in place of the moved one would block the move,
// and the load balancer must keep what is projected to it. A block that there reports as present was not moved, or
// has come back.
func DescribeMovedBlock(cluster v1alpha1.ClusterReference, namespace string, pools []v1alpha1.Pool, there func(name string) bool) string {
	for _, pool := range pools {
		for _, h := range pool.PoolStatus().Held {
			if h.Reason == v1alpha1.MovedReason && h.Namespace == namespace && isBlockNameOf(cluster, h.Name) && !there(h.Name) {
				return fmt.Sprintf("IPAllocation %s/%s of the Cluster was moved to another management cluster: resume the move of the namespace; "+
					"if the other cluster does not use its addresses, release %s-%s with kubectl butler-ipam release-held", h.Namespace, h.Name, h.First, h.Last)
			}
		}
	}
	return ""
}

// isBlockNameOf reports whether a name is one that the blocks of a Cluster have.
func isBlockNameOf(cluster v1alpha1.ClusterReference, name string) bool {
	if name == InitialBlockName(cluster) {
		return true
	}
	n, err := strconv.Atoi(name[strings.LastIndex(name, "-")+1:])
	return err == nil && name == GrowthBlockName(cluster, n)
}
