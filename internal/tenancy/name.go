package tenancy

import (
	"fmt"
	"strconv"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

const (
	// maxNameLength is the maximum length of the name of an object (RFC 1123 subdomain).
	maxNameLength = 253
	// maxLabelLength is the maximum length of the value of a label.
	maxLabelLength = 63
)

// InitialBlockName returns the name of the first load-balancer block of a Cluster: {namespace}-{name}-lb. A name of
// more than 253 characters is cut, and a hash of the whole name replaces the part that is cut off. Two Clusters can
// have the same block name, for example "c" of namespace "a-b" and "b-c" of namespace "a": see OwnsAllocation.
func InitialBlockName(cluster v1alpha1.ClusterReference) string {
	return blockNameWithSuffix(cluster, "-lb")
}

// GrowthBlockName returns the name of the n-th block that was added on demand: {namespace}-{name}-lb-{n}, cut in the
// same way as InitialBlockName.
func GrowthBlockName(cluster v1alpha1.ClusterReference, n int) string {
	return blockNameWithSuffix(cluster, "-lb-"+strconv.Itoa(n))
}

// OwnsAllocation reports whether an allocation belongs to the Cluster. It compares spec.tenantClusterRef, which is
// immutable: names can collide, and labels may be cut.
func OwnsAllocation(cluster v1alpha1.ClusterReference, allocation *v1alpha1.IPAllocation) bool {
	return allocation.Spec.TenantClusterRef == cluster
}

// NameTakenDecision returns the decision for a Cluster whose InitialBlockName is the name of another Cluster's block.
func NameTakenDecision(allocation *v1alpha1.IPAllocation) Decision {
	other := allocation.Spec.TenantClusterRef
	return Decision{Reason: v1alpha1.NetworkNotReadyReason, Message: fmt.Sprintf(
		"this Cluster needs the name IPAllocation %s/%s, which belongs to Cluster %s/%s; create one of the two Clusters under another name",
		allocation.Namespace, allocation.Name, other.Namespace, other.Name)}
}

func blockNameWithSuffix(cluster v1alpha1.ClusterReference, suffix string) string {
	return text.ShortenText(cluster.Namespace+"-"+cluster.Name, maxNameLength-len(suffix)) + suffix
}
