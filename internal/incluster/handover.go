package incluster

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
)

// HandedOverAnnotation on a pool says that the in-cluster provider will not serve it again, whoever starts that. Only
// the mirror of such a pool, which has the annotation too, may be named by claims and IPAllocations: the
// in-cluster provider counts no IPAddress but those that name its own pool, and would give what they have again.
const HandedOverAnnotation = "butler.butlerlabs.dev/handed-over"

// Given reports whether somebody has handed a pool over for good.
func Given(pool metav1.Object) bool {
	_, given := pool.GetAnnotations()[HandedOverAnnotation]
	return given
}

// HandedOver reports whether a pool was handed over for good and is paused, which keeps the in-cluster provider from
// serving its claims. Neither alone is enough: the one is a word, the other may end tomorrow.
func HandedOver(pool metav1.Object) bool {
	return Given(pool) && annotations.HasPaused(pool)
}

// HandOverCommand hands the pool of a reference over for good. Namespace is that of the pool, empty for a global one.
func HandOverCommand(namespace string, ref ipamv1.IPPoolReference) string {
	return "kubectl annotate " + Resource(namespace, ref) + " " + HandedOverAnnotation + "="
}

// Resource is how kubectl is told which pool is meant.
func Resource(namespace string, ref ipamv1.IPPoolReference) string {
	out := strings.ToLower(ref.Kind) + "s." + GroupVersion.Group
	if namespace != "" {
		out += " -n " + namespace
	}
	return out + " " + ref.Name
}
