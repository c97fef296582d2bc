package incluster

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// SpecAnnotation of a mirror has a hash of the spec that was translated from its source pool. It is written together
// with that spec, so a spec of another writer does not match it, whenever a manager reads the mirror.
const SpecAnnotation = "butler.butlerlabs.dev/in-cluster-spec"

// MirroredPool returns the reference to the source pool of a mirror, by the mirror's name; false where the pool's spec
// is its own.
func MirroredPool(pool v1alpha1.Pool) (ref ipamv1.IPPoolReference, ok bool) {
	ref, ok = RefForMirror(mirrorPoolKind(pool), pool.GetName())
	return ref, ok && !IsEnded(pool)
}

// SealSpec records on a mirror that its spec is the translation of its source pool's spec.
func SealSpec(mirror v1alpha1.Pool) {
	SetOrRemoveAnnotation(mirror, SpecAnnotation, hashSpec(mirror.PoolSpec()), true)
}

// IsSpecSealed reports whether the spec of a mirror is the one that was translated from its source pool.
func IsSpecSealed(mirror v1alpha1.Pool) bool {
	return mirror.GetAnnotations()[SpecAnnotation] == hashSpec(mirror.PoolSpec())
}

// hashSpec returns a hash of a spec as the API server stores it: fields that are not set are not part of it.
func hashSpec(spec *v1alpha1.NetworkPoolSpec) string {
	text, err := json.Marshal(spec)
	if err != nil {
		panic(err) // a spec has only strings, numbers and lists of them
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}
