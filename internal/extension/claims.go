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

// claimForCluster reads the claim of a Cluster; nil if there is none.
func (e *EndpointPatcher) claimForCluster(ctx context.Context, cluster *clusterv1.Cluster) (*ipamv1.IPAddressClaim, error) {
	return e.getClaim(ctx, endpoint.ClaimKeyForCluster(client.ObjectKeyFromObject(cluster)))
}

func (e *EndpointPatcher) getClaim(ctx context.Context, key client.ObjectKey) (*ipamv1.IPAddressClaim, error) {
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

// addressForClaim reads the IPAddress that a claim names; nil if it names none, or one of another claim.
func (e *EndpointPatcher) addressForClaim(ctx context.Context, claim *ipamv1.IPAddressClaim) (*ipamv1.IPAddress, error) {
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

// createClaim creates the claim. If it exists, because another manager was faster or an answer was lost, the existing
// one is returned.
func (e *EndpointPatcher) createClaim(ctx context.Context, cluster *clusterv1.Cluster, claim *ipamv1.IPAddressClaim) (*ipamv1.IPAddressClaim, error) {
	err := e.Client.Create(ctx, claim)
	if apierrors.IsAlreadyExists(err) {
		return e.claimForCluster(ctx, cluster)
	}
	if err != nil {
		return nil, fmt.Errorf("creating IPAddressClaim %s: %w", client.ObjectKeyFromObject(claim), err)
	}
	return claim, nil
}

// deleteClaim deletes a claim of the wrong pool or address, at the version that was read: one that has got an address
// since is not deleted. It returns the claim that exists after that.
func (e *EndpointPatcher) deleteClaim(ctx context.Context, cluster *clusterv1.Cluster, claim *ipamv1.IPAddressClaim) (*ipamv1.IPAddressClaim, error) {
	err := exact.DeleteWithPreconditions(ctx, e.Client, claim)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return nil, fmt.Errorf("deleting IPAddressClaim %s: %w", client.ObjectKeyFromObject(claim), err)
	}
	return e.claimForCluster(ctx, cluster)
}

// claimWatcher waits for changes of one claim. It uses one watch for as long as that lasts.
type claimWatcher struct {
	*EndpointPatcher
	watcher watch.Interface
}

func (f *claimWatcher) stopWatch() {
	if f.watcher != nil {
		f.watcher.Stop()
	}
	f.watcher = nil
}

// waitForChange waits until a claim has changed since it was read, and returns it; nil if it is gone. When the watch
// ends early, the claim is read again.
func (f *claimWatcher) waitForChange(ctx context.Context, claim *ipamv1.IPAddressClaim) (*ipamv1.IPAddressClaim, error) {
	key := client.ObjectKeyFromObject(claim)
	if f.watcher == nil {
		var err error
		if f.watcher, err = f.Client.Watch(ctx, &ipamv1.IPAddressClaimList{}, &client.ListOptions{
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
	case event := <-f.watcher.ResultChan():
		if now, ok := event.Object.(*ipamv1.IPAddressClaim); ok && event.Type != watch.Deleted {
			return now, nil
		}
	}
	f.stopWatch()
	return f.getClaim(ctx, key)
}
