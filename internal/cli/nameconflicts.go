package cli

import (
	"context"
	"fmt"
	"slices"

	m3ipamv1 "github.com/metal3-io/ip-address-manager/api/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// addMetal3NameConflicts adds the pools of Metal3 that have the name of one of ours: Metal3's IPAM would also serve the
// claims of our pool.
func (a *auditResult) addMetal3NameConflicts(ctx context.Context, from client.Reader, all []v1alpha1.Pool) error {
	metal3Pools := &m3ipamv1.IPPoolList{}
	err := from.List(ctx, metal3Pools)
	if meta.IsNoMatchError(err) || apierrors.IsForbidden(err) {
		return nil // there are none, or the user may not list them
	}
	if err != nil {
		return fmt.Errorf("listing the IPPools of Metal3: %w", err)
	}
	a.ProviderConflicts = append(a.ProviderConflicts, formatMetal3NameConflicts(all, metal3Pools.Items)...)
	return nil
}

func formatMetal3NameConflicts(all []v1alpha1.Pool, metal3Pools []m3ipamv1.IPPool) (out []string) {
	for _, t := range metal3Pools {
		if slices.ContainsFunc(all, func(p v1alpha1.Pool) bool {
			return p.GetName() == t.Name && (p.GetNamespace() == "" || p.GetNamespace() == t.Namespace)
		}) {
			out = append(out, fmt.Sprintf("Metal3 has an IPPool %s/%s, and its IPAM gives addresses to claims on any pool of that name: "+
				"delete it, and have nothing make it again (docs/consumers.md#from-metal3s-ippool)", t.Namespace, t.Name))
		}
	}
	return out
}
