package framework

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// RefuseAddresses makes a quota by which a namespace may have no IPAddress. No controller counts for it, and none has
// to: the limit in its status is what the API server keeps to, from a moment later on.
func RefuseAddresses(ctx context.Context, c client.Client, namespace string) (*corev1.ResourceQuota, error) {
	none := corev1.ResourceList{"count/ipaddresses.ipam.cluster.x-k8s.io": resource.MustParse("0")}
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "no-addresses"}, Spec: corev1.ResourceQuotaSpec{Hard: none}}
	if err := c.Create(ctx, q); err != nil {
		return nil, err
	}
	q.Status = corev1.ResourceQuotaStatus{Hard: none, Used: none}
	return q, c.Status().Update(ctx, q)
}
