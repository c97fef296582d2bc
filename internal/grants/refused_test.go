package grants

import (
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
)

// The refusal for a write that the API server refuses names what a user has to change.
func TestRefusalForWriteError(t *testing.T) {
	addresses := ipamv1.GroupVersion.WithResource("ipaddresses").GroupResource()
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"right":  {apierrors.NewForbidden(addresses, "c", errors.New(`User "system:serviceaccount:butler-ipam-system:manager" cannot create resource "ipaddresses"`)), "apply the manifests of the manager's release again"},
		"quota":  {apierrors.NewForbidden(addresses, "c", errors.New("exceeded quota: few")), "change the quota, policy or schema"},
		"policy": {apierrors.NewInvalid(ipamv1.GroupVersion.WithKind("IPAddress").GroupKind(), "c", nil), "change the quota, policy or schema"},
	} {
		got := RefusalForWriteError(tc.err)
		if !strings.Contains(got.Message, tc.err.Error()+"; "+tc.want) || !got.isWriteFailure() {
			t.Errorf("%s: it says %q", name, got.Message)
		}
	}
}
