package metallb

import (
	"context"
	"fmt"
	"slices"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Shown is an IPAddressPool as it is to be.
type Shown struct {
	Name   string
	Ranges []netipx.IPRange
	// AutoAssign is false where no new Services are to be served.
	AutoAssign bool
	// Leaving pools show a block that is about to be taken away.
	Leaving bool
}

// addresses are the entries of spec.addresses: first-last, a single address too (B53).
func (s *Shown) addresses() []string {
	out := make([]string, 0, len(s.Ranges))
	for _, r := range s.Ranges {
		out = append(out, r.From().String()+"-"+r.To().String())
	}
	return out
}

// is tells whether an IPAddressPool is as it is to be.
func (s *Shown) is(p *metallbv1beta1.IPAddressPool) bool {
	return slices.Equal(s.addresses(), p.Spec.Addresses) && ptr.Deref(p.Spec.AutoAssign, true) == s.AutoAssign && p.Labels[ManagedLabel] == ManagedValue
}

// Takes tells whether showing these pools takes a range away from a workload cluster that it has now.
func (o *Observed) Takes(want []Shown) bool {
	for i := range o.pools {
		p := &o.pools[i]
		if !managed(p) {
			continue
		}
		at := slices.IndexFunc(want, func(s Shown) bool { return s.Name == p.Name })
		for _, text := range p.Spec.Addresses {
			if at < 0 || !slices.Contains(want[at].addresses(), text) {
				return true
			}
		}
	}
	return false
}

// Show applies the IPAddressPools that show the blocks of a workload cluster, and the L2Advertisement for them,
// as far as they are not so already (B53-B55). Those that are to go are taken away first: MetalLB refuses the
// whole configuration while two pools overlap. Pools of other names and without our label are left alone (B56).
// Where nothing is to be changed nothing is written.
func Show(ctx context.Context, tenant client.Client, o *Observed, want []Shown) error {
	for i := range o.pools {
		p := &o.pools[i]
		gone := !slices.ContainsFunc(want, func(s Shown) bool { return s.Name == p.Name })
		// A default-pool that somebody else made is taken over when there is something to show in it, not before.
		if p.Labels[ManagedLabel] != ManagedValue || !gone || p.DeletionTimestamp != nil {
			continue
		}
		if err := client.IgnoreNotFound(tenant.Delete(ctx, p, client.Preconditions{UID: &p.UID})); err != nil {
			return fmt.Errorf("deleting IPAddressPool %s: %w", p.Name, err)
		}
	}
	for i := range want {
		s := &want[i]
		addresses := s.addresses()
		if at := slices.IndexFunc(o.pools, func(p metallbv1beta1.IPAddressPool) bool { return p.Name == s.Name }); at >= 0 {
			p := &o.pools[at]
			if s.is(p) {
				continue
			}
			addresses = step(p, addresses)
		}
		if err := apply(ctx, tenant, "IPAddressPool", s.Name, map[string]any{"addresses": list(addresses), "autoAssign": s.AutoAssign}); err != nil {
			return err
		}
	}
	if len(want) == 0 || o.advertised {
		return nil
	}
	return apply(ctx, tenant, "L2Advertisement", DefaultPool, map[string]any{
		"ipAddressPoolSelectors": []any{map[string]any{"matchLabels": map[string]any{ManagedLabel: ManagedValue}}},
	})
}

func list(texts []string) []any {
	out := make([]any, 0, len(texts))
	for _, t := range texts {
		out = append(out, t)
	}
	return out
}

// step is what a pool is to have next. MetalLB acknowledges a change by counting the addresses of the pool: so
// nothing is added together with what is taken away, nor before that is counted.
func step(p *metallbv1beta1.IPAddressPool, want []string) []string {
	var stays, added []string
	for _, a := range want {
		if slices.Contains(p.Spec.Addresses, a) {
			stays = append(stays, a)
		} else {
			added = append(added, a)
		}
	}
	if len(stays) == 0 || len(added) == 0 || (len(stays) == len(p.Spec.Addresses) && counted(p)) {
		return want
	}
	return stays
}

// apply takes over what it says of an object, whoever said it before (B54).
func apply(ctx context.Context, tenant client.Client, kind, name string, spec map[string]any) error {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	u.SetGroupVersionKind(metallbv1beta1.GroupVersion.WithKind(kind))
	u.SetNamespace(Namespace)
	u.SetName(name)
	u.SetLabels(map[string]string{ManagedLabel: ManagedValue})
	if err := tenant.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), FieldOwner, client.ForceOwnership); err != nil {
		return fmt.Errorf("applying %s %s/%s: %w", kind, Namespace, name, err)
	}
	return nil
}

// advertises tells whether an L2Advertisement announces the pools that show blocks.
func advertises(a *metallbv1beta1.L2Advertisement) bool {
	return a.DeletionTimestamp == nil && slices.ContainsFunc(a.Spec.IPAddressPoolSelectors, func(s metav1.LabelSelector) bool {
		return s.MatchLabels[ManagedLabel] == ManagedValue
	})
}
