package tenant

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// withoutKubeconfig says why there is no way to reach the API server of a Cluster that should have one: its Secret is
// missing, or names what it must not. Nil: that is not the reason.
func (t *tenant) withoutKubeconfig(ctx context.Context) (*metav1.Condition, error) {
	if !ptr.Deref(t.cluster.Status.Initialization.InfrastructureProvisioned, false) {
		return nil, nil //nolint:nilnil // it is being built
	}
	key := client.ObjectKey{Namespace: t.key.Namespace, Name: secret.Name(t.key.Name, secret.Kubeconfig)}
	is := tenantUnreachable()
	err := kubeconfigs{t.Live}.Get(ctx, key, &corev1.Secret{})
	switch {
	case err == nil:
		return nil, nil //nolint:nilnil // see above
	case apierrors.IsNotFound(err):
		is.Message = fmt.Sprintf("Secret %s does not exist: without it the API server of the Cluster cannot be reached", key)
	case apierrors.ReasonForError(err) != metav1.StatusReasonUnknown:
		return nil, fmt.Errorf("reading Secret %s: %w", key, err)
	default:
		is.Message = err.Error()
	}
	return is, nil
}
