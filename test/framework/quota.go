package framework

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// DenyAddressesByQuota creates a quota that allows no IPAddress in a namespace. It needs no quota controller: the API
// server enforces the limit in the status of the quota, from a moment after the write.
func DenyAddressesByQuota(ctx context.Context, c client.Client, namespace string) (*corev1.ResourceQuota, error) {
	none := corev1.ResourceList{"count/ipaddresses.ipam.cluster.x-k8s.io": resource.MustParse("0")}
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "no-addresses"}, Spec: corev1.ResourceQuotaSpec{Hard: none}}
	if err := c.Create(ctx, q); err != nil {
		return nil, err
	}
	q.Status = corev1.ResourceQuotaStatus{Hard: none, Used: none}
	return q, c.Status().Update(ctx, q)
}
