package framework

import (
	"context"
	"errors"
	"fmt"

	m3ipamv1 "github.com/metal3-io/ip-address-manager/api/v1alpha1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
)

// cleanupKinds lists the kinds that tests leave objects of; users come before the objects that they use.
var cleanupKinds = []schema.GroupVersionKind{
	clusterv1.GroupVersion.WithKind("Machine"), clusterv1.GroupVersion.WithKind(clusterv1.ClusterKind),
	corev1.SchemeGroupVersion.WithKind("Pod"), appsv1.SchemeGroupVersion.WithKind("Deployment"),
	ipamv1.GroupVersion.WithKind("IPAddressClaim"), ipamv1.GroupVersion.WithKind("IPAddress"),
	v1alpha1.GroupVersion.WithKind("IPAllocation"), v1alpha1.GroupVersion.WithKind("IPLease"), v1alpha1.GroupVersion.WithKind("ClusterCIDR"),
	m3ipamv1.GroupVersion.WithKind("IPClaim"), m3ipamv1.GroupVersion.WithKind("IPAddress"), m3ipamv1.GroupVersion.WithKind("IPPool"),
	v1alpha1.GroupVersion.WithKind(v1alpha1.NetworkPoolKind), v1alpha1.GroupVersion.WithKind(v1alpha1.GlobalNetworkPoolKind),
	incluster.GroupVersion.WithKind(incluster.IPPoolKind), incluster.GroupVersion.WithKind(incluster.GlobalIPPoolKind),
}

// CleanUpCluster deletes the objects that earlier tests have left in an API server, and removes their finalizers. No
// manager may run meanwhile: it would create its carved blocks again.
func CleanUpCluster(ctx context.Context, c client.Client) error {
	for _, kind := range cleanupKinds {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind)
		switch err := c.List(ctx, list); {
		case meta.IsNoMatchError(err), apierrors.IsNotFound(err):
			continue // the kind is not installed
		case err != nil:
			return fmt.Errorf("listing what is left of %s: %w", kind.Kind, err)
		}
		for i := range list.Items {
			if err := ForceDelete(ctx, c, &list.Items[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// ForceDelete deletes an object and removes all its finalizers, including those of other controllers.
func ForceDelete(ctx context.Context, c client.Client, o client.Object) error {
	return errors.Join(
		client.IgnoreNotFound(c.Delete(ctx, o, client.GracePeriodSeconds(0))),
		client.IgnoreNotFound(c.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))),
	)
}
