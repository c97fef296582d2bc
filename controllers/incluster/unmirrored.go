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

// Unmirrored returns a function that says why there is no mirror of a name: what the event NotServed on the pool says,
// or that there is no pool. It is empty for what is no name of a mirror.
func Unmirrored(from client.Reader) func(context.Context, pools.Key) string {
	return func(ctx context.Context, key pools.Key) string {
		ref, is := incluster.MirroredBy(key.Kind, key.Name)
		i := slices.IndexFunc(incluster.Kinds, func(k incluster.Kind) bool { return k.Name == ref.Kind })
		if !is || i < 0 {
			return ""
		}
		source := pools.Key{Kind: ref.Kind, Namespace: key.Namespace, Name: ref.Name}
		pool := incluster.Kinds[i].New()
		err := from.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: ref.Name}, pool)
		if err == nil {
			_, err = incluster.MirrorOfPool(incluster.Kinds[i], pool)
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
