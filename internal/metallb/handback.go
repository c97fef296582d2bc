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

// before is what an IPAddressPool that was handed over had, of what we write.
type before struct {
	Addresses  []string `json:"addresses"`
	AutoAssign *bool    `json:"autoAssign,omitempty"`
	ManagedBy  string   `json:"managedBy,omitempty"`
}

// keepBefore has an IPAddressPool remember what it had when it was handed over.
func keepBefore(u *unstructured.Unstructured, was *metallbv1beta1.IPAddressPool) error {
	text, kept := was.Annotations[v1alpha1.HandedOverAnnotation]
	switch {
	case balancer.HandedOver(was):
		raw, err := json.Marshal(before{was.Spec.Addresses, was.Spec.AutoAssign, was.Labels[balancer.ManagedLabel]})
		if err != nil {
			return fmt.Errorf("noting what IPAddressPool %s had: %w", was.Name, err)
		}
		text = string(raw)
	case !kept:
		return nil
	}
	u.SetAnnotations(map[string]string{v1alpha1.HandedOverAnnotation: text})
	return nil
}

// beforeHandOver is what an IPAddressPool had before it was handed over. It is not given back if that is not on record, or
// has something of what it shows now: those addresses are somebody else's from then on.
func beforeHandOver(p *metallbv1beta1.IPAddressPool) (had before, gives bool) {
	if json.Unmarshal([]byte(p.Annotations[v1alpha1.HandedOverAnnotation]), &had) != nil || len(had.Addresses) == 0 {
		return had, false
	}
	return had, !slices.ContainsFunc(had.Addresses, func(text string) bool {
		r, err := rangeOf(text)
		return err != nil || overlaps(p, r)
	})
}

// giveUp takes an IPAddressPool away that shows no block any more, or gives it back to whoever handed it over.
func giveUp(ctx context.Context, tenant client.Client, p *metallbv1beta1.IPAddressPool) error {
	had, gives := beforeHandOver(p)
	if !gives {
		if err := client.IgnoreNotFound(exact.Delete(ctx, tenant, p)); err != nil {
			return fmt.Errorf("deleting IPAddressPool %s: %w", p.Name, err)
		}
		return nil
	}
	to, wait, err := next(ctx, tenant, p, had.Addresses)
	if wait || err != nil {
		return err // a change of the pool wakes who shows: its count, or that of avoidBuggyIPs, where no count would show it (LetGo says so)
	}
	patch := map[string]any{
		"metadata": map[string]any{
			"uid": p.UID, "resourceVersion": p.ResourceVersion,
			"labels": map[string]any{balancer.ManagedLabel: orNull(had.ManagedBy)}, "annotations": map[string]any{v1alpha1.HandedOverAnnotation: nil},
		},
		"spec": map[string]any{"addresses": to, "autoAssign": had.AutoAssign},
	}
	if !slices.Equal(to, had.Addresses) { // MetalLB has to count in between
		patch = map[string]any{"metadata": map[string]any{"uid": p.UID, "resourceVersion": p.ResourceVersion}, "spec": map[string]any{"addresses": to}}
	} else if err := letGoOfFields(ctx, tenant, p, patch); err != nil {
		return err
	}
	raw, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("giving IPAddressPool %s back: %w", p.Name, err)
	}
	if err := tenant.Patch(ctx, p.DeepCopy(), client.RawPatch(types.MergePatchType, raw), FieldReturner); err != nil {
		return fmt.Errorf("giving IPAddressPool %s back: %w", p.Name, err)
	}
	return nil
}

// letGoOfFields has a patch leave none of the fields to us. The cache knows only whose they are, so they are read.
func letGoOfFields(ctx context.Context, tenant client.Client, p *metallbv1beta1.IPAddressPool, patch map[string]any) error {
	now := &metallbv1beta1.IPAddressPool{}
	if err := tenant.Get(ctx, client.ObjectKeyFromObject(p), now); err != nil {
		return fmt.Errorf("reading IPAddressPool %s: %w", p.Name, err)
	}
	meta, is := patch["metadata"].(map[string]any)
	if is {
		meta["managedFields"] = slices.DeleteFunc(slices.Clone(now.ManagedFields), balancer.IsOurs)
	}
	return nil
}

func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}
