package cli

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// readPool reads the pool that the user names.
func (p *plugin) readPool(ctx context.Context, c client.Client, arg string) (pools.Key, v1alpha1.Pool, error) {
	key, err := p.parsePoolKey(arg)
	if err != nil {
		return key, nil, err
	}
	obj, err := key.GetPool(ctx, c)
	switch {
	case apierrors.IsNotFound(err) && !strings.Contains(arg, "/"):
		return key, nil, fmt.Errorf("%s does not exist; is it a global one? Then write gnp/%s", key, arg)
	case err != nil:
		return key, nil, fmt.Errorf("reading %s: %w", key, err)
	}
	return key, obj, nil
}

// parsePoolKey parses the name of a pool as users write it: NAME, np/NAME or gnp/NAME.
func (p *plugin) parsePoolKey(arg string) (pools.Key, error) {
	namespace, _, err := p.currentNamespace()
	if err != nil {
		return pools.Key{}, err
	}
	kind, name, typed := strings.Cut(arg, "/")
	if !typed {
		kind, name = "np", arg
	}
	if name == "" || strings.Contains(name, "/") {
		return pools.Key{}, fmt.Errorf("%q is not the name of a pool: write NAME or gnp/NAME", arg)
	}
	switch strings.ToLower(kind) {
	case "np", "networkpool", "networkpools":
		return pools.Key{Kind: v1alpha1.NetworkPoolKind, Namespace: namespace, Name: name}, nil
	case "gnp", "globalnetworkpool", "globalnetworkpools":
		return pools.Key{Kind: v1alpha1.GlobalNetworkPoolKind, Name: name}, nil
	}
	return pools.Key{}, fmt.Errorf("%q is no kind of pool: write NAME, np/NAME or gnp/NAME", kind)
}
