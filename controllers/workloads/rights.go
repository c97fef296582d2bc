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

// IsRefusal reports whether an API server answers, and refuses: rights are missing, or the credentials are not good any more.
func IsRefusal(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }

// Refusal says what comes of what the API server of a Cluster refuses, and what to do: rights is the file that has all that the
// user of the kubeconfig needs. To a server that does not know the user, rights are no help.
func Refusal(cluster client.ObjectKey, err error, comes, rights string) error {
	if apierrors.IsUnauthorized(err) {
		return fmt.Errorf("the API server of the Cluster does not accept the credentials of its kubeconfig, and %s: renew the kubeconfig in Secret %s: %w",
			comes, kubeconfig.SecretOf(cluster), err)
	}
	return fmt.Errorf("the API server of the Cluster refuses what its kubeconfig asks for, and %s: give its user the rights in %s: %w", comes, rights, err)
}

// MayList asks whether objects of some kinds may be listed in a namespace; none: in all. A kind that is not there may be. A cache
// of what may not be listed is never filled, and does not say so.
func MayList(ctx context.Context, live client.Reader, namespace string, kinds ...client.ObjectList) error {
	var errs []error
	for _, kind := range kinds {
		err := live.List(ctx, kind, client.InNamespace(namespace), client.Limit(1))
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			continue
		}
		if IsRefusal(err) {
			return err
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
