package tenant

import (
	"context"
	"fmt"
	"slices"

	"go4.org/netipx"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/lookup"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/blocks"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metallb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// rangeOf is the block of an allocation, as far as it was granted.
func rangeOf(a *v1alpha1.IPAllocation) (netipx.IPRange, bool) {
	if a.Status.Phase != v1alpha1.AllocationAllocated && living(a) {
		return netipx.IPRange{}, false
	}
	return blocks.RangeOf(a)
}

// refused reports whether an allocation was asked for and not granted: its place in the pool is not taken.
func refused(a *v1alpha1.IPAllocation) bool {
	_, granted := rangeOf(a)
	return !granted && a.Status.Phase == v1alpha1.AllocationFailed
}

// describe is what is decided upon: all blocks but those that no pool has room for.
func (t *tenant) describe() []elastic.Block {
	var out []elastic.Block
	for _, a := range t.blocks {
		if refused(a) {
			continue
		}
		b := elastic.Block{
			Name: a.Name, Count: a.Status.AllocatedCount, Pinned: a.Spec.PinnedRange != nil,
			Grown:    tenancy.Role(a) == v1alpha1.GrowthRole,
			Deleting: !living(a),
			Draining: meta.IsStatusConditionTrue(a.Status.Conditions, v1alpha1.DrainingCondition),
		}
		if r, granted := rangeOf(a); granted {
			b.Range, b.Family = r, elastic.FamilyOf(r.From())
		} else if a.Spec.Count != nil {
			b.Count = int64(*a.Spec.Count)
		}
		if in := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.InUseCondition); in != nil && in.Status == metav1.ConditionFalse {
			b.IdleSince = in.LastTransitionTime.Time
		}
		out = append(out, b)
	}
	return out
}

// living is true of blocks that nobody has given up for good; staying, of those that are not being taken away.
func living(a *v1alpha1.IPAllocation) bool { return a.DeletionTimestamp.IsZero() }

func staying(a *v1alpha1.IPAllocation) bool {
	return living(a) && !meta.IsStatusConditionTrue(a.Status.Conditions, v1alpha1.DrainingCondition)
}

// shown are the pools of MetalLB that show those blocks that are wanted; those that are being taken away come
// last. A block with a pool of its own serves no new Services before it is taken away.
func (t *tenant) shown(s settings, want func(*v1alpha1.IPAllocation) bool) []metallb.Shown {
	var out []metallb.Shown
	var leaving []netipx.IPRange
	for _, a := range t.blocks {
		r, granted := rangeOf(a)
		switch {
		case !granted:
		case s.projection == v1alpha1.PoolPerAllocationProjection:
			if want(a) || !t.notes.quiet(a.UID) {
				out = append(out, metallb.Shown{Name: a.Name, Ranges: []netipx.IPRange{r}, AutoAssign: want(a), Leaving: !staying(a)})
			}
		case !want(a):
		case len(out) == 0:
			out = append(out, metallb.Shown{Name: metallb.DefaultPool, Ranges: []netipx.IPRange{r}, AutoAssign: true})
		case !staying(a):
			leaving = append(leaving, r)
		default:
			out[0].Ranges = append(out[0].Ranges, r)
		}
	}
	if len(leaving) > 0 {
		out[0].Ranges = append(out[0].Ranges, leaving...)
	}
	return out
}

// show brings MetalLB's pools in line with the blocks. Before a Cluster is shown a block, the block cannot be
// deleted without us; before something is changed, what exists is read live: the watch may be behind what another
// manager has given it, or taken away and given back.
func (t *tenant) show(ctx context.Context, observed *metallb.Observed, s settings) error {
	for i, a := range t.blocks {
		if _, granted := rangeOf(a); !granted || tenancy.Projected(a) || !staying(a) {
			continue
		}
		before := a.DeepCopy()
		controllerutil.AddFinalizer(a, v1alpha1.TenantPoolFinalizer)
		if err := t.Client.Patch(ctx, a, guard.SinceRead(before)); err != nil {
			return client.IgnoreNotFound(err)
		}
		t.blocks[i] = a
		t.Blocks.Observe(a)
	}
	want := t.shown(s, staying)
	if observed.Changes(want) {
		changed, err := t.reread(ctx)
		if err != nil {
			return err
		}
		if changed {
			t.soon(0)
			return nil
		}
	}
	if err := metallb.Show(ctx, t.live, observed, want); err != nil {
		return fmt.Errorf("showing Cluster %s its blocks: %w", t.key, err)
	}
	return nil
}

// reread reads the Cluster's blocks live, and reports whether they are others than was known.
func (t *tenant) reread(ctx context.Context) (changed bool, err error) {
	all, err := lookup.BlocksOf(ctx, t.Live, t.ref, "")
	if err != nil {
		return false, err
	}
	known, exist := map[types.UID]string{}, map[types.UID]struct{}{}
	for _, a := range t.blocks {
		known[a.UID] = a.ResourceVersion
	}
	for _, a := range all {
		exist[a.UID] = struct{}{}
		if a.Spec.Type == v1alpha1.LoadBalancerAllocation {
			changed = changed || known[a.UID] != a.ResourceVersion
			t.Blocks.Observe(a)
		}
	}
	for _, a := range t.blocks {
		if _, does := exist[a.UID]; does {
			continue
		}
		current := &v1alpha1.IPAllocation{} // it may have lost its labels, and nothing else
		err := t.Live.Get(ctx, client.ObjectKeyFromObject(a), current)
		if apierrors.IsNotFound(err) || (err == nil && current.UID != a.UID) {
			changed = true
			t.Blocks.Forget(a)
		} else if err != nil {
			return false, fmt.Errorf("reading IPAllocation %s: %w", client.ObjectKeyFromObject(a), err)
		}
	}
	return changed, nil
}

// patchStatus changes the conditions of a block.
func (t *tenant) patchStatus(ctx context.Context, a *v1alpha1.IPAllocation, change func(*[]metav1.Condition)) error {
	before := a.DeepCopy()
	change(&a.Status.Conditions)
	if slices.EqualFunc(before.Status.Conditions, a.Status.Conditions, func(x, y metav1.Condition) bool { return x == y }) {
		return nil
	}
	err := t.Client.Status().Patch(ctx, a, guard.SinceRead(before))
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("writing the conditions of IPAllocation %s: %w", client.ObjectKeyFromObject(a), err)
	}
	t.Blocks.Observe(a)
	return nil
}

// block finds a block by name.
func (t *tenant) block(name string) *v1alpha1.IPAllocation {
	for _, a := range t.blocks {
		if a.Name == name {
			return a
		}
	}
	return nil
}
