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

// refusedText begins the condition of a claim whose IPAddress the API server refuses. A manager that is older than the
// reason WriteFailed knows such a claim by it.
const refusedText = "the API server refuses"

// RefusedBy is what the claim itself is told of a write that fails.
func RefusedBy(err error) Refusal {
	do := "change the quota, policy or schema that refuses it"
	switch {
	case !term.RefusedForGood(err):
		return *writeFailed("a write of this claim or its IPAddress fails: %v; the manager tries again", err)
	case lacksRight(err):
		do = "apply the manifests of the manager's release again, which give it this right"
	}
	return *writeFailed("%s a write of this claim or its IPAddress: %v; %s, and the manager tries again", refusedText, err, do)
}

// writeFailed is the refusal of a claim for which a write is not carried out.
func writeFailed(format string, args ...any) *Refusal {
	return &Refusal{Reason: v1alpha1.WriteFailedReason, Message: text.Message(fmt.Sprintf(format, args...))}
}

// lacksRight reports whether RBAC refuses a write, by the words of the API server: quotas and policies are forbidden too.
func lacksRight(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), `is forbidden: User "`)
}

// isRefused reports whether a claim was told that a write for it is not carried out: no manager does better soon.
func (r Refusal) isRefused() bool {
	older := r.Reason == ipamv1.IPAddressClaimReadyAllocationFailedReason && strings.HasPrefix(r.Message, refusedText)
	return r.Reason == v1alpha1.WriteFailedReason || older
}
