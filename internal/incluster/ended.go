package incluster

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

const (
	// SourceUIDAnnotation of a mirror has the UID of its pool since that was handed over. From then on the mirror has
	// no owner: whoever deletes the pool, in whichever way, does not delete what others have been given by name.
	SourceUIDAnnotation = "butler.butlerlabs.dev/in-cluster-uid"
	// EndingAnnotation of a mirror says who keeps its pool, which was handed over and is being deleted.
	EndingAnnotation = "butler.butlerlabs.dev/in-cluster-ending"
	// EndedAnnotation on a pool of ours says that it was a mirror and is none any more: its spec is the user's.
	EndedAnnotation = "butler.butlerlabs.dev/in-cluster-ended"
)

// Ended reports whether what a pool of ours mirrored has ended.
func Ended(pool metav1.Object) bool {
	_, ended := pool.GetAnnotations()[EndedAnnotation]
	return ended
}

// Ending reports whether what a mirror mirrors was handed over, is being deleted, and is kept by an object that names
// it.
func Ending(mirror metav1.Object) bool {
	_, ending := mirror.GetAnnotations()[EndingAnnotation]
	return ending
}

// SourceOf returns what a pool of ours mirrors, as an owner: it is one until it is handed over. nil: it mirrors
// nothing, whatever its name.
func SourceOf(mirror v1alpha1.Pool) *metav1.OwnerReference {
	ref, named := MirroredBy(kindOf(mirror), mirror.GetName())
	if !named || Ended(mirror) {
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

// Mirrors reports whether a pool of ours mirrors a pool. One that has no owner does by its name: where a move or a
// restore has made the pool again, the UID is of the one before.
func Mirrors(mirror v1alpha1.Pool, pool metav1.Object) bool {
	source := SourceOf(mirror)
	return source != nil && source.Name == pool.GetName() && (metav1.GetControllerOf(mirror) == nil || source.UID == pool.GetUID())
}

// HandOver ties a mirror to a pool by name in the place of its owner reference.
func HandOver(mirror v1alpha1.Pool, pool metav1.Object) {
	mirror.SetOwnerReferences(slices.DeleteFunc(mirror.GetOwnerReferences(), func(o metav1.OwnerReference) bool {
		return o.APIVersion == GroupVersion.String()
	}))
	Annotate(mirror, SourceUIDAnnotation, string(pool.GetUID()), true)
}

// End makes a pool of its own of a mirror.
func End(mirror v1alpha1.Pool) {
	for _, tie := range []string{SourceUIDAnnotation, EndingAnnotation, HandedOverAnnotation, ProblemAnnotation, SpecAnnotation} {
		Annotate(mirror, tie, "", false)
	}
	Annotate(mirror, EndedAnnotation, "", true)
}

// Annotate sets an annotation, or removes it.
func Annotate(o metav1.Object, key, value string, set bool) {
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

func kindOf(pool v1alpha1.Pool) string {
	if _, global := pool.(*v1alpha1.GlobalNetworkPool); global {
		return v1alpha1.GlobalNetworkPoolKind
	}
	return v1alpha1.NetworkPoolKind
}
