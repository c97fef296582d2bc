// Package webhooks refuses pools that cannot be served, with a message that says what to do. What it
// refuses the reconciler reports too: the manager is safe without webhooks.
package webhooks

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// +kubebuilder:webhook:path=/validate-butler-butlerlabs-dev-v1alpha1-networkpool,mutating=false,failurePolicy=fail,sideEffects=None,matchPolicy=Equivalent,groups=butler.butlerlabs.dev,resources=networkpools,verbs=create;update,versions=v1alpha1,name=validation.networkpool.butler.butlerlabs.dev,admissionReviewVersions=v1
// +kubebuilder:webhook:path=/validate-butler-butlerlabs-dev-v1alpha1-globalnetworkpool,mutating=false,failurePolicy=fail,sideEffects=None,matchPolicy=Equivalent,groups=butler.butlerlabs.dev,resources=globalnetworkpools,verbs=create;update,versions=v1alpha1,name=validation.globalnetworkpool.butler.butlerlabs.dev,admissionReviewVersions=v1

// SetupWithManager serves the webhooks of both kinds of pools.
func SetupWithManager(mgr ctrl.Manager) error {
	use := &Live{Reader: mgr.GetAPIReader()}
	err := ctrl.NewWebhookManagedBy(mgr, &v1alpha1.NetworkPool{}).
		WithValidator(&Pools[*v1alpha1.NetworkPool]{Use: use, Cached: mgr.GetClient()}).Complete()
	if err != nil {
		return err
	}
	return ctrl.NewWebhookManagedBy(mgr, &v1alpha1.GlobalNetworkPool{}).
		WithValidator(&Pools[*v1alpha1.GlobalNetworkPool]{Use: use, Cached: mgr.GetClient()}).Complete()
}

// InUse finds who holds addresses of a pool now.
type InUse interface {
	Holders(ctx context.Context, pool v1alpha1.Pool) ([]poolspec.Holder, error)
}

// Pools validates pools of one kind.
type Pools[P v1alpha1.Pool] struct {
	Use    InUse
	Cached client.Reader
}

// ValidateCreate refuses a spec that cannot be served, and warns of an overlap.
func (v *Pools[P]) ValidateCreate(ctx context.Context, pool P) (admission.Warnings, error) {
	layout, errs := poolspec.Compile(pool.PoolSpec())
	if len(errs) > 0 {
		return nil, invalid(pool, errs)
	}
	return v.overlaps(ctx, pool, layout), nil
}

// ValidateUpdate also refuses a spec that would cut off addresses in use.
func (v *Pools[P]) ValidateUpdate(ctx context.Context, was, pool P) (admission.Warnings, error) {
	if pool.GetDeletionTimestamp() != nil || equality.Semantic.DeepEqual(was.PoolSpec(), pool.PoolSpec()) {
		return nil, nil
	}
	layout, errs := poolspec.Compile(pool.PoolSpec())
	if len(errs) > 0 {
		return nil, invalid(pool, errs)
	}
	holders, err := v.Use.Holders(ctx, was)
	if err != nil {
		return nil, fmt.Errorf("finding the addresses in use: %w", err)
	}
	old, _ := poolspec.Compile(was.PoolSpec())
	if errs := poolspec.CutOff(old, layout, holders); len(errs) > 0 {
		return nil, invalid(pool, errs)
	}
	return v.overlaps(ctx, pool, layout), nil
}

// ValidateDelete allows it: the finalizer keeps a pool that is in use.
func (v *Pools[P]) ValidateDelete(context.Context, P) (admission.Warnings, error) { return nil, nil }

func invalid(pool v1alpha1.Pool, errs field.ErrorList) error {
	kind := v1alpha1.NetworkPoolKind
	if pool.GetNamespace() == "" {
		kind = v1alpha1.GlobalNetworkPoolKind
	}
	return apierrors.NewInvalid(v1alpha1.GroupVersion.WithKind(kind).GroupKind(), pool.GetName(), errs)
}

// overlaps warns of other pools of the same network that have some of the addresses (W13).
func (v *Pools[P]) overlaps(ctx context.Context, pool v1alpha1.Pool, layout *poolspec.Layout) admission.Warnings {
	var warnings admission.Warnings
	others, err := allPools(ctx, v.Cached)
	if err != nil {
		return admission.Warnings{"it could not be checked whether another pool has the same addresses: " + err.Error()}
	}
	for _, other := range others {
		same := other.GetNamespace() == pool.GetNamespace() && other.GetName() == pool.GetName()
		if same || other.PoolSpec().Network != pool.PoolSpec().Network {
			continue
		}
		theirs, errs := poolspec.Compile(other.PoolSpec())
		if len(errs) > 0 {
			continue
		}
		for _, r := range poolspec.Overlap(layout, theirs) {
			warnings = append(warnings, fmt.Sprintf(
				"pool %s has %s too; the younger pool will grant nothing unless the two name different values of spec.network or it sets spec.allowOverlap",
				client.ObjectKeyFromObject(other), poolutil.FormatRange(r)))
			break
		}
	}
	return warnings
}

func allPools(ctx context.Context, r client.Reader) ([]v1alpha1.Pool, error) {
	local, global := &v1alpha1.NetworkPoolList{}, &v1alpha1.GlobalNetworkPoolList{}
	for _, list := range []client.ObjectList{local, global} {
		if err := r.List(ctx, list); err != nil {
			return nil, err
		}
	}
	out := make([]v1alpha1.Pool, 0, len(local.Items)+len(global.Items))
	for i := range local.Items {
		out = append(out, &local.Items[i])
	}
	for i := range global.Items {
		out = append(out, &global.Items[i])
	}
	return out, nil
}
