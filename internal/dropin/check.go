package dropin

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
)

// PoolCheck is the result of the check of a pool of the in-cluster provider: whether and how a manager would serve it
// in that provider's place.
type PoolCheck struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Served reports whether a manager would serve the pool; Reason is the reason why not.
	Served bool   `json:"served"`
	Reason string `json:"why,omitempty"`
	// Notes list the fields that the mirror expresses differently, with the same meaning.
	Notes []string `json:"notes,omitempty"`
}

// CheckPools checks the global pools and all pools of a namespace; an empty namespace means all.
func CheckPools(ctx context.Context, from client.Reader, namespace string) ([]PoolCheck, error) {
	out := []PoolCheck{}
	for _, k := range incluster.PoolKinds {
		items, err := listSourcePools(ctx, from, k, namespace)
		if err != nil {
			return nil, err
		}
		for i := range items {
			out = append(out, checkPool(k, &items[i]))
		}
	}
	return out, nil
}

// checkPool checks one pool.
func checkPool(k incluster.PoolKind, pool *unstructured.Unstructured) PoolCheck {
	out := PoolCheck{Kind: k.Name, Namespace: pool.GetNamespace(), Name: pool.GetName()}
	mirror, err := incluster.MirrorForPool(k, pool)
	if err != nil {
		out.Reason = err.Error()
		return out
	}
	out.Served, out.Notes = true, mirror.Notes
	if mirror.Gateway != "" && !k.IsPrefixPool {
		out.Notes = append(out.Notes, "the gateway "+mirror.Gateway+" is in no network of the pool: IPAddresses name it all the same")
	}
	return out
}

// listSourcePools lists the pools of a kind; none where the API server does not have the kind.
func listSourcePools(ctx context.Context, from client.Reader, k incluster.PoolKind, namespace string) ([]unstructured.Unstructured, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(incluster.GroupVersion.WithKind(k.Name + "List"))
	err := from.List(ctx, list, client.InNamespace(namespace))
	if meta.IsNoMatchError(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing the pools of kind %s: %w", k.Name, err)
	}
	return list.Items, nil
}
