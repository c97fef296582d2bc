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

// hold puts our finalizer on the leases that are about to be shown (P6): they are not given back without us then. Hosts show those
// that have ports. Once a namespace has an IPAddressPool, its other leases are in it too, before they have a Service: whenever a pool changes MetalLB
// writes the status of every Service that it has, so one change for all of them is better than one for each.
func (l *look) hold(ctx context.Context, d *leaseports.Decision) (changed bool, err error) {
	inUse := slices.ContainsFunc(l.leases, func(o *v1alpha1.IPLease) bool {
		return len(o.Status.Ports) > 0 && o.Status.ShownBy == v1alpha1.ShownByMetalLB && !l.leftAlone(o)
	})
	for _, o := range l.leases {
		ofMetalLB := l.MetalLB && inUse && !byHost(o) && (o.Status.ShownBy != "" || !l.byHosts(o)) && !d.Apart[o.Name]
		ofHosts := l.Hosts && byHost(o) && len(o.Status.Ports) > 0
		if (!ofMetalLB && !ofHosts) || leaseports.LeaseOf(o).Invalid != "" || l.leftAlone(o) || o.DeletionTimestamp != nil || !addressOf(o).IsValid() ||
			!controllerutil.ContainsFinalizer(o, v1alpha1.IPLeaseFinalizer) || controllerutil.ContainsFinalizer(o, v1alpha1.LeaseShownFinalizer) {
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

// byHosts reports whether hosts show the leases of the pool of a lease.
func (l *look) byHosts(o *v1alpha1.IPLease) bool { return l.ofHosts[leaseports.LeaseOf(o).Pool] }

// shown reports whether the address of a lease is to be in an IPAddressPool: from its first port on, or that of another of
// the namespace, until it is deleted.
func shown(o *v1alpha1.IPLease) bool { return showable(o, v1alpha1.ShownByMetalLB) }

// showable reports whether a lease may be shown, and by whom.
func showable(o *v1alpha1.IPLease, by string) bool {
	return o.DeletionTimestamp == nil && byHost(o) == (by == v1alpha1.ShownByHost) && addressOf(o).IsValid() && leaseports.LeaseOf(o).Invalid == "" &&
		controllerutil.ContainsFinalizer(o, v1alpha1.LeaseShownFinalizer) && controllerutil.ContainsFinalizer(o, v1alpha1.IPLeaseFinalizer)
}

// isShown reports whether an IPAddressPool has the address of a lease, and is the one that is to have it.
func (l *look) isShown(o *v1alpha1.IPLease) bool {
	p := l.shownIn[addressOf(o)]
	return p != nil && p.Name == l.poolOf(o).Name()
}

// wanted is an IPAddressPool, and what it is to have.
type wanted struct {
	pool metallb.LeasePool
	has  map[netip.Addr]bool
}

// show brings the IPAddressPools of the namespace in line with its leases: first what is taken away, as MetalLB refuses two
// pools with one address.
func (l *look) show(ctx context.Context, _ *leaseports.Decision) (changed bool, err error) {
	if !l.MetalLB {
		return false, nil
	}
	all, stale, err := l.toShow(ctx)
	if stale || err != nil {
		return stale, err // the watch brings it
	}
	if len(all) > 0 {
		if err := metallb.AdvertiseLeases(ctx, l.Client); err != nil {
			return false, fmt.Errorf("announcing leases: %w", err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.pools)) {
		p := l.pools[name]
		w := all[name]
		if w == nil {
			w = &wanted{pool: metallb.LeasePoolOf(p)}
		}
		if !metallb.ShowsLeases(p) || !metallb.HasOthers(p, w.has) {
			continue
		}
		if changed, err := l.showLeases(ctx, w.pool, slices.Collect(maps.Keys(w.has)), p); changed || err != nil {
			return changed, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if changed, err := l.add(ctx, all[name]); changed || err != nil {
			return changed, err
		}
	}
	return false, nil
}

// showLeases brings an IPAddressPool to have these addresses. Where that has to wait for MetalLB, which may say somewhere that
// is not watched that it never will do, it is looked at again.
func (l *look) showLeases(ctx context.Context, pool metallb.LeasePool, want []netip.Addr, was *metallbv1beta1.IPAddressPool) (changed bool, err error) {
	changed, waits, err := metallb.ShowLeases(ctx, l.Client, l.Live, pool, want, was)
	if waits {
		l.wait = grants.Sooner(l.wait, askAgain)
	}
	return changed, err
}

// toShow are the IPAddressPools that are to be, by name. An address is added to one only if a live read shows its lease, and
// taken away only if a live read does not: the cache may show one that was given back, or not show one. Stale: it does.
func (l *look) toShow(ctx context.Context) (_ map[string]*wanted, stale bool, err error) {
	out := map[string]*wanted{}
	want := map[netip.Addr]bool{}
	for _, o := range l.leases {
		a, pool := addressOf(o), l.poolOf(o)
		has := l.shownIn[a]
		switch {
		case want[a]: // an older lease has it
			continue
		case l.leftAlone(o) && has != nil:
			pool = metallb.LeasePoolOf(has)
		case l.leftAlone(o) || !shown(o):
			continue
		case has == nil:
			live := &v1alpha1.IPLease{} // one that is gone is read as one without anything
			err := l.Live.Get(ctx, client.ObjectKeyFromObject(o), live)
			if client.IgnoreNotFound(err) != nil {
				return nil, false, fmt.Errorf("reading IPLease %s/%s, to show it: %w", o.Namespace, o.Name, err)
			}
			if live.UID != o.UID || !shown(live) || addressOf(live) != a {
				return nil, true, nil
			}
		}
		want[a] = true
		if out[pool.Name()] == nil {
			out[pool.Name()] = &wanted{pool, map[netip.Addr]bool{}}
		}
		out[pool.Name()].has[a] = true
	}
	stale, err = l.keptByOthers(ctx, want)
	return out, stale, err
}

// keptByOthers reports whether an IPAddressPool has an address that is not wanted by what the cache shows, and is by what the
// API server has.
func (l *look) keptByOthers(ctx context.Context, want map[netip.Addr]bool) (kept bool, err error) {
	if !slices.ContainsFunc(slices.Collect(maps.Values(l.pools)), func(p *metallbv1beta1.IPAddressPool) bool {
		return metallb.ShowsLeases(p) && metallb.HasOthers(p, want)
	}) {
		return false, nil // none is taken away
	}
	live := &v1alpha1.IPLeaseList{}
	if err := l.Live.List(ctx, live, client.InNamespace(l.namespace)); err != nil {
		return false, fmt.Errorf("listing the leases of namespace %s, to show fewer: %w", l.namespace, err)
	}
	for i := range live.Items {
		if a := addressOf(&live.Items[i]); shown(&live.Items[i]) && l.shownIn[a] != nil && !want[a] {
			return true, nil
		}
	}
	return false, nil
}

// publish has MetalLB give Services the addresses of their leases, and takes away those that they have no right to any more
// (P3). What a person writes there is set right while the Service names a lease.
func (l *look) publish(ctx context.Context, d *leaseports.Decision) (changed bool, err error) {
	shared := map[string]bool{}
	for i := range l.known {
		shared[l.known[i].Name] = l.known[i].Shared()
	}
	for i, s := range l.services {
		granted, recorded := l.granted(d, &l.asking[i])
		if l.asking[i].By == v1alpha1.ShownByHost {
			granted = false // it is not MetalLB's
		}
		recorded = recorded && satisfied(s)
		var p leaseports.Published
		if granted {
			for _, name := range l.asking[i].Leases {
				o := l.byName[name]
				recorded = recorded && shown(o) && l.isShown(o) && !l.leftAlone(o)
				p.Addresses, p.Key = append(p.Addresses, addressOf(o)), l.poolOf(o).Name()
				p.Shared = p.Shared || shared[name]
			}
		}
		if (granted && !recorded) || l.asking[i].Off != "" || l.heldByPause(s) || !l.mine(s) {
			continue
		}
		next := p.Of(s)
		if next == nil {
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
		if err := l.Client.Patch(ctx, next, guard.SinceRead(s)); err != nil {
			return false, fmt.Errorf("publishing Service %s/%s: %w", s.Namespace, s.Name, err)
		}
		if _, before := s.Annotations[v1alpha1.LeasedAddressesAnnotation]; granted && !before {
			metrics.LeaseServiceWait.Observe(l.now.Sub(s.CreationTimestamp.Time).Seconds())
		}
		changed = l.changes(s)
	}
	return changed, nil
}

// changes notes that a Service was written. Of one that another namespace has, and that asks for nothing any more, no watch
// wakes this one.
func (l *look) changes(s *corev1.Service) bool {
	if _, asks := leaseports.AskedOf(s); !asks && s.Namespace != l.namespace {
		l.wait = grants.Sooner(l.wait, soon)
	}
	return true
}

// liveHas reports whether the leases of a Service have its ports on record, and give them to it, and have these addresses, on the
// API server: the cache may show a table from before somebody else got them, and the Service may have asked again since.
func (l *look) liveHas(ctx context.Context, s *leaseports.Service, addresses []netip.Addr) (bool, error) {
	var leases []leaseports.Lease
	for i, name := range s.Leases {
		live := &v1alpha1.IPLease{}
		// One that is gone is read as one without anything.
		err := l.Live.Get(ctx, client.ObjectKey{Namespace: l.namespace, Name: name}, live)
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("reading IPLease %s/%s, to publish Service %s: %w", l.namespace, name, s.Name, err)
		}
		if !showable(live, s.By) || addressOf(live) != addresses[i] {
			return false, nil
		}
		is := leaseports.LeaseOf(live)
		for _, p := range s.Ports {
			if !is.Gives(p, s) {
				return false, nil
			}
		}
		leases = append(leases, is)
	}
	return leaseports.Recorded(s, leases), nil
}

// leasesOf are the leases whose address a Service shows.
func (l *look) leasesOf(s *corev1.Service) []*v1alpha1.IPLease {
	var out []*v1alpha1.IPLease
	for _, a := range leaseports.Shown(s) {
		out = append(out, l.byAddress[a]...)
	}
	return out
}

// heldByPause reports whether a Service shows a lease that is left alone: it stays as it is.
func (l *look) heldByPause(s *corev1.Service) bool {
	return slices.ContainsFunc(l.leasesOf(s), l.leftAlone)
}

// clear takes an address out of the status of a Service that has no right to it any more: MetalLB leaves a Service what it
// has. Where a person asks MetalLB for it, that is left alone. That of a lease which is being deleted MetalLB takes away
// itself, as no IPAddressPool has it: so it shows that it has let go.
func (l *look) clear(ctx context.Context, d *leaseports.Decision) (changed bool, err error) {
	for i, s := range l.services {
		if granted, _ := l.granted(d, &l.asking[i]); granted || l.asking[i].Off != "" || l.asking[i].By == v1alpha1.ShownByHost || l.heldByPause(s) {
			continue
		}
		if !slices.ContainsFunc(l.leasesOf(s), func(o *v1alpha1.IPLease) bool {
			return o.DeletionTimestamp == nil && !byHost(o) && leaseports.OnlyLeft(s, addressOf(o))
		}) {
			continue
		}
		next := s.DeepCopy()
		next.Status.LoadBalancer = corev1.LoadBalancerStatus{}
		if err := l.Client.Status().Patch(ctx, next, guard.SinceRead(s)); err != nil {
			return false, fmt.Errorf("taking the address of a lease from Service %s/%s: %w", s.Namespace, s.Name, err)
		}
		changed = l.changes(s)
	}
	return changed, nil
}

// conditionOf is what a Service was told.
func conditionOf(s *corev1.Service) *metav1.Condition {
	return meta.FindStatusCondition(s.Status.Conditions, v1alpha1.LeaseSatisfiedCondition)
}

// tell says on each Service that names a lease what became of that.
func (l *look) tell(ctx context.Context, d *leaseports.Decision) (changed bool, err error) {
	for i, s := range l.services {
		if granted, recorded := l.granted(d, &l.asking[i]); (granted && !recorded) || !l.mine(s) {
			continue // its lease is left alone, or it is told by another namespace
		}
		v, asks := d.Verdicts[s.UID]
		if v.Reason == v1alpha1.GrantedReason {
			v = l.placed(s, &l.asking[i], v)
		}
		if l.awaited(s, v) {
			continue // it is looked at again
		}
		next, is := s.DeepCopy(), conditionOf(s)
		c := metav1.Condition{
			Type: v1alpha1.LeaseSatisfiedCondition, Status: metav1.ConditionFalse, Reason: v.Reason, Message: text.Message(v.Message),
			ObservedGeneration: s.Generation, LastTransitionTime: metav1.NewTime(l.now),
		}
		if v.Reason == v1alpha1.GrantedReason {
			c.Status = metav1.ConditionTrue
		}
		switch {
		case !asks && len(l.leasesOf(s)) > 0: // it is looked at until it does not
			continue
		case !asks && is == nil, asks && is != nil && is.Status == c.Status && is.Reason == c.Reason && is.Message == c.Message:
			continue
		case asks:
			meta.SetStatusCondition(&next.Status.Conditions, c)
		default:
			meta.RemoveStatusCondition(&next.Status.Conditions, v1alpha1.LeaseSatisfiedCondition)
		}
		done, err := l.setConditions(ctx, next, s)
		if err != nil {
			return false, fmt.Errorf("telling Service %s/%s of its lease: %w", s.Namespace, s.Name, err)
		}
		if !done {
			continue
		}
		if asks && c.Status == metav1.ConditionFalse && !leaseports.Comes(c.Reason, c.Message) && (is == nil || is.Reason != c.Reason || leaseports.Comes(is.Reason, is.Message)) {
			l.Recorder.Eventf(s, nil, corev1.EventTypeWarning, v.Reason, "Lease", "%s", v.Message)
			metrics.LeaseRefusals.WithLabelValues(l.namespace, v.Reason).Inc()
		}
		changed = l.changes(s)
	}
	return changed, nil
}
