package lease

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metallb"
)

// poolWriter makes the IPAddressPools of the namespace match its leases. The IPAddressPools have an address from the
// first port of any lease of the namespace on until its lease is deleted (P5), unless MetalLB refuses it.
type poolWriter struct {
	refusals *addressRefusals
	schedule *schedule
	state    *state
	api      *api
}

// reconcilePools makes the IPAddressPools of the namespace match its leases. It removes addresses first, as MetalLB
// refuses two pools with one address.
func (w *poolWriter) reconcilePools(ctx context.Context) (changed bool, err error) {
	if !w.state.MetalLB {
		return false, nil
	}
	all, stale, err := w.desiredPools(ctx)
	if stale || err != nil {
		return stale, err // the watch brings the current leases
	}
	if len(all) > 0 {
		if err := metallb.AdvertiseLeases(ctx, w.api.Client); err != nil {
			return false, fmt.Errorf("announcing leases: %w", err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.state.addressPools)) {
		p := w.state.addressPools[name]
		want := all[name]
		if want == nil {
			want = &desiredPool{pool: metallb.NewLeasePool(p)}
		}
		if !metallb.IsLeasePool(p) || !metallb.HasOtherAddresses(p, want.addresses) {
			continue
		}
		if changed, err := w.applyLeasePool(ctx, want.pool, slices.Collect(maps.Keys(want.addresses)), p); changed || err != nil {
			return changed, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if changed, err := w.addToPool(ctx, all[name]); changed || err != nil {
			return changed, err
		}
	}
	return false, nil
}

// desiredPool is an IPAddressPool, and the addresses that it should have.
type desiredPool struct {
	pool      metallb.LeasePool
	addresses map[netip.Addr]bool
}

// desiredPools returns the desired IPAddressPools, by name. An address is added to one only if a live read shows its
// lease, and removed only if a live read does not: the cache may show a lease that was released, or may not show one.
// stale reports whether that is the case.
func (w *poolWriter) desiredPools(ctx context.Context) (_ map[string]*desiredPool, stale bool, err error) {
	out := map[string]*desiredPool{}
	want := map[netip.Addr]bool{}
	for _, o := range w.state.leases {
		a := leaseAddress(o)
		pool, wanted := w.state.desiredPoolFor(o)
		if !wanted || want[a] { // or an older lease has it
			continue
		}
		if w.state.poolsByAddress[a] == nil {
			live := &v1alpha1.IPLease{} // a lease that is gone is read as an empty one
			err := w.api.Live.Get(ctx, client.ObjectKeyFromObject(o), live)
			if client.IgnoreNotFound(err) != nil {
				return nil, false, fmt.Errorf("reading IPLease %s/%s before its address is announced: %w", o.Namespace, o.Name, err)
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
	stale, err = w.hasUnseenLease(ctx, want)
	return out, stale, err
}

// hasUnseenLease reports whether an IPAddressPool has an address that no lease in the cache wants, but one on the API
// server does.
func (w *poolWriter) hasUnseenLease(ctx context.Context, want map[netip.Addr]bool) (kept bool, err error) {
	if !slices.ContainsFunc(slices.Collect(maps.Values(w.state.addressPools)), func(p *metallbv1beta1.IPAddressPool) bool {
		return metallb.IsLeasePool(p) && metallb.HasOtherAddresses(p, want)
	}) {
		return false, nil // no address is removed
	}
	live := &v1alpha1.IPLeaseList{}
	if err := w.api.Live.List(ctx, live, client.InNamespace(w.state.namespace)); err != nil {
		return false, fmt.Errorf("listing the leases of namespace %s before addresses are removed: %w", w.state.namespace, err)
	}
	for i := range live.Items {
		if a := leaseAddress(&live.Items[i]); shouldBeInPool(&live.Items[i]) && w.state.poolsByAddress[a] != nil && !want[a] {
			return true, nil
		}
	}
	return false, nil
}

// addToPool adds addresses to an IPAddressPool. If MetalLB's webhook refuses them, it tries one after another: only an
// address that is refused by itself stays out.
func (w *poolWriter) addToPool(ctx context.Context, want *desiredPool) (changed bool, err error) {
	p := w.state.addressPools[want.pool.Name()]
	var known, more []netip.Addr
	for a := range want.addresses {
		held := w.state.poolsByAddress[a]
		switch text, left := w.refusals.findRefusal(w.state.namespace, a, w.schedule.now); {
		case held != nil && held == p:
			known = append(known, a)
		case held != nil: // another pool has it until MetalLB has counted
		case text != "":
			w.schedule.requeueWithin(left)
		default:
			more = append(more, a)
		}
	}
	if len(known)+len(more) == 0 {
		return false, nil // what had to be removed is removed
	}
	changed, err = w.applyLeasePool(ctx, want.pool, slices.Concat(known, more), p)
	if !isWebhookRefusal(err) || len(more) == 0 {
		return changed, err
	}
	for _, a := range slices.SortedFunc(slices.Values(more), netip.Addr.Compare) {
		changed, err = w.applyLeasePool(ctx, want.pool, append(slices.Clone(known), a), p)
		if !isWebhookRefusal(err) {
			return changed, err
		}
		w.refusals.addRefusal(w.state.namespace, a, addressRefusal{err.Error(), w.schedule.now})
		w.schedule.requeueWithin(refusalRetention)
	}
	return false, nil
}

// applyLeasePool gives an IPAddressPool these addresses. If that has to wait for MetalLB, which may report where no
// watch sees it that it never will, the namespace is requeued.
func (w *poolWriter) applyLeasePool(ctx context.Context, pool metallb.LeasePool, want []netip.Addr, current *metallbv1beta1.IPAddressPool) (changed bool, err error) {
	changed, waits, err := metallb.ApplyLeasePool(ctx, w.api.Client, w.api.Live, pool, want, current)
	if waits {
		w.schedule.requeueWithin(recheckInterval)
	}
	return changed, err
}

// isWebhookRefusal reports whether an error is the refusal of an admission webhook, MetalLB's, or of an admission
// policy. A missing permission is not one.
func isWebhookRefusal(err error) bool {
	return err != nil && (apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)) &&
		(strings.Contains(err.Error(), "denied the request") || strings.Contains(err.Error(), "denied request"))
}
