package incluster

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

const (
	// SourceUIDAnnotation of a mirror has the UID of its source pool once that was handed over. From then on the mirror
	// has no owner: a deletion of the source pool, in whichever way, does not delete the addresses that were granted
	// under the mirror's name.
	SourceUIDAnnotation = "butler.butlerlabs.dev/in-cluster-uid"
	// EndingAnnotation of a mirror names the object that keeps its source pool, which was handed over and is being
	// deleted.
	EndingAnnotation = "butler.butlerlabs.dev/in-cluster-ending"
	// EndedAnnotation on a pool of ours records that it was a mirror and is none any more: its spec is the user's.
	EndedAnnotation = "butler.butlerlabs.dev/in-cluster-ended"
)

// IsEnded reports whether a pool of ours is a former mirror.
func IsEnded(pool metav1.Object) bool {
	_, ended := pool.GetAnnotations()[EndedAnnotation]
	return ended
}

// IsEnding reports whether the source pool of a mirror was handed over, is being deleted, and is kept by an object that
// names it.
func IsEnding(mirror metav1.Object) bool {
	_, ending := mirror.GetAnnotations()[EndingAnnotation]
	return ending
}

// SourceOwnerRef returns an owner reference to the source pool of a mirror: the mirror's own until the source is handed
// over, and one from SourceUIDAnnotation after that. It returns nil for a pool that is no mirror, whatever its name.
func SourceOwnerRef(mirror v1alpha1.Pool) *metav1.OwnerReference {
	ref, named := RefForMirror(mirrorPoolKind(mirror), mirror.GetName())
	if !named || IsEnded(mirror) {
		return nil
	}
	source := metav1.OwnerReference{
		APIVersion: GroupVersion.String(), Kind: ref.Kind, Name: ref.Name, UID: types.UID(mirror.GetAnnotations()[SourceUIDAnnotation]),
	}
	if owner := metav1.GetControllerOf(mirror); owner != nil {
		if owner.APIVersion != source.APIVersion || owner.Kind != source.Kind || owner.Name != source.Name {
			return nil
		}
		return owner
	}
	if source.UID == "" {
		return nil
	}
	return &source
}

// IsMirrorOf reports whether a pool of ours is the mirror of a source pool. A mirror without an owner reference matches
// by name: where a move or a restore has created the source pool again, SourceUIDAnnotation has the UID of the one
// before.
func IsMirrorOf(mirror v1alpha1.Pool, pool metav1.Object) bool {
	source := SourceOwnerRef(mirror)
	return source != nil && source.Name == pool.GetName() && (metav1.GetControllerOf(mirror) == nil || source.UID == pool.GetUID())
}

// HandOverMirror replaces the owner reference of a mirror to its source pool by SourceUIDAnnotation.
func HandOverMirror(mirror v1alpha1.Pool, pool metav1.Object) {
	mirror.SetOwnerReferences(slices.DeleteFunc(mirror.GetOwnerReferences(), func(o metav1.OwnerReference) bool {
		return o.APIVersion == GroupVersion.String()
	}))
	SetOrRemoveAnnotation(mirror, SourceUIDAnnotation, string(pool.GetUID()), true)
}

// EndMirror turns a mirror into a pool of its own.
func EndMirror(mirror v1alpha1.Pool) {
	for _, tie := range []string{SourceUIDAnnotation, EndingAnnotation, HandedOverAnnotation, ProblemAnnotation, SpecAnnotation} {
		SetOrRemoveAnnotation(mirror, tie, "", false)
	}
	SetOrRemoveAnnotation(mirror, EndedAnnotation, "", true)
}

// SetOrRemoveAnnotation sets an annotation, or removes it where set is false.
func SetOrRemoveAnnotation(o metav1.Object, key, value string, set bool) {
	annotations := o.GetAnnotations()
	switch {
	case !set:
		delete(annotations, key)
	case annotations == nil:
		annotations = map[string]string{key: value}
	default:
		annotations[key] = value
	}
	o.SetAnnotations(annotations)
}

func mirrorPoolKind(pool v1alpha1.Pool) string {
	if _, global := pool.(*v1alpha1.GlobalNetworkPool); global {
		return v1alpha1.GlobalNetworkPoolKind
	}
	return v1alpha1.NetworkPoolKind
}
