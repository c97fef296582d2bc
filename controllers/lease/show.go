package lease

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metallb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// hold puts our finalizer on the leases that are about to be shown (P6): they are not given back without us then.
func (l *look) hold(ctx context.Context, _ *leaseports.Decision) (changed bool, err error) {
	for _, o := range l.leases {
		if l.leftAlone(o) || len(o.Status.Ports) == 0 || o.DeletionTimestamp != nil || !addressOf(o).IsValid() || controllerutil.ContainsFinalizer(o, v1alpha1.LeaseShownFinalizer) {
			continue
		}
		next := o.DeepCopy()
		controllerutil.AddFinalizer(next, v1alpha1.LeaseShownFinalizer)
		if err := l.Client.Patch(ctx, next, guard.SinceRead(o)); err != nil {
			return false, fmt.Errorf("holding IPLease %s/%s, to show it: %w", o.Namespace, o.Name, err)
		}
		changed = true
	}
	return changed, nil
}

// shown reports whether the address of a lease is to be in the IPAddressPool of its namespace: from the first port on until
// it is deleted.
func shown(o *v1alpha1.IPLease) bool {
	return o.DeletionTimestamp == nil && addressOf(o).IsValid() && controllerutil.ContainsFinalizer(o, v1alpha1.LeaseShownFinalizer) &&
		controllerutil.ContainsFinalizer(o, v1alpha1.IPLeaseFinalizer)
}

// show brings the IPAddressPool of the namespace in line with its leases. An address is added to it only if a live read
// shows its lease: the cache may show one that was given back.
func (l *look) show(ctx context.Context, _ *leaseports.Decision) (changed bool, err error) {
	var want []netip.Addr
	for _, o := range l.leases {
		a := addressOf(o)
		switch has := metallb.HasAddress(l.pool, a); {
		case l.leftAlone(o) && has:
		case l.leftAlone(o) || !shown(o):
			continue
		case !has:
			live := &v1alpha1.IPLease{}
			if err := l.Live.Get(ctx, client.ObjectKeyFromObject(o), live); err != nil {
				return false, fmt.Errorf("reading IPLease %s/%s, to show it: %w", o.Namespace, o.Name, err)
			}
			if live.UID != o.UID || !shown(live) || addressOf(live) != a {
				return true, nil // the watch brings it
			}
		}
		want = append(want, a)
	}
	if kept, err := l.keptByOthers(ctx, want); kept || err != nil {
		return kept, err
	}
	if len(want) > 0 {
		if err := metallb.AdvertiseLeases(ctx, l.Client); err != nil {
			return false, fmt.Errorf("announcing leases: %w", err)
		}
	}
	return metallb.ShowLeases(ctx, l.Client, l.Live, l.namespace, want, l.pool)
}

// keptByOthers reports whether the IPAddressPool has an address that is not wanted by what the cache shows, and is by what
// the API server has.
func (l *look) keptByOthers(ctx context.Context, want []netip.Addr) (kept bool, err error) {
	if l.pool == nil || !metallb.ShowsLeases(l.pool) || !metallb.HasOthers(l.pool, want) {
		return false, nil // none is taken away
	}
	live := &v1alpha1.IPLeaseList{}
	if err := l.Live.List(ctx, live, client.InNamespace(l.namespace)); err != nil {
		return false, fmt.Errorf("listing the leases of namespace %s, to show fewer: %w", l.namespace, err)
	}
	for i := range live.Items {
		if a := addressOf(&live.Items[i]); shown(&live.Items[i]) && metallb.HasAddress(l.pool, a) && !slices.Contains(want, a) {
			return true, nil // the watch brings it
		}
	}
	return false, nil
}

// publish has MetalLB give Services the addresses of their leases, and takes away those that they have no right to any more
// (P3). What a person writes there is set right while the Service names a lease.
func (l *look) publish(ctx context.Context, d *leaseports.Decision) (changed bool, err error) {
	for i, s := range l.services {
		granted, recorded := l.granted(d, &l.asking[i])
		recorded = recorded && satisfied(s)
		var p leaseports.Published
		if granted {
			for _, name := range l.asking[i].Leases {
				o := l.leaseOf(name)
				recorded = recorded && shown(o) && metallb.HasAddress(l.pool, addressOf(o)) && !l.leftAlone(o)
				p.Addresses = append(p.Addresses, addressOf(o))
			}
			p.Key = metallb.LeasePoolName(l.namespace)
		}
		if (granted && !recorded) || l.heldByPause(s) {
			continue
		}
		write := p.Annotations(s)
		if write == nil {
			continue
		}
		if granted {
			has, err := l.liveHas(ctx, &l.asking[i], p.Addresses)
			if err != nil {
				return false, err
			}
			if !has {
				continue // the watch of the lease wakes us
			}
		}
		next := s.DeepCopy()
		for name, value := range write {
			if value == nil {
				delete(next.Annotations, name)
			} else {
				metav1.SetMetaDataAnnotation(&next.ObjectMeta, name, *value)
			}
		}
		if err := l.Client.Patch(ctx, next, guard.SinceRead(s)); err != nil {
			return false, fmt.Errorf("publishing Service %s/%s: %w", s.Namespace, s.Name, err)
		}
		changed = true
	}
	return changed, nil
}

// liveHas reports whether the leases of a Service have its ports on record, and these addresses, on the API server: the cache
// may show a table from before somebody else got them, and the Service may have asked again since.
func (l *look) liveHas(ctx context.Context, s *leaseports.Service, addresses []netip.Addr) (bool, error) {
	var leases []leaseports.Lease
	for i, name := range s.Leases {
		live := &v1alpha1.IPLease{}
		// One that is gone is read as one without anything.
		err := l.Live.Get(ctx, client.ObjectKey{Namespace: l.namespace, Name: name}, live)
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("reading IPLease %s/%s, to publish Service %s: %w", l.namespace, name, s.Name, err)
		}
		if !shown(live) || addressOf(live) != addresses[i] {
			return false, nil
		}
		leases = append(leases, leaseports.LeaseOf(live))
	}
	return leaseports.Recorded(s, leases), nil
}

// heldByPause reports whether a Service shows a lease that is left alone: it stays as it is.
func (l *look) heldByPause(s *corev1.Service) bool {
	return slices.ContainsFunc(l.leases, func(o *v1alpha1.IPLease) bool {
		a := addressOf(o)
		return l.leftAlone(o) && a.IsValid() && leaseports.Shows(s, a)
	})
}

// clear takes an address out of the status of a Service that has no right to it any more: MetalLB leaves a Service what it
// has. Where a person asks MetalLB for it, that is left alone. That of a lease which is being deleted MetalLB takes away
// itself, as no IPAddressPool has it: so it shows that it has let go.
func (l *look) clear(ctx context.Context, d *leaseports.Decision) (changed bool, err error) {
	for i, s := range l.services {
		if granted, _ := l.granted(d, &l.asking[i]); granted || l.heldByPause(s) {
			continue
		}
		if !slices.ContainsFunc(l.leases, func(o *v1alpha1.IPLease) bool {
			a := addressOf(o)
			return o.DeletionTimestamp == nil && a.IsValid() && leaseports.OnlyLeft(s, a)
		}) {
			continue
		}
		next := s.DeepCopy()
		next.Status.LoadBalancer = corev1.LoadBalancerStatus{}
		if err := l.Client.Status().Patch(ctx, next, guard.SinceRead(s)); err != nil {
			return false, fmt.Errorf("taking the address of a lease from Service %s/%s: %w", s.Namespace, s.Name, err)
		}
		changed = true
	}
	return changed, nil
}

// showsAny reports whether a Service shows the address of a lease.
func (l *look) showsAny(s *corev1.Service) bool {
	return slices.ContainsFunc(l.leases, func(o *v1alpha1.IPLease) bool {
		a := addressOf(o)
		return a.IsValid() && leaseports.Shows(s, a)
	})
}

// conditionOf is what a Service was told.
func conditionOf(s *corev1.Service) *metav1.Condition {
	return meta.FindStatusCondition(s.Status.Conditions, v1alpha1.LeaseSatisfiedCondition)
}

// tell says on each Service that names a lease what became of that.
func (l *look) tell(ctx context.Context, d *leaseports.Decision) (changed bool, err error) {
	for i, s := range l.services {
		if granted, recorded := l.granted(d, &l.asking[i]); granted && !recorded {
			continue // its lease is left alone
		}
		v, asks := d.Verdicts[s.UID]
		next, is := s.DeepCopy(), conditionOf(s)
		c := metav1.Condition{
			Type: v1alpha1.LeaseSatisfiedCondition, Status: metav1.ConditionFalse, Reason: v.Reason, Message: text.Message(v.Message),
			ObservedGeneration: s.Generation, LastTransitionTime: metav1.NewTime(l.now),
		}
		if v.Reason == v1alpha1.GrantedReason {
			c.Status = metav1.ConditionTrue
		}
		switch {
		case !asks && l.showsAny(s): // it is looked at until it does not
			continue
		case !asks && is == nil, asks && is != nil && is.Status == c.Status && is.Reason == c.Reason && is.Message == c.Message:
			continue
		case asks:
			meta.SetStatusCondition(&next.Status.Conditions, c)
		default:
			meta.RemoveStatusCondition(&next.Status.Conditions, v1alpha1.LeaseSatisfiedCondition)
		}
		if err := l.Client.Status().Patch(ctx, next, guard.SinceRead(s)); err != nil {
			return false, fmt.Errorf("telling Service %s/%s of its lease: %w", s.Namespace, s.Name, err)
		}
		if asks && c.Status == metav1.ConditionFalse && (is == nil || is.Reason != c.Reason) {
			l.Recorder.Eventf(s, nil, corev1.EventTypeWarning, v.Reason, "Lease", "%s", v.Message)
			metrics.LeaseRefusals.WithLabelValues(l.namespace, v.Reason).Inc()
		}
		changed = true
	}
	return changed, nil
}
