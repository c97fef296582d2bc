package lease

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
)

// notMadeFor is how long a lease is not asked for again that the API server has refused: by a ResourceQuota, or an admission
// policy.
const notMadeFor = time.Minute

// make makes leases for Services of a load balancer class. They have no owner: the lease of a Service that is made again stays.
// It returns why the API server takes one not, by name; that keeps nobody else from what is due.
func (l *look) make(ctx context.Context, all []leaseports.Made) (changed bool, refused map[string]string, err error) {
	refused = map[string]string{}
	for i := range all {
		wrote, err := l.makeOne(ctx, &all[i])
		changed = changed || wrote
		switch {
		case apierrors.IsForbidden(err) || apierrors.IsInvalid(err):
			refused[all[i].Name] = err.Error()
			l.wait = grants.Sooner(l.wait, notMadeFor)
		case err != nil:
			return changed, refused, err
		}
	}
	return changed, refused, nil
}

// makeOne makes a lease. One that never had an address goes first where its pool has nothing for it and another pool has:
// nothing is written where that one is left alone.
func (l *look) makeOne(ctx context.Context, m *leaseports.Made) (wrote bool, err error) {
	if m.Instead != nil {
		if l.leftAlone(l.byName[m.Name]) {
			return false, nil
		}
		if err := l.remove(ctx, m.Instead); err != nil {
			return false, err
		}
	}
	o := &v1alpha1.IPLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: m.Name, Labels: map[string]string{v1alpha1.MadeForServicesLabel: m.For}},
		Spec:       v1alpha1.IPLeaseSpec{PoolRef: m.Pool},
	}
	if l.WatchFilter != "" {
		o.Labels[clusterv1.WatchLabel] = l.WatchFilter
	}
	if m.Address.IsValid() {
		o.Spec.Address = m.Address.String()
	}
	if tried := leaseports.TriedText(m.Tried); tried != "" {
		o.Annotations = map[string]string{v1alpha1.TriedPoolsAnnotation: tried}
	}
	err = l.Client.Create(ctx, o)
	if apierrors.IsAlreadyExists(err) {
		err = apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("ipleases").GroupResource(), m.Name, err) // the cache is behind
	}
	if err != nil {
		return false, fmt.Errorf("making IPLease %s/%s for a Service: %w", l.namespace, m.Name, err)
	}
	return true, nil
}

// endUnused deletes the leases that were made for Services and that none uses any more (P5): as they were read, so that a
// port which was added meanwhile keeps one.
func (l *look) endUnused(ctx context.Context, _ *leaseports.Decision) (changed bool, err error) {
	for _, is := range leaseports.Unused(l.known, l.asking) {
		if o := l.byName[is.Name]; l.leftAlone(o) {
			continue
		}
		asked, err := l.liveAsks(ctx, is)
		if err != nil {
			return false, err
		}
		if asked {
			continue // the watch brings it
		}
		if err := l.remove(ctx, is); err != nil {
			return false, err
		}
		changed = true
	}
	return changed, nil
}

// liveAsks reports whether a Service of the namespace asks for a lease, as the API server has it: the cache may show one from
// before.
func (l *look) liveAsks(ctx context.Context, is *leaseports.Lease) (bool, error) {
	all := &corev1.ServiceList{}
	if err := l.Live.List(ctx, all, client.InNamespace(l.namespace)); err != nil {
		return false, fmt.Errorf("listing the Services of namespace %s, for one that uses IPLease %s: %w", l.namespace, is.Name, err)
	}
	for i := range all.Items {
		s := leaseports.ServiceOf(&all.Items[i], l.namespace)
		if toldOff(&all.Items[i]) {
			continue
		}
		if s.Names(is.Name) && is.Allows(&s) {
			return true, nil
		}
	}
	return false, nil
}

// remove deletes a lease as it was read.
func (l *look) remove(ctx context.Context, is *leaseports.Lease) error {
	o := &v1alpha1.IPLease{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: is.Name}}
	if err := exact.Delete(ctx, l.Client, exact.As(o, is.UID, is.Version)); err != nil {
		return fmt.Errorf("deleting IPLease %s/%s, which was made for a Service: %w", l.namespace, is.Name, err)
	}
	return nil
}
