package lease

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metallb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// addFinalizers adds our finalizer to the leases that are about to be shown (P6), so that they are not released without
// us. Hosts show the leases that have ports. Once a namespace has an IPAddressPool, its other leases are in it too,
// before they have a Service: whenever a pool changes, MetalLB writes the status of every Service that it has, so one
// change for all of them is better than one for each.
func (l *scope) addFinalizers(ctx context.Context, d *leaseports.Decision) (changed bool, err error) {
	inUse := slices.ContainsFunc(l.leases, func(o *v1alpha1.IPLease) bool {
		return len(o.Status.Ports) > 0 && o.Status.ShownBy == v1alpha1.ShownByMetalLB && !l.isUnmanaged(o)
	})
	for _, o := range l.leases {
		ofMetalLB := l.MetalLB && inUse && !isShownByHost(o) && (o.Status.ShownBy != "" || !l.isPoolShownByHosts(o)) && !d.ExcludedLeases[o.Name]
		ofHosts := l.Hosts && isShownByHost(o) && len(o.Status.Ports) > 0
		if (!ofMetalLB && !ofHosts) || leaseports.NewLease(o).SelectorError != "" || l.isUnmanaged(o) || o.DeletionTimestamp != nil || !leaseAddress(o).IsValid() ||
			!controllerutil.ContainsFinalizer(o, v1alpha1.IPLeaseFinalizer) || controllerutil.ContainsFinalizer(o, v1alpha1.LeaseShownFinalizer) {
			continue
		}
		next := o.DeepCopy()
		controllerutil.AddFinalizer(next, v1alpha1.LeaseShownFinalizer)
		if err := l.Client.Patch(ctx, next, guard.NewOptimisticPatch(o)); err != nil {
			return false, fmt.Errorf("holding IPLease %s/%s, to show it: %w", o.Namespace, o.Name, err)
		}
		changed = true
	}
	return changed, nil
}

// isPoolShownByHosts reports whether hosts show the leases of the pool of a lease.
func (l *scope) isPoolShownByHosts(o *v1alpha1.IPLease) bool {
	return l.hostPools[leaseports.NewLease(o).Pool]
}

// shouldBeInPool reports whether the address of a lease should be in an IPAddressPool: from its first port on, or the
// first port of another lease of the namespace, until it is deleted.
func shouldBeInPool(o *v1alpha1.IPLease) bool { return mayBeShown(o, v1alpha1.ShownByMetalLB) }

// mayBeShown reports whether the load balancer by may show a lease.
func mayBeShown(o *v1alpha1.IPLease, by string) bool {
	return o.DeletionTimestamp == nil && isShownByHost(o) == (by == v1alpha1.ShownByHost) && leaseAddress(o).IsValid() && leaseports.NewLease(o).SelectorError == "" &&
		controllerutil.ContainsFinalizer(o, v1alpha1.LeaseShownFinalizer) && controllerutil.ContainsFinalizer(o, v1alpha1.IPLeaseFinalizer)
}

// isInLeasePool reports whether an IPAddressPool has the address of a lease, and is the one that should have it.
func (l *scope) isInLeasePool(o *v1alpha1.IPLease) bool {
	p := l.poolsByAddress[leaseAddress(o)]
	return p != nil && p.Name == l.leasePoolFor(o).Name()
}

// desiredPool is an IPAddressPool, and the addresses that it should have.
type desiredPool struct {
	pool      metallb.LeasePool
	addresses map[netip.Addr]bool
}

// reconcilePools makes the IPAddressPools of the namespace match its leases. It removes addresses first, as MetalLB
// refuses two pools with one address.
func (l *scope) reconcilePools(ctx context.Context, _ *leaseports.Decision) (changed bool, err error) {
	if !l.MetalLB {
		return false, nil
	}
	all, stale, err := l.desiredPools(ctx)
	if stale || err != nil {
		return stale, err // the watch brings the current leases
	}
	if len(all) > 0 {
		if err := metallb.AdvertiseLeases(ctx, l.Client); err != nil {
			return false, fmt.Errorf("announcing leases: %w", err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.addressPools)) {
		p := l.addressPools[name]
		w := all[name]
		if w == nil {
			w = &desiredPool{pool: metallb.NewLeasePool(p)}
		}
		if !metallb.IsLeasePool(p) || !metallb.HasOtherAddresses(p, w.addresses) {
			continue
		}
		if changed, err := l.applyLeasePool(ctx, w.pool, slices.Collect(maps.Keys(w.addresses)), p); changed || err != nil {
			return changed, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if changed, err := l.addToPool(ctx, all[name]); changed || err != nil {
			return changed, err
		}
	}
	return false, nil
}

// applyLeasePool gives an IPAddressPool these addresses. If that has to wait for MetalLB, which may report where no
// watch sees it that it never will, the namespace is requeued.
func (l *scope) applyLeasePool(ctx context.Context, pool metallb.LeasePool, want []netip.Addr, current *metallbv1beta1.IPAddressPool) (changed bool, err error) {
	changed, waits, err := metallb.ApplyLeasePool(ctx, l.Client, l.Live, pool, want, current)
	if waits {
		l.requeueAfter = grants.MinWait(l.requeueAfter, recheckInterval)
	}
	return changed, err
}

// desiredPools returns the desired IPAddressPools, by name. An address is added to one only if a live read shows its
// lease, and removed only if a live read does not: the cache may show a lease that was released, or may not show one.
// stale reports whether that is the case.
func (l *scope) desiredPools(ctx context.Context) (_ map[string]*desiredPool, stale bool, err error) {
	out := map[string]*desiredPool{}
	want := map[netip.Addr]bool{}
	for _, o := range l.leases {
		a, pool := leaseAddress(o), l.leasePoolFor(o)
		existing := l.poolsByAddress[a]
		switch {
		case want[a]: // an older lease has it
			continue
		case l.isUnmanaged(o) && existing != nil:
			pool = metallb.NewLeasePool(existing)
		case l.isUnmanaged(o) || !shouldBeInPool(o):
			continue
		case existing == nil:
			live := &v1alpha1.IPLease{} // a lease that is gone is read as an empty one
			err := l.Live.Get(ctx, client.ObjectKeyFromObject(o), live)
			if client.IgnoreNotFound(err) != nil {
				return nil, false, fmt.Errorf("reading IPLease %s/%s, to show it: %w", o.Namespace, o.Name, err)
			}
			if live.UID != o.UID || !shouldBeInPool(live) || leaseAddress(live) != a {
				return nil, true, nil
			}
		}
		want[a] = true
		if out[pool.Name()] == nil {
			out[pool.Name()] = &desiredPool{pool, map[netip.Addr]bool{}}
		}
		out[pool.Name()].addresses[a] = true
	}
	stale, err = l.hasUnseenLease(ctx, want)
	return out, stale, err
}

// hasUnseenLease reports whether an IPAddressPool has an address that no lease in the cache wants, but one on the API
// server does.
func (l *scope) hasUnseenLease(ctx context.Context, want map[netip.Addr]bool) (kept bool, err error) {
	if !slices.ContainsFunc(slices.Collect(maps.Values(l.addressPools)), func(p *metallbv1beta1.IPAddressPool) bool {
		return metallb.IsLeasePool(p) && metallb.HasOtherAddresses(p, want)
	}) {
		return false, nil // no address is removed
	}
	live := &v1alpha1.IPLeaseList{}
	if err := l.Live.List(ctx, live, client.InNamespace(l.namespace)); err != nil {
		return false, fmt.Errorf("listing the leases of namespace %s, to show fewer: %w", l.namespace, err)
	}
	for i := range live.Items {
		if a := leaseAddress(&live.Items[i]); shouldBeInPool(&live.Items[i]) && l.poolsByAddress[a] != nil && !want[a] {
			return true, nil
		}
	}
	return false, nil
}

// publishServices makes MetalLB assign Services the addresses of their leases, and withdraws those to which they have
// no right any more (P3). What a user writes there is overwritten while the Service names a lease.
func (l *scope) publishServices(ctx context.Context, d *leaseports.Decision) (changed bool, err error) {
	shared := map[string]bool{}
	for i := range l.leaseStates {
		shared[l.leaseStates[i].Name] = l.leaseStates[i].IsShared()
	}
	for i, s := range l.services {
		granted, recorded := l.grantState(d, &l.serviceStates[i])
		if l.serviceStates[i].ShownBy == v1alpha1.ShownByHost {
			granted = false // MetalLB does not serve it
		}
		recorded = recorded && isReportedSatisfied(s)
		var p leaseports.Publication
		if granted {
			for _, name := range l.serviceStates[i].LeaseNames {
				o := l.leasesByName[name]
				recorded = recorded && shouldBeInPool(o) && l.isInLeasePool(o) && !l.isUnmanaged(o)
				p.Addresses, p.SharingKey = append(p.Addresses, leaseAddress(o)), l.leasePoolFor(o).Name()
				p.IsShared = p.IsShared || shared[name]
			}
		}
		if (granted && !recorded) || l.serviceStates[i].NotServedMessage != "" || l.isHeldByPause(s) || !l.isResponsibleFor(s) {
			continue
		}
		next := p.ApplyToService(s)
		if next == nil {
			continue
		}
		if granted {
			isGranted, err := l.isGrantedLive(ctx, &l.serviceStates[i], p.Addresses)
			if err != nil {
				return false, err
			}
			if !isGranted {
				continue // the watch of the lease enqueues the namespace
			}
		}
		if err := l.Client.Patch(ctx, next, guard.NewOptimisticPatch(s)); err != nil {
			return false, fmt.Errorf("publishing Service %s/%s: %w", s.Namespace, s.Name, err)
		}
		if _, before := s.Annotations[v1alpha1.LeasedAddressesAnnotation]; granted && !before {
			metrics.LeaseServiceWait.Observe(l.now.Sub(s.CreationTimestamp.Time).Seconds())
		}
		changed = l.recordServiceWrite(s)
	}
	return changed, nil
}

// recordServiceWrite requeues the namespace after a Service was written that no watch enqueues it for: one of another
// namespace that requests nothing any more. It always returns true.
func (l *scope) recordServiceWrite(s *corev1.Service) bool {
	if _, asks := leaseports.ParseServiceRequest(s); !asks && s.Namespace != l.namespace {
		l.requeueAfter = grants.MinWait(l.requeueAfter, shortRequeueDelay)
	}
	return true
}

// isGrantedLive reports whether, on the API server, the leases of a Service have its ports on record, allow them to it,
// and have these addresses: the cache may show a table from before another Service got the ports, and the Service may
// have requested them again since.
func (l *scope) isGrantedLive(ctx context.Context, s *leaseports.Service, addresses []netip.Addr) (bool, error) {
	var leases []leaseports.Lease
	for i, name := range s.LeaseNames {
		live := &v1alpha1.IPLease{}
		// A lease that is gone is read as an empty one.
		err := l.Live.Get(ctx, client.ObjectKey{Namespace: l.namespace, Name: name}, live)
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("reading IPLease %s/%s, to publish Service %s: %w", l.namespace, name, s.Name, err)
		}
		if !mayBeShown(live, s.ShownBy) || leaseAddress(live) != addresses[i] {
			return false, nil
		}
		lease := leaseports.NewLease(live)
		for _, p := range s.Ports {
			if !lease.AllowsPort(p, s) {
				return false, nil
			}
		}
		leases = append(leases, lease)
	}
	return leaseports.HasRecordedPorts(s, leases), nil
}

// leasesShownBy returns the leases whose address a Service shows.
func (l *scope) leasesShownBy(s *corev1.Service) []*v1alpha1.IPLease {
	var out []*v1alpha1.IPLease
	for _, a := range leaseports.ShownAddresses(s) {
		out = append(out, l.leasesByAddress[a]...)
	}
	return out
}

// isHeldByPause reports whether a Service shows a lease that is unmanaged: the Service stays as it is.
func (l *scope) isHeldByPause(s *corev1.Service) bool {
	return slices.ContainsFunc(l.leasesShownBy(s), l.isUnmanaged)
}

// clearServiceStatus removes an address from the status of a Service that has no right to it any more: MetalLB leaves a
// Service what it has. If a user requests the address from MetalLB, it is left alone. MetalLB itself removes the
// address of a lease that is being deleted, as no IPAddressPool has it: that shows that it has released it.
func (l *scope) clearServiceStatus(ctx context.Context, d *leaseports.Decision) (changed bool, err error) {
	for i, s := range l.services {
		if granted, _ := l.grantState(d, &l.serviceStates[i]); granted || l.serviceStates[i].NotServedMessage != "" || l.serviceStates[i].ShownBy == v1alpha1.ShownByHost || l.isHeldByPause(s) {
			continue
		}
		if !slices.ContainsFunc(l.leasesShownBy(s), func(o *v1alpha1.IPLease) bool {
			return o.DeletionTimestamp == nil && !isShownByHost(o) && leaseports.HasOnlyStatusAddress(s, leaseAddress(o))
		}) {
			continue
		}
		next := s.DeepCopy()
		next.Status.LoadBalancer = corev1.LoadBalancerStatus{}
		if err := l.Client.Status().Patch(ctx, next, guard.NewOptimisticPatch(s)); err != nil {
			return false, fmt.Errorf("taking the address of a lease from Service %s/%s: %w", s.Namespace, s.Name, err)
		}
		changed = l.recordServiceWrite(s)
	}
	return changed, nil
}

// leaseCondition returns the condition LeaseSatisfied of a Service, nil if it has none.
func leaseCondition(s *corev1.Service) *metav1.Condition {
	return meta.FindStatusCondition(s.Status.Conditions, v1alpha1.LeaseSatisfiedCondition)
}

// setConditionOnServices sets the condition of each Service that names a lease.
func (l *scope) setConditionOnServices(ctx context.Context, d *leaseports.Decision) (changed bool, err error) {
	for i, s := range l.services {
		if granted, recorded := l.grantState(d, &l.serviceStates[i]); (granted && !recorded) || !l.isResponsibleFor(s) {
			continue // its lease is unmanaged, or another namespace sets its condition
		}
		v, asks := d.Reasons[s.UID]
		if v.Reason == v1alpha1.GrantedReason {
			v = l.placementReason(s, &l.serviceStates[i], v)
		}
		if l.isAwaitingLease(s, v) {
			continue // the namespace is requeued
		}
		next, condition := s.DeepCopy(), leaseCondition(s)
		c := metav1.Condition{
			Type: v1alpha1.LeaseSatisfiedCondition, Status: metav1.ConditionFalse, Reason: v.Reason, Message: text.SanitizeMessage(v.Message),
			ObservedGeneration: s.Generation, LastTransitionTime: metav1.NewTime(l.now),
		}
		if v.Reason == v1alpha1.GrantedReason {
			c.Status = metav1.ConditionTrue
		}
		switch {
		case !asks && len(l.leasesShownBy(s)) > 0: // it keeps the condition until it shows none
			continue
		case !asks && condition == nil, asks && condition != nil && condition.Status == c.Status && condition.Reason == c.Reason && condition.Message == c.Message:
			continue
		case asks:
			meta.SetStatusCondition(&next.Status.Conditions, c)
		default:
			meta.RemoveStatusCondition(&next.Status.Conditions, v1alpha1.LeaseSatisfiedCondition)
		}
		done, err := l.patchConditions(ctx, next, s)
		if err != nil {
			return false, fmt.Errorf("telling Service %s/%s of its lease: %w", s.Namespace, s.Name, err)
		}
		if !done {
			continue
		}
		if asks && c.Status == metav1.ConditionFalse && !leaseports.IsLeasePending(c.Reason, c.Message) && (condition == nil || condition.Reason != c.Reason || leaseports.IsLeasePending(condition.Reason, condition.Message)) {
			l.Recorder.Eventf(s, nil, corev1.EventTypeWarning, v.Reason, "Lease", "%s", v.Message)
			metrics.LeaseRefusals.WithLabelValues(l.namespace, v.Reason).Inc()
		}
		changed = l.recordServiceWrite(s)
	}
	return changed, nil
}
