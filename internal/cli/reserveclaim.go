package cli

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/labels/format"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// claimToReserve is the claim that a person wants of a pool that exists.
func (p *plugin) claimToReserve(ctx context.Context, c client.Client, name, pool, address string) (*ipamv1.IPAddressClaim, error) {
	namespace, _, err := p.namespace()
	if err != nil {
		return nil, err
	}
	key, _, err := p.readPool(ctx, c, pool)
	if err != nil {
		return nil, err
	}
	claim := &ipamv1.IPAddressClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	claim.Spec.PoolRef = ipamv1.IPPoolReference{APIGroup: v1alpha1.GroupVersion.Group, Kind: key.Kind, Name: key.Name}
	if address != "" {
		claim.Annotations = map[string]string{v1alpha1.RequestedAddressAnnotation: address}
	}
	return claim, nil
}

// reserveClaim creates a claim, or finds the one that there is, and gives it to a Cluster where one is named.
func reserveClaim(ctx context.Context, c client.Client, claim *ipamv1.IPAddressClaim, cluster string) (*ipamv1.IPAddressClaim, error) {
	var owner *metav1.OwnerReference
	if cluster != "" {
		of := &clusterv1.Cluster{}
		if err := c.Get(ctx, client.ObjectKey{Namespace: claim.Namespace, Name: cluster}, of); err != nil {
			return nil, fmt.Errorf("reading the Cluster that the claim is to belong to: %w", err)
		}
		owner = metav1.NewControllerRef(of, clusterv1.GroupVersion.WithKind("Cluster"))
		owner.Controller, owner.BlockOwnerDeletion = nil, nil
		give(claim, *owner)
	}
	err := c.Create(ctx, claim)
	if !apierrors.IsAlreadyExists(err) {
		return claim, err
	}
	is := &ipamv1.IPAddressClaim{}
	if err := c.Get(ctx, client.ObjectKeyFromObject(claim), is); err != nil {
		return nil, fmt.Errorf("reading the claim that exists: %w", err)
	}
	if is.Spec.PoolRef != claim.Spec.PoolRef {
		return nil, fmt.Errorf("IPAddressClaim %s/%s exists, and names %s %s: delete it, or choose another name", is.Namespace, is.Name, is.Spec.PoolRef.Kind, is.Spec.PoolRef.Name)
	}
	if owner == nil {
		return is, nil
	}
	before := is.DeepCopy()
	give(is, *owner)
	if equality.Semantic.DeepEqual(before, is) {
		return is, nil
	}
	if err := c.Patch(ctx, is, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return nil, fmt.Errorf("giving IPAddressClaim %s/%s to Cluster %s: %w", is.Namespace, is.Name, cluster, err)
	}
	return is, nil
}

// give has a claim belong to a Cluster, and name it: its address then is the Cluster's as long as that is there.
func give(claim *ipamv1.IPAddressClaim, cluster metav1.OwnerReference) {
	claim.OwnerReferences = util.EnsureOwnerRef(claim.OwnerReferences, cluster)
	metav1.SetMetaDataLabel(&claim.ObjectMeta, clusterv1.ClusterNameLabel, format.MustFormatValue(cluster.Name))
}
