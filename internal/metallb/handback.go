package metallb

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
)

// originalPool is the state of an IPAddressPool before it was handed over, as far as this controller overwrites it.
type originalPool struct {
	Addresses  []string `json:"addresses"`
	AutoAssign *bool    `json:"autoAssign,omitempty"`
	ManagedBy  string   `json:"managedBy,omitempty"`
}

// recordOriginalPool records in an annotation the state that an IPAddressPool had when it was handed over.
func recordOriginalPool(u *unstructured.Unstructured, pool *metallbv1beta1.IPAddressPool) error {
	text, kept := pool.Annotations[v1alpha1.HandedOverAnnotation]
	switch {
	case balancer.IsHandedOver(pool):
		raw, err := json.Marshal(originalPool{pool.Spec.Addresses, pool.Spec.AutoAssign, pool.Labels[balancer.ManagedByLabel]})
		if err != nil {
			return fmt.Errorf("noting what IPAddressPool %s had: %w", pool.Name, err)
		}
		text = string(raw)
	case !kept:
		return nil
	}
	u.SetAnnotations(map[string]string{v1alpha1.HandedOverAnnotation: text})
	return nil
}

// parseOriginalPool returns the state of an IPAddressPool before it was handed over. ok is false, and the pool is
// not returned to its owner, if that state is not on record or overlaps with the current addresses: another Cluster
// can get those from now on.
func parseOriginalPool(p *metallbv1beta1.IPAddressPool) (had originalPool, ok bool) {
	if json.Unmarshal([]byte(p.Annotations[v1alpha1.HandedOverAnnotation]), &had) != nil || len(had.Addresses) == 0 {
		return had, false
	}
	return had, !slices.ContainsFunc(had.Addresses, func(text string) bool {
		r, err := parseRange(text)
		return err != nil || overlapsRange(p, r)
	})
}

// deleteOrRestorePool deletes an IPAddressPool that contains no block any more, or returns it to the owner that
// handed it over.
func deleteOrRestorePool(ctx context.Context, tenant client.Client, p *metallbv1beta1.IPAddressPool) error {
	had, ok := parseOriginalPool(p)
	if !ok {
		if err := client.IgnoreNotFound(exact.DeleteWithPreconditions(ctx, tenant, p)); err != nil {
			return fmt.Errorf("deleting IPAddressPool %s: %w", p.Name, err)
		}
		return nil
	}
	to, wait, err := nextCountableAddresses(ctx, tenant, p, had.Addresses)
	if wait || err != nil {
		return err // a change of its count, or of avoidBuggyIPs (see CheckReleased), triggers a reconcile
	}
	patch := map[string]any{
		"metadata": map[string]any{
			"uid": p.UID, "resourceVersion": p.ResourceVersion,
			"labels": map[string]any{balancer.ManagedByLabel: nullIfEmpty(had.ManagedBy)}, "annotations": map[string]any{v1alpha1.HandedOverAnnotation: nil},
		},
		"spec": map[string]any{"addresses": to, "autoAssign": had.AutoAssign},
	}
	if !slices.Equal(to, had.Addresses) { // MetalLB has to count in between
		patch = map[string]any{"metadata": map[string]any{"uid": p.UID, "resourceVersion": p.ResourceVersion}, "spec": map[string]any{"addresses": to}}
	} else if err := dropOwnManagedFields(ctx, tenant, p, patch); err != nil {
		return err
	}
	raw, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("giving IPAddressPool %s back: %w", p.Name, err)
	}
	if err := tenant.Patch(ctx, p.DeepCopy(), client.RawPatch(types.MergePatchType, raw), ReturnedFieldOwner); err != nil {
		return fmt.Errorf("giving IPAddressPool %s back: %w", p.Name, err)
	}
	return nil
}

// dropOwnManagedFields makes a patch remove our entries from the managed fields. It reads the object live, because
// the cache keeps only the managers.
func dropOwnManagedFields(ctx context.Context, tenant client.Client, p *metallbv1beta1.IPAddressPool, patch map[string]any) error {
	now := &metallbv1beta1.IPAddressPool{}
	if err := tenant.Get(ctx, client.ObjectKeyFromObject(p), now); err != nil {
		return fmt.Errorf("reading IPAddressPool %s: %w", p.Name, err)
	}
	meta, ok := patch["metadata"].(map[string]any)
	if ok {
		meta["managedFields"] = slices.DeleteFunc(slices.Clone(now.ManagedFields), balancer.IsOwnManagedFields)
	}
	return nil
}

func nullIfEmpty(text string) any {
	if text == "" {
		return nil
	}
	return text
}
