package metallb

import (
	"context"
	"fmt"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// create makes an IPAddressPool that was not observed. If there is one nevertheless, that is a conflict like any other.
//
// Server-side apply would write over that one: it cannot be told to make what does not exist and nothing else. So the
// pool is created, and what was created is applied (ADR 13).
func create(ctx context.Context, tenant client.Client, d *elastic.Desired) error {
	u := pool(d, addresses(d.Ranges))
	err := tenant.Create(ctx, u, FieldOwner)
	if apierrors.IsAlreadyExists(err) {
		err = apierrors.NewConflict(metallbv1beta1.GroupVersion.WithResource("ipaddresspools").GroupResource(), u.GetName(), err)
	}
	if err != nil {
		return fmt.Errorf("creating IPAddressPool %s/%s: %w", Namespace, u.GetName(), err)
	}
	version := u.GetResourceVersion()
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		same := pool(d, addresses(d.Ranges))
		same.SetUID(u.GetUID())
		same.SetResourceVersion(version)
		conflict := apply(ctx, tenant, same)
		if !apierrors.IsConflict(conflict) {
			return conflict
		}
		// MetalLB counts the addresses of the pool at the same time. Whoever changes something else has it changed.
		now := &metallbv1beta1.IPAddressPool{}
		if err := tenant.Get(ctx, client.ObjectKeyFromObject(u), now); err != nil {
			return fmt.Errorf("reading IPAddressPool %s/%s: %w", Namespace, u.GetName(), err)
		}
		if now.UID != u.GetUID() || !asDesired(now, d) {
			return nil
		}
		version = now.ResourceVersion
		return conflict
	})
}
