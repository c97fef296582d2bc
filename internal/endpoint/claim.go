package endpoint

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/labels/format"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// ClaimKeyForCluster returns the key of the claim for the address of a Cluster's control plane.
func ClaimKeyForCluster(cluster types.NamespacedName) types.NamespacedName {
	return types.NamespacedName{Namespace: cluster.Namespace, Name: cluster.Name + "-control-plane"}
}

func objectKey(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// newClaim returns a claim of an address for as long as the Cluster lives. requested, where set, is the address that
// the Cluster already has. The Cluster owns the claim, so clusterctl moves it with the Cluster, and the garbage
// collector deletes it when the Cluster is gone.
func newClaim(cluster *clusterv1.Cluster, pool ipamv1.IPPoolReference, requested string) *ipamv1.IPAddressClaim {
	key := ClaimKeyForCluster(objectKey(cluster))
	claim := &ipamv1.IPAddressClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace, Name: key.Name,
			Labels: map[string]string{clusterv1.ClusterNameLabel: format.MustFormatValue(cluster.Name)},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind, Name: cluster.Name, UID: cluster.UID,
			}},
		},
		Spec: ipamv1.IPAddressClaimSpec{ClusterName: cluster.Name, PoolRef: pool},
	}
	if filter, ok := cluster.Labels[clusterv1.WatchLabel]; ok { // the manager that serves the Cluster must also serve the claim
		claim.Labels[clusterv1.WatchLabel] = filter
	}
	if requested != "" {
		claim.Annotations = map[string]string{v1alpha1.RequestedAddressAnnotation: requested}
	}
	return claim
}

// isOwnedByCluster reports whether a claim is the Cluster's, and not that of an earlier Cluster of the same name.
func isOwnedByCluster(cluster *clusterv1.Cluster, claim *ipamv1.IPAddressClaim) bool {
	for _, ref := range claim.OwnerReferences {
		if ref.UID == cluster.UID {
			return true
		}
	}
	return false
}

// isGranted reports whether a claim has an address, or an address on record that its status may not show yet.
func isGranted(claim *ipamv1.IPAddressClaim) bool {
	return claim.Status.AddressRef.Name != "" || claim.Annotations[v1alpha1.AddressAnnotation] != ""
}
