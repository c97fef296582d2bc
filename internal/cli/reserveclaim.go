package cli

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/labels/format"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// buildReserveClaim builds the claim that the user asks for, of a pool that must exist.
func (p *plugin) buildReserveClaim(ctx context.Context, c client.Client, name, pool, address string) (*ipamv1.IPAddressClaim, error) {
	namespace, _, err := p.currentNamespace()
	if err != nil {
		return nil, err
	}
	ref, err := p.resolvePoolRef(ctx, c, namespace, pool)
	if err != nil {
		return nil, err
	}
	claim := &ipamv1.IPAddressClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	claim.Spec.PoolRef = ref
	if address != "" {
		claim.Annotations = map[string]string{v1alpha1.RequestedAddressAnnotation: address}
	}
	return claim, nil
}

// resolvePoolRef returns the reference by which a claim names the pool that the user means: one of our pools, or one of
// the in-cluster provider, which the manager serves in that provider's place.
func (p *plugin) resolvePoolRef(ctx context.Context, c client.Client, namespace, pool string) (ipamv1.IPPoolReference, error) {
	kind, name, _ := strings.Cut(pool, "/")
	k, ok := incluster.KindByName(kind)
	if !ok || name == "" {
		key, _, err := p.readPool(ctx, c, pool)
		return key.PoolReference(), err
	}
	if k.IsGlobal {
		namespace = ""
	}
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, k.NewPool()); err != nil {
		return ipamv1.IPPoolReference{}, fmt.Errorf("reading %s: %w", pools.Key{Kind: k.Name, Namespace: namespace, Name: name}, err)
	}
	return ipamv1.IPPoolReference{APIGroup: incluster.GroupVersion.Group, Kind: k.Name, Name: name}, nil
}

// ensureClaim creates a claim, or returns the existing one of that name, and assigns it to a Cluster where cluster is
// not empty. It returns an error if the existing claim names another pool.
func ensureClaim(ctx context.Context, c client.Client, claim *ipamv1.IPAddressClaim, cluster string) (*ipamv1.IPAddressClaim, error) {
	var owner *metav1.OwnerReference
	if cluster != "" {
		of := &clusterv1.Cluster{}
		if err := c.Get(ctx, client.ObjectKey{Namespace: claim.Namespace, Name: cluster}, of); err != nil {
			return nil, fmt.Errorf("reading the Cluster that the claim is to belong to: %w", err)
		}
		owner = metav1.NewControllerRef(of, clusterv1.GroupVersion.WithKind("Cluster"))
		owner.Controller, owner.BlockOwnerDeletion = nil, nil
		assignToCluster(claim, *owner)
	}
	err := c.Create(ctx, claim)
	if !apierrors.IsAlreadyExists(err) {
		return claim, err
	}
	existing := &ipamv1.IPAddressClaim{}
	if err := c.Get(ctx, client.ObjectKeyFromObject(claim), existing); err != nil {
		return nil, fmt.Errorf("reading the claim that exists: %w", err)
	}
	if existing.Spec.PoolRef != claim.Spec.PoolRef {
		return nil, fmt.Errorf("IPAddressClaim %s/%s exists, and names %s %s: delete it, or choose another name", existing.Namespace, existing.Name, existing.Spec.PoolRef.Kind, existing.Spec.PoolRef.Name)
	}
	if owner == nil {
		return existing, nil
	}
	before := existing.DeepCopy()
	assignToCluster(existing, *owner)
	if equality.Semantic.DeepEqual(before, existing) {
		return existing, nil
	}
	if err := c.Patch(ctx, existing, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return nil, fmt.Errorf("giving IPAddressClaim %s/%s to Cluster %s: %w", existing.Namespace, existing.Name, cluster, err)
	}
	return existing, nil
}

// assignToCluster makes a Cluster the owner of a claim and labels the claim with its name: the claim then keeps its
// address as long as the Cluster exists.
func assignToCluster(claim *ipamv1.IPAddressClaim, cluster metav1.OwnerReference) {
	claim.OwnerReferences = util.EnsureOwnerRef(claim.OwnerReferences, cluster)
	metav1.SetMetaDataLabel(&claim.ObjectMeta, clusterv1.ClusterNameLabel, format.MustFormatValue(cluster.Name))
}
