package incluster

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// SpecAnnotation of a mirror has a hash of the spec that was translated from its pool. It is written together with that
// spec, so a spec that another writer makes does not match it, at whichever moment a manager looks at it.
const SpecAnnotation = "butler.butlerlabs.dev/in-cluster-spec"

// MirroredPool returns the reference to the pool that a pool of ours stands in for, by its name; false: its spec is its own.
func MirroredPool(pool v1alpha1.Pool) (ref ipamv1.IPPoolReference, is bool) {
	ref, is = MirroredBy(kindOf(pool), pool.GetName())
	return ref, is && !Ended(pool)
}

// Seal notes on a mirror that its spec is the translation of its pool's.
func Seal(mirror v1alpha1.Pool) { Annotate(mirror, SpecAnnotation, hashOf(mirror.PoolSpec()), true) }

// Sealed reports whether the spec of a mirror is what was translated from its pool.
func Sealed(mirror v1alpha1.Pool) bool {
	return mirror.GetAnnotations()[SpecAnnotation] == hashOf(mirror.PoolSpec())
}

// hashOf is a hash of a spec as the API server has it: a field that is not set is not part of it.
func hashOf(spec *v1alpha1.NetworkPoolSpec) string {
	text, err := json.Marshal(spec)
	if err != nil {
		panic(err) // a spec is made of strings, numbers and lists of them
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}
