package extension

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/endpoint"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
)

// claimOf reads the claim of a Cluster; nil: there is none.
func (e *Endpoints) claimOf(ctx context.Context, cluster *clusterv1.Cluster) (*ipamv1.IPAddressClaim, error) {
	return e.read(ctx, endpoint.ClaimKey(client.ObjectKeyFromObject(cluster)))
}

func (e *Endpoints) read(ctx context.Context, key client.ObjectKey) (*ipamv1.IPAddressClaim, error) {
	claim := &ipamv1.IPAddressClaim{}
	err := e.Client.Get(ctx, key, claim)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading IPAddressClaim %s: %w", key, err)
	}
	return claim, nil
}

// boundTo reads the IPAddress that a claim names; nil: it names none, or one that is not its own.
func (e *Endpoints) boundTo(ctx context.Context, claim *ipamv1.IPAddressClaim) (*ipamv1.IPAddress, error) {
	if claim == nil || claim.Status.AddressRef.Name == "" {
		return nil, nil
	}
	key := client.ObjectKey{Namespace: claim.Namespace, Name: claim.Status.AddressRef.Name}
	address := &ipamv1.IPAddress{}
	err := e.Client.Get(ctx, key, address)
	switch {
	case apierrors.IsNotFound(err), err == nil && address.Spec.ClaimRef.Name != claim.Name:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading IPAddress %s: %w", key, err)
	}
	return address, nil
}

// create creates the claim. If another manager, or an answer that was lost, was faster, that one is the claim.
func (e *Endpoints) create(ctx context.Context, cluster *clusterv1.Cluster, claim *ipamv1.IPAddressClaim) (*ipamv1.IPAddressClaim, error) {
	err := e.Client.Create(ctx, claim)
	if apierrors.IsAlreadyExists(err) {
		return e.claimOf(ctx, cluster)
	}
	if err != nil {
		return nil, fmt.Errorf("creating IPAddressClaim %s: %w", client.ObjectKeyFromObject(claim), err)
	}
	return claim, nil
}

// delete deletes a claim that asks for the wrong thing, as it was read: one that has got an address since is not deleted.
func (e *Endpoints) delete(ctx context.Context, cluster *clusterv1.Cluster, claim *ipamv1.IPAddressClaim) (*ipamv1.IPAddressClaim, error) {
	err := exact.Delete(ctx, e.Client, claim)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return nil, fmt.Errorf("deleting IPAddressClaim %s: %w", client.ObjectKeyFromObject(claim), err)
	}
	return e.claimOf(ctx, cluster)
}

// follower sees the changes of one claim, by one watch for as long as that lasts.
type follower struct {
	*Endpoints
	w watch.Interface
}

func (f *follower) stop() {
	if f.w != nil {
		f.w.Stop()
	}
	f.w = nil
}

// changed waits until a claim is another one than it was seen, and returns that; nil: it is gone. A watch that ends early
// is no answer: the claim is read again.
func (f *follower) changed(ctx context.Context, claim *ipamv1.IPAddressClaim) (*ipamv1.IPAddressClaim, error) {
	key := client.ObjectKeyFromObject(claim)
	if f.w == nil {
		var err error
		if f.w, err = f.Client.Watch(ctx, &ipamv1.IPAddressClaimList{}, &client.ListOptions{
			Namespace:     key.Namespace,
			FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, key.Name),
			Raw:           &metav1.ListOptions{ResourceVersion: claim.ResourceVersion},
		}); err != nil {
			return nil, fmt.Errorf("watching IPAddressClaim %s: %w", key, err)
		}
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case event := <-f.w.ResultChan():
		if now, is := event.Object.(*ipamv1.IPAddressClaim); is && event.Type != watch.Deleted {
			return now, nil
		}
	}
	f.stop()
	return f.read(ctx, key)
}
