// Package webhooks refuses pools that cannot be served, with a message that says what to do. What it
// refuses the reconciler reports too: the manager is safe without webhooks.
package webhooks

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
)

// +kubebuilder:webhook:path=/validate-butler-butlerlabs-dev-v1alpha1-networkpool,mutating=false,failurePolicy=fail,sideEffects=None,matchPolicy=Equivalent,groups=butler.butlerlabs.dev,resources=networkpools,verbs=create;update,versions=v1alpha1,name=validation.networkpool.butler.butlerlabs.dev,admissionReviewVersions=v1,patch=`{"matchConditions":[{"name":"spec-is-new","expression":"oldObject == null || object.spec != oldObject.spec"}]}`
// +kubebuilder:webhook:path=/validate-butler-butlerlabs-dev-v1alpha1-globalnetworkpool,mutating=false,failurePolicy=fail,sideEffects=None,matchPolicy=Equivalent,groups=butler.butlerlabs.dev,resources=globalnetworkpools,verbs=create;update,versions=v1alpha1,name=validation.globalnetworkpool.butler.butlerlabs.dev,admissionReviewVersions=v1,patch=`{"matchConditions":[{"name":"spec-is-new","expression":"oldObject == null || object.spec != oldObject.spec"}]}`

// Updates that leave the spec as it is are not sent here: a pool can be paused, and our finalizer taken off, while no manager
// answers. ValidateUpdate allows them all.

// SetupWithManager serves the webhooks of both kinds of pools, and of IPAllocations.
func SetupWithManager(mgr ctrl.Manager) error {
	use := &Live{Reader: mgr.GetAPIReader()}
	err := ctrl.NewWebhookManagedBy(mgr, &v1alpha1.NetworkPool{}).
		WithValidator(&Pools[*v1alpha1.NetworkPool]{Use: use, All: mgr.GetClient()}).Complete()
	if err != nil {
		return err
	}
	err = ctrl.NewWebhookManagedBy(mgr, &v1alpha1.IPAllocation{}).WithValidator(&Allocations{Reader: mgr.GetClient()}).Complete()
	if err != nil {
		return err
	}
	return ctrl.NewWebhookManagedBy(mgr, &v1alpha1.GlobalNetworkPool{}).
		WithValidator(&Pools[*v1alpha1.GlobalNetworkPool]{Use: use, All: mgr.GetClient()}).Complete()
}

// Pools validates pools of one kind.
type Pools[P v1alpha1.Pool] struct {
	Use InUse
	All client.Reader // lists the pools that may overlap; a cache will do, for a warning
}

// ValidateCreate refuses a spec that cannot be served, and warns of an overlap.
func (v *Pools[P]) ValidateCreate(ctx context.Context, pool P) (admission.Warnings, error) {
	layout, errs := poolspec.Of(pool)
	more, refused := carved(ctx, v.All, pool)
	if errs = append(errs, refused...); len(errs) > 0 {
		return nil, invalid(pool, errs)
	}
	return append(more, warnings(ctx, v.All, pool, layout)...), nil
}

// ValidateUpdate also refuses a spec that would cut off addresses in use, and warns where it keeps one for a name that
// another has, and of who keeps the gateway or the prefix length of before. What cannot do any of that is not looked up.
func (v *Pools[P]) ValidateUpdate(ctx context.Context, was, pool P) (admission.Warnings, error) {
	if pool.GetDeletionTimestamp() != nil || sameSpec(was, pool) {
		return nil, nil
	}
	if ref, mirrors := incluster.MirroredPool(pool); mirrors {
		return nil, ofMirror(pool, ref)
	}
	layout, errs := poolspec.Of(pool)
	if len(errs) > 0 {
		return nil, invalid(pool, errs)
	}
	old, _ := poolspec.Compile(was.PoolSpec(), was.PoolStatus().Blocks...)
	var out admission.Warnings
	narrows, renetworks := poolspec.Narrows(old, layout), poolspec.Renetworks(old, layout)
	if narrows || renetworks || poolspec.AddsPins(old, layout) {
		holders, err := v.Use.Holders(ctx, was)
		switch {
		case err != nil && narrows:
			return nil, fmt.Errorf("finding the addresses in use: %w", err)
		case err != nil:
			out = admission.Warnings{"it could not be checked whether another name has an address of spec.preAllocations, or who keeps another gateway or prefix length: " + err.Error()}
		}
		if errs := poolspec.CutOff(old, layout, holders); len(errs) > 0 {
			return nil, invalid(pool, errs)
		}
		out = append(out, poolspec.PinsInUse(old, layout, holders)...)
		if renetworks {
			out = append(out, poolspec.Kept(layout, holders)...)
		}
	}
	return append(out, warnings(ctx, v.All, pool, layout)...), nil
}

// ofMirror refuses a spec that is not what the manager has translated from the pool of a reference. What it has is
// written whatever it cuts off: that was decided in the pool which is mirrored.
func ofMirror(pool v1alpha1.Pool, ref ipamv1.IPPoolReference) error {
	if incluster.Sealed(pool) {
		return nil
	}
	return invalid(pool, field.ErrorList{field.Forbidden(field.NewPath("spec"), fmt.Sprintf(
		"this pool mirrors %s, and the manager writes its spec; change that pool instead",
		pools.Key{Kind: ref.Kind, Namespace: pool.GetNamespace(), Name: ref.Name}))})
}

// warnings are what a person should know of a spec that can be served.
func warnings(ctx context.Context, all client.Reader, pool v1alpha1.Pool, layout *poolspec.Layout) admission.Warnings {
	if pool.PoolSpec().Carve != nil {
		return nil // its addresses are in use in the pool that it is carved from
	}
	out := overlaps(ctx, all, pool, layout)
	if empty := poolspec.NothingLeft(layout, poolspec.AddOrReserve); empty != "" {
		out = append(out, empty)
	}
	if lone := poolspec.NoNetwork(layout); lone != "" {
		out = append(out, lone)
	}
	return out
}

// ValidateDelete allows it: the finalizer keeps a pool that is in use.
func (v *Pools[P]) ValidateDelete(context.Context, P) (admission.Warnings, error) { return nil, nil }

// sameSpec reports whether nothing of the spec of a pool is changed.
func sameSpec(was, is v1alpha1.Pool) bool {
	return equality.Semantic.DeepEqual(was.PoolSpec(), is.PoolSpec()) &&
		equality.Semantic.DeepEqual(poolspec.SelectorOf(was), poolspec.SelectorOf(is))
}

func invalid(pool v1alpha1.Pool, errs field.ErrorList) error {
	return apierrors.NewInvalid(v1alpha1.GroupVersion.WithKind(kindOf(pool)).GroupKind(), pool.GetName(), errs)
}

// kindOf is the kind of a pool, which typed objects do not carry.
func kindOf(pool v1alpha1.Pool) string {
	if _, global := pool.(*v1alpha1.GlobalNetworkPool); global {
		return v1alpha1.GlobalNetworkPoolKind
	}
	return v1alpha1.NetworkPoolKind
}

// describe names a pool in a message.
func describe(pool v1alpha1.Pool) string {
	if pool.GetNamespace() == "" {
		return kindOf(pool) + " " + pool.GetName()
	}
	return fmt.Sprintf("%s %s/%s", kindOf(pool), pool.GetNamespace(), pool.GetName())
}
