package balancer

import (
	"context"
	"fmt"
	"net/netip"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ListServices returns the Services of type LoadBalancer from a cache. The caller must not modify them. One that is
// being deleted is included as long as it has addresses.
func ListServices(ctx context.Context, cached client.Reader) ([]*corev1.Service, error) {
	services := &corev1.ServiceList{}
	if err := cached.List(ctx, services, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing the Services: %w", err)
	}
	var out []*corev1.Service
	for i := range services.Items {
		s := &services.Items[i]
		if s.Spec.Type == corev1.ServiceTypeLoadBalancer && (s.DeletionTimestamp == nil || len(s.Status.LoadBalancer.Ingress) > 0) {
			out = append(out, s)
		}
	}
	return out, nil
}

// FindRangeUser describes a Service, of any class, that has an address of a range; empty if there is none. It reads
// live.
func FindRangeUser(ctx context.Context, live client.Reader, r netipx.IPRange) (string, error) {
	services := &corev1.ServiceList{}
	if err := live.List(ctx, services, client.MatchingFields{"spec.type": string(corev1.ServiceTypeLoadBalancer)}); err != nil {
		return "", fmt.Errorf("listing the Services: %w", err)
	}
	for i := range services.Items {
		s := &services.Items[i]
		for _, in := range s.Status.LoadBalancer.Ingress {
			if a, err := netip.ParseAddr(in.IP); err == nil && r.Contains(a.Unmap()) {
				return fmt.Sprintf("Service %s/%s has %s", s.Namespace, s.Name, a), nil
			}
		}
	}
	return "", nil
}

// IsMissing reports whether an object does not exist, or its kind does not: a client that has discovered a kind
// before requests it nevertheless.
func IsMissing(err error) bool { return meta.IsNoMatchError(err) || apierrors.IsNotFound(err) }
