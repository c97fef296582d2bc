package workloads

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kubeconfig"
)

// IsAccessError reports whether an API server answers, and refuses: permissions are missing, or the credentials are not
// valid any more.
func IsAccessError(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
}

// NewAccessError returns an error with what the refusal of the API server of a Cluster causes, and what to do: comes is
// the consequence; rights is the file with all permissions that the user of the kubeconfig needs. To a server that does
// not know the user, permissions are no help.
func NewAccessError(cluster client.ObjectKey, err error, comes, rights string) error {
	if apierrors.IsUnauthorized(err) {
		return fmt.Errorf("the API server of the Cluster does not accept the credentials of its kubeconfig, and %s: renew the kubeconfig in Secret %s: %w",
			comes, kubeconfig.SecretKeyForCluster(cluster), err)
	}
	return fmt.Errorf("the API server of the Cluster refuses what its kubeconfig asks for, and %s: give its user the rights in %s: %w", comes, rights, err)
}

// CheckListAccess checks whether objects of some kinds may be listed in a namespace, or in all namespaces if it is
// empty. A kind that does not exist counts as allowed. A cache of objects that may not be listed is never filled, and
// reports no error.
func CheckListAccess(ctx context.Context, live client.Reader, namespace string, kinds ...client.ObjectList) error {
	var errs []error
	for _, kind := range kinds {
		err := live.List(ctx, kind, client.InNamespace(namespace), client.Limit(1))
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			continue
		}
		if IsAccessError(err) {
			return err
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
