package tenancy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

const (
	// maxName is how long the name of an object may be (RFC 1123 subdomain).
	maxName = 253
	// maxLabel is how long the value of a label may be.
	maxLabel = 63
	// hashLength is how many hexadecimal digits tell shortened texts apart: 40 bits.
	hashLength = 10
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
	return shorten(cluster.Namespace+"-"+cluster.Name, maxName-len(suffix)) + suffix
}

// shorten returns a text of at most limit characters: the same one where it fits, else its beginning and a
// hash of the whole. It ends in a letter or a digit, as names and labels must, if text does.
func shorten(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	kept := strings.TrimRight(text[:limit-hashLength-1], "-._")
	return kept + "-" + hex.EncodeToString(sum[:])[:hashLength]
}
