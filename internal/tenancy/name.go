package tenancy

import (
	"fmt"
	"strconv"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

const (
	// maxName is how long the name of an object may be (RFC 1123 subdomain).
	maxName = 253
	// maxLabel is how long the value of a label may be.
	maxLabel = 63
)

// Name is the name of the first load-balancer block of a Cluster: {namespace}-{name}-lb. Beyond 253
// characters it is cut, and a hash of the whole takes the place of what is missing. Two Clusters can have
// one name for their blocks, "c" of "a-b" and "b-c" of "a": see Owns.
func Name(cluster v1alpha1.ClusterReference) string { return named(cluster, "-lb") }

// GrowthName is the name of the n-th block that was added on demand: {namespace}-{name}-lb-{n}, cut
// as Name is.
func GrowthName(cluster v1alpha1.ClusterReference, n int) string {
	return named(cluster, "-lb-"+strconv.Itoa(n))
}

// Owns reports whether an allocation is the Cluster's. A name does not say so, as names can collide, and
// neither do labels, as they may be cut: the spec does, which is immutable.
func Owns(cluster v1alpha1.ClusterReference, allocation *v1alpha1.IPAllocation) bool {
	return allocation.Spec.TenantClusterRef == cluster
}

// Taken is what is said of a Cluster whose Name is that of the block of another one.
func Taken(allocation *v1alpha1.IPAllocation) Decision {
	other := allocation.Spec.TenantClusterRef
	return Decision{Reason: v1alpha1.NetworkNotReadyReason, Message: fmt.Sprintf(
		"this Cluster needs the name IPAllocation %s/%s, which belongs to Cluster %s/%s; create one of the two Clusters under another name",
		allocation.Namespace, allocation.Name, other.Namespace, other.Name)}
}

func named(cluster v1alpha1.ClusterReference, suffix string) string {
	return text.Shorten(cluster.Namespace+"-"+cluster.Name, maxName-len(suffix)) + suffix
}
