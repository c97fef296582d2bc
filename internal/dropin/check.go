package dropin

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
)

// Pool is a pool of the in-cluster provider, as a manager in its place would take it.
type Pool struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Served: it would be served. If not, Why says what is in the way.
	Served bool   `json:"served"`
	Why    string `json:"why,omitempty"`
	// Notes are what the mirror says differently and means the same.
	Notes []string `json:"notes,omitempty"`
}

// Check returns all pools of a namespace, of all if it is empty, and the global ones.
func Check(ctx context.Context, from client.Reader, namespace string) ([]Pool, error) {
	out := []Pool{}
	for _, k := range incluster.Kinds {
		items, err := sources(ctx, from, k, namespace)
		if err != nil {
			return nil, err
		}
		for i := range items {
			out = append(out, check(k, &items[i]))
		}
	}
	return out, nil
}

// check looks at one pool.
func check(k incluster.Kind, pool *unstructured.Unstructured) Pool {
	out := Pool{Kind: k.Name, Namespace: pool.GetNamespace(), Name: pool.GetName()}
	mirror, err := incluster.MirrorOfPool(k, pool)
	if err != nil {
		out.Why = err.Error()
		return out
	}
	out.Served, out.Notes = true, mirror.Notes
	if mirror.Gateway != "" && !k.Prefixes {
		out.Notes = append(out.Notes, "the gateway "+mirror.Gateway+" is in no network of the pool: IPAddresses name it all the same")
	}
	return out
}

// sources lists the pools of a kind; none where the API server does not know it.
func sources(ctx context.Context, from client.Reader, k incluster.Kind, namespace string) ([]unstructured.Unstructured, error) {
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
