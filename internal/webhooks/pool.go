// Package webhooks rejects pools that cannot be served, with a message that names the next step. The reconciler reports
// the same errors: the manager is safe without webhooks.
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

// Updates that leave the spec as it is are not sent to the webhook: a pool can be paused, and our finalizer removed,
// while no manager answers. ValidateUpdate allows them all.

// SetupWithManager registers the webhooks of both kinds of pools, and of IPAllocations.
func SetupWithManager(mgr ctrl.Manager) error {
	use := &LiveHolderLister{Reader: mgr.GetAPIReader()}
	err := ctrl.NewWebhookManagedBy(mgr, &v1alpha1.NetworkPool{}).
		WithValidator(&PoolValidator[*v1alpha1.NetworkPool]{Holders: use, PoolReader: mgr.GetClient()}).Complete()
	if err != nil {
		return err
	}
	err = ctrl.NewWebhookManagedBy(mgr, &v1alpha1.IPAllocation{}).WithValidator(&AllocationValidator{Reader: mgr.GetClient()}).Complete()
	if err != nil {
		return err
	}
	return ctrl.NewWebhookManagedBy(mgr, &v1alpha1.GlobalNetworkPool{}).
		WithValidator(&PoolValidator[*v1alpha1.GlobalNetworkPool]{Holders: use, PoolReader: mgr.GetClient()}).Complete()
}

// PoolValidator validates pools of one kind.
type PoolValidator[P v1alpha1.Pool] struct {
	Holders    HolderLister
	PoolReader client.Reader // lists the pools that may overlap; a cache is enough for a warning
}

// ValidateCreate rejects a spec that cannot be served, and warns of an overlap.
func (v *PoolValidator[P]) ValidateCreate(ctx context.Context, pool P) (admission.Warnings, error) {
	layout, errs := poolspec.CompilePool(pool)
	more, refused := validateCarve(ctx, v.PoolReader, pool)
	if errs = append(errs, refused...); len(errs) > 0 {
		return nil, newInvalidError(pool, errs)
	}
	return append(more, warnSpec(ctx, v.PoolReader, pool, layout)...), nil
}

// ValidateUpdate also rejects a spec that would cut off addresses in use. It warns where the spec keeps an address for
// a name while another claimant has it, and of claimants that keep the gateway or the prefix length of before. It lists
// the holders only where the change can do one of these.
func (v *PoolValidator[P]) ValidateUpdate(ctx context.Context, oldPool, pool P) (admission.Warnings, error) {
	if pool.GetDeletionTimestamp() != nil || hasSameSpec(oldPool, pool) {
		return nil, nil
	}
	if ref, mirrors := incluster.MirroredPool(pool); mirrors {
		return nil, validateMirrorSpec(pool, ref)
	}
	layout, errs := poolspec.CompilePool(pool)
	if len(errs) > 0 {
		return nil, newInvalidError(pool, errs)
	}
	old, _ := poolspec.Compile(oldPool.PoolSpec(), oldPool.PoolStatus().Blocks...)
	var out admission.Warnings
	narrows, renetworks := poolspec.IsNarrowed(old, layout), poolspec.HasNetworkChanges(old, layout)
	if narrows || renetworks || poolspec.HasNewPins(old, layout) {
		holders, err := v.Holders.ListHolders(ctx, oldPool)
		switch {
		case err != nil && narrows:
			return nil, fmt.Errorf("finding the addresses in use: %w", err)
		case err != nil:
			out = admission.Warnings{"it could not be checked whether another name has an address of spec.preAllocations, or which claims keep another gateway or prefix length: " + err.Error()}
		}
		if errs := poolspec.ValidateNoCutOff(old, layout, holders); len(errs) > 0 {
			return nil, newInvalidError(pool, errs)
		}
		out = append(out, poolspec.PinsInUseWarnings(old, layout, holders)...)
		if renetworks {
			out = append(out, poolspec.KeptNetworkWarnings(layout, holders)...)
		}
	}
	return append(out, warnSpec(ctx, v.PoolReader, pool, layout)...), nil
}

// validateMirrorSpec rejects a spec that the manager has not translated from the pool of a reference. A spec that it
// has translated is written whatever it cuts off: that was decided in the mirrored pool.
func validateMirrorSpec(pool v1alpha1.Pool, ref ipamv1.IPPoolReference) error {
	if incluster.IsSpecSealed(pool) {
		return nil
	}
	return newInvalidError(pool, field.ErrorList{field.Forbidden(field.NewPath("spec"), fmt.Sprintf(
		"this pool mirrors %s, and the manager writes its spec; change that pool instead",
		pools.Key{Kind: ref.Kind, Namespace: pool.GetNamespace(), Name: ref.Name}))})
}

// warnSpec returns what a user should know of a spec that can be served.
func warnSpec(ctx context.Context, all client.Reader, pool v1alpha1.Pool, layout *poolspec.Layout) admission.Warnings {
	if pool.PoolSpec().Carve != nil {
		return nil // its addresses are in use in the pool that it is carved from
	}
	out := warnOverlaps(ctx, all, pool, layout)
	if empty := poolspec.NothingAllocatableMessage(layout, poolspec.AdviceAddAddresses); empty != "" {
		out = append(out, empty)
	}
	if lone := poolspec.UnknownNetworkMessage(layout); lone != "" {
		out = append(out, lone)
	}
	return out
}

// ValidateDelete allows every deletion: the finalizer keeps a pool that is in use.
func (v *PoolValidator[P]) ValidateDelete(context.Context, P) (admission.Warnings, error) {
	return nil, nil
}

// hasSameSpec reports whether the spec of a pool is unchanged.
func hasSameSpec(old, pool v1alpha1.Pool) bool {
	return equality.Semantic.DeepEqual(old.PoolSpec(), pool.PoolSpec()) &&
		equality.Semantic.DeepEqual(poolspec.NamespaceSelectorForPool(old), poolspec.NamespaceSelectorForPool(pool))
}

func newInvalidError(pool v1alpha1.Pool, errs field.ErrorList) error {
	return apierrors.NewInvalid(v1alpha1.GroupVersion.WithKind(kindForPool(pool)).GroupKind(), pool.GetName(), errs)
}

// kindForPool returns the kind of a pool, which typed objects do not carry.
func kindForPool(pool v1alpha1.Pool) string {
	if _, global := pool.(*v1alpha1.GlobalNetworkPool); global {
		return v1alpha1.GlobalNetworkPoolKind
	}
	return v1alpha1.NetworkPoolKind
}

// describePool names a pool in a message.
func describePool(pool v1alpha1.Pool) string {
	if pool.GetNamespace() == "" {
		return kindForPool(pool) + " " + pool.GetName()
	}
	return fmt.Sprintf("%s %s/%s", kindForPool(pool), pool.GetNamespace(), pool.GetName())
}
