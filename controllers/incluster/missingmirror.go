package incluster

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// NewMissingMirrorLookup returns a function that returns why there is no mirror of a name: the text of the event
// NotServed on the pool, or that there is no pool. The text is empty if the name is not that of a mirror.
func NewMissingMirrorLookup(from client.Reader) func(context.Context, pools.Key) string {
	return func(ctx context.Context, key pools.Key) string {
		ref, ok := incluster.RefForMirror(key.Kind, key.Name)
		i := slices.IndexFunc(incluster.PoolKinds, func(k incluster.PoolKind) bool { return k.Name == ref.Kind })
		if !ok || i < 0 {
			return ""
		}
		source := pools.Key{Kind: ref.Kind, Namespace: key.Namespace, Name: ref.Name}
		pool := incluster.PoolKinds[i].NewPool()
		err := from.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: ref.Name}, pool)
		if err == nil {
			_, err = incluster.MirrorForPool(incluster.PoolKinds[i], pool)
		}
		switch {
		case apierrors.IsNotFound(err):
			return fmt.Sprintf("%s does not exist; create it, or create this object again with the right poolRef", source)
		case err != nil:
			return fmt.Sprintf("%s: %v", source, err)
		}
		return fmt.Sprintf("%s has no mirror yet; if that stays, its events say why", source)
	}
}
