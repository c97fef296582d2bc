package incluster

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
)

// HandedOverAnnotation on a pool records that the in-cluster provider must not serve it again, even if it is started.
// Only the mirror of such a pool, which has the annotation too, may be named by claims and IPAllocations: the
// in-cluster provider counts only IPAddresses that name its own pool, and would grant the addresses of the mirror's
// claimants again.
const HandedOverAnnotation = "butler.butlerlabs.dev/handed-over"

// HasHandedOverAnnotation reports whether a user has handed a pool over for good.
func HasHandedOverAnnotation(pool metav1.Object) bool {
	_, ok := pool.GetAnnotations()[HandedOverAnnotation]
	return ok
}

// IsHandedOver reports whether a pool was handed over for good and is paused, which keeps the in-cluster provider from
// serving its claims. Both are needed: that provider ignores the annotation, and a pause alone may be lifted at any
// time.
func IsHandedOver(pool metav1.Object) bool {
	return HasHandedOverAnnotation(pool) && annotations.HasPaused(pool)
}

// HandOverCommand returns the command that hands a pool over for good. namespace is that of the pool, empty for a
// global one.
func HandOverCommand(namespace string, ref ipamv1.IPPoolReference) string {
	return "kubectl annotate " + KubectlResource(namespace, ref) + " " + HandedOverAnnotation + "="
}

// KubectlResource returns the arguments by which kubectl finds the pool of a reference.
func KubectlResource(namespace string, ref ipamv1.IPPoolReference) string {
	out := strings.ToLower(ref.Kind) + "s." + GroupVersion.Group
	if namespace != "" {
		out += " -n " + namespace
	}
	return out + " " + ref.Name
}
