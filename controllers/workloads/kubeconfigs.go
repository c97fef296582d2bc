package workloads

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kubeconfig"
)

// HasInfrastructure reports whether a Cluster has its infrastructure: until then no API server is there to answer.
func HasInfrastructure(cluster *clusterv1.Cluster) bool {
	return ptr.Deref(cluster.Status.Initialization.InfrastructureProvisioned, false)
}

// MissingKubeconfigReason returns why the API server of a Cluster that should have one cannot be reached: its Secret is
// missing, or names what it must not. It returns an empty text if that is not the reason.
func MissingKubeconfigReason(ctx context.Context, live client.Reader, cluster *clusterv1.Cluster) (string, error) {
	if !HasInfrastructure(cluster) {
		return "", nil
	}
	key := kubeconfig.SecretKeyForCluster(client.ObjectKeyFromObject(cluster))
	err := kubeconfig.Reader{Reader: live}.Get(ctx, key, &corev1.Secret{})
	switch {
	case err == nil:
		return "", nil
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("Secret %s does not exist: without it the API server of the Cluster cannot be reached", key), nil
	case apierrors.ReasonForError(err) != metav1.StatusReasonUnknown:
		return "", fmt.Errorf("reading Secret %s: %w", key, err)
	}
	return err.Error(), nil
}
