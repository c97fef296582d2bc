package tenant

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/demand"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// grow does the next steps of growth.
func (l *look) grow(ctx context.Context, d demand.Decision, all allocations) (next wait, err error) {
	cluster := l.cluster
	for _, s := range d.Steps {
		if cluster, err = l.noteTried(ctx, cluster, s.Tried); err != nil {
			return 0, err
		}
		switch s.Action {
		case tenancy.Try:
			creating, err := l.create(ctx, d.Config, s.Decision, all)
			if err != nil {
				return 0, err
			}
			next = next.or(creating)
		case tenancy.Replace:
			a := s.Request
			err := exact.Delete(ctx, l.Client, a)
			if err := client.IgnoreNotFound(err); err != nil {
				return 0, err
			}
		case tenancy.Done, tenancy.Wait, tenancy.Exhausted:
		}
	}
	return next, nil
}

// create makes the block under the first name that is free: a number is used again when nothing has it.
func (l *look) create(ctx context.Context, config *v1alpha1.ProviderConfig, d tenancy.Decision, all allocations) (wait, error) {
	for n := 1; ; n++ {
		name := tenancy.GrowthName(l.ref, n)
		if all.named(name) != nil {
			continue
		}
		a := tenancy.Request(l.ref, config, name, v1alpha1.GrowthRole, d.Pool, d.Count)
		guard.Label(a, l.WatchFilter)
		err := l.Client.Create(ctx, a)
		if apierrors.IsAlreadyExists(err) {
			mine, err := l.mine(ctx, client.ObjectKeyFromObject(a))
			if err != nil || mine {
				return atOnce, err // our watch is behind
			}
			continue // another Cluster's names make the same name
		}
		if err != nil {
			return 0, fmt.Errorf("asking for %d addresses: %w", d.Count, err)
		}
		l.Blocks.Observe(a)
		metrics.Growths.WithLabelValues(l.key.Namespace, l.key.Name).Inc()
		l.Recorder.Eventf(l.cluster, a, corev1.EventTypeNormal, "LoadBalancerPoolGrowing", "Allocate",
			"Services wait for addresses: asking %s %s for %d", d.Pool.Kind, d.Pool.Name, d.Count)
		return 0, nil
	}
}

// mine reports whether an IPAllocation that exists is the Cluster's, and remembers it then.
func (l *look) mine(ctx context.Context, key client.ObjectKey) (bool, error) {
	a := &v1alpha1.IPAllocation{}
	if err := l.Live.Get(ctx, key, a); err != nil {
		return true, client.IgnoreNotFound(err)
	}
	if tenancy.Owns(l.ref, a) {
		l.Blocks.Observe(a)
		return true, nil
	}
	return false, nil
}

// noteTried writes on the Cluster which pools had nothing for it, before the next is asked.
func (l *look) noteTried(ctx context.Context, cluster *clusterv1.Cluster, tried []tenancy.Attempt) (*clusterv1.Cluster, error) {
	is := cluster.DeepCopy()
	if !tenancy.SetTried(is, v1alpha1.TriedGrowthPoolsAnnotation, tried) {
		return cluster, nil
	}
	return is, l.Client.Patch(ctx, is, guard.SinceRead(cluster))
}
