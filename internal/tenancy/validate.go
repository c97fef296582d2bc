package tenancy

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Verdict is what a ProviderConfig is worth.
type Verdict struct {
	// PoolAvailable is True where a new Cluster can be given its block, False where it cannot, Unknown
	// while pools settle. Ready adds that the settings are right. Neither has a time.
	PoolAvailable, Ready metav1.Condition
	// Validated is whether the settings can be served as they are written.
	Validated bool
}

// Validate tells what is wrong with a ProviderConfig's network. pools are in the order of
// Order. A pool that does not exist makes the settings wrong, even where another one serves in its place:
// nobody would notice a misspelled name until the others are full. A pool that is closed or full does not,
// as long as one is left.
func Validate(network v1alpha1.ProviderNetwork, pools []Pool) Verdict {
	v := validate(network, pools)
	v.Ready.Message += unread(network)
	return v
}

func validate(network v1alpha1.ProviderNetwork, pools []Pool) Verdict {
	if network.Mode != v1alpha1.IPAMMode {
		const message = "mode is cloud: addresses come from the infrastructure, no pool is needed"
		return verdict(metav1.ConditionTrue, v1alpha1.CloudModeReason, message, "")
	}
	if len(pools) == 0 {
		return verdict(metav1.ConditionFalse, v1alpha1.ValidationFailedReason, noPools, noPools)
	}
	wants := max(clamp(network, configured(network)).Count, 1)
	var missing, entries, closed, settling, full, serving []string
	for _, p := range pools {
		name := describe(p.Ref)
		switch {
		case p.State == Missing:
			missing = append(missing, name+" does not exist")
			entries = append(entries, entryOf(network, p.Ref)+": "+name+" does not exist")
		case p.State == Closed:
			closed = append(closed, name+" "+p.Message)
		case p.State == Settling:
			settling = append(settling, name+" "+p.Message)
		case !p.room(wants):
			full = append(full, fmt.Sprintf("%s has no %d free addresses in a row", name, wants))
		default:
			serving = append(serving, name)
		}
	}
	wrong := ""
	if len(missing) > 0 {
		wrong = listed(entries) + "; create it, or correct the entry"
	}
	others := append(append(append([]string(nil), full...), closed...), missing...)
	switch {
	case len(serving) > 0:
		message := "new Clusters are served by " + serving[0]
		if rest := append(append([]string(nil), others...), settling...); len(rest) > 0 {
			message += "; the other pools: " + listed(rest)
		}
		return verdict(metav1.ConditionTrue, v1alpha1.PoolAvailableReason, message, wrong)
	case len(settling) > 0:
		return verdict(metav1.ConditionUnknown, v1alpha1.ReconcilingReason, listed(append(settling, others...)), wrong)
	case len(full) > 0:
		return verdict(metav1.ConditionFalse, v1alpha1.PoolExhaustedReason,
			listed(others)+"; add addresses to a pool, or add a pool to network.poolRefs", wrong)
	case len(closed) > 0:
		return verdict(metav1.ConditionFalse, v1alpha1.NetworkNotReadyReason, listed(others), wrong)
	}
	return verdict(metav1.ConditionFalse, v1alpha1.ValidationFailedReason, wrong, wrong)
}

// entryOf is the field that names a pool.
func entryOf(network v1alpha1.ProviderNetwork, ref v1alpha1.PoolReference) string {
	const field = "spec.network.poolRefs"
	i := slices.IndexFunc(network.PoolRefs, func(r v1alpha1.ProviderPoolReference) bool { return withKind(r.PoolReference) == ref })
	if i < 0 {
		return field
	}
	return fmt.Sprintf("%s[%d]", field, i)
}

// verdict makes both conditions: Ready is as PoolAvailable, unless something is wrong with the settings.
func verdict(status metav1.ConditionStatus, reason, message, wrong string) Verdict {
	v := Verdict{
		PoolAvailable: metav1.Condition{Type: v1alpha1.PoolAvailableCondition, Status: status, Reason: reason, Message: message},
		Ready:         metav1.Condition{Type: v1alpha1.ReadyCondition, Status: status, Reason: reason, Message: message},
		Validated:     wrong == "",
	}
	switch {
	case wrong != "":
		v.Ready.Status, v.Ready.Reason, v.Ready.Message = metav1.ConditionFalse, v1alpha1.ValidationFailedReason, wrong
	case status == metav1.ConditionTrue && reason == v1alpha1.PoolAvailableReason:
		v.Ready.Reason = v1alpha1.ReadyReason
	}
	return v
}
