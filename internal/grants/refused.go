package grants

import (
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// refusedPrefix is the beginning of the message in the status of a claim whose IPAddress the API server refuses.
// Managers that are older than the reason WriteFailed recognize such a claim by it.
const refusedPrefix = "the API server refuses"

// RefusalForWriteError returns the refusal for the claimant whose own write has failed.
func RefusalForWriteError(err error) Refusal {
	do := "change the quota, policy or schema that refuses it"
	switch {
	case !term.IsPermanentRefusal(err):
		return *writeFailed("a write of this claim or its IPAddress fails: %v; the manager tries again", err)
	case isRBACForbidden(err):
		do = "apply the manifests of the manager's release again, which give it this right"
	}
	return *writeFailed("%s a write of this claim or its IPAddress: %v; %s, and the manager tries again", refusedPrefix, err, do)
}

// writeFailed returns the refusal for a claimant for which a write fails or is not attempted.
func writeFailed(format string, args ...any) *Refusal {
	return &Refusal{Reason: v1alpha1.WriteFailedReason, Message: text.SanitizeMessage(fmt.Sprintf(format, args...))}
}

// isRBACForbidden reports whether RBAC refuses a write. It goes by the message of the API server, because the answers
// of quotas and policies have the reason Forbidden as well.
func isRBACForbidden(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), `is forbidden: User "`)
}

// isWriteFailure reports whether the refusal reports a failed write. Another manager would not succeed soon either.
func (r Refusal) isWriteFailure() bool {
	older := r.Reason == ipamv1.IPAddressClaimReadyAllocationFailedReason && strings.HasPrefix(r.Message, refusedPrefix)
	return r.Reason == v1alpha1.WriteFailedReason || older
}
