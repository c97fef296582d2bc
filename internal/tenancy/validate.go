package tenancy

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// ValidationResult is the result of the validation of a ProviderConfig.
type ValidationResult struct {
	// PoolAvailable is True if a new Cluster can get its block, False if it cannot, and Unknown while pools settle.
	// Ready is in addition False if the settings are invalid. Neither has a transition time.
	PoolAvailable, Ready metav1.Condition
	// IsValid reports whether the settings can be served as they are written.
	IsValid bool
}

// ValidateNetwork validates the network of a ProviderConfig. pools are in the order of OrderPoolRefs. A pool that
// does not exist makes the settings invalid, even if another pool serves in its place: a misspelled name would
// otherwise go unnoticed until the other pools are full. A closed or full pool does not, as long as another pool is
// available.
func ValidateNetwork(network v1alpha1.ProviderNetwork, pools []Pool) ValidationResult {
	v := validatePools(network, pools)
	v.Ready.Message += ignoredSettingsMessage(network)
	return v
}

func validatePools(network v1alpha1.ProviderNetwork, pools []Pool) ValidationResult {
	if network.Mode != v1alpha1.IPAMMode {
		const message = "mode is cloud: addresses come from the infrastructure, no pool is needed"
		return newValidationResult(metav1.ConditionTrue, v1alpha1.CloudModeReason, message, "")
	}
	if len(pools) == 0 {
		return newValidationResult(metav1.ConditionFalse, v1alpha1.ValidationFailedReason, noPoolsMessage, noPoolsMessage)
	}
	wants := max(clampToQuota(network, sizeFromConfig(network)).Count, 1)
	var missing, entries, closed, settling, full, serving []string
	for _, p := range pools {
		name := describePool(p.Ref)
		switch {
		case p.Availability == PoolMissing:
			missing = append(missing, name+" does not exist")
			entries = append(entries, poolRefFieldPath(network, p.Ref)+": "+name+" does not exist")
		case p.Availability == PoolClosed:
			closed = append(closed, name+" "+p.Message)
		case p.Availability == PoolSettling:
			settling = append(settling, name+" "+p.Message)
		case !p.hasRoomFor(wants):
			full = append(full, fmt.Sprintf("%s has no %d free addresses in a row", name, wants))
		default:
			serving = append(serving, name)
		}
	}
	wrong := ""
	if len(missing) > 0 {
		wrong = joinPoolMessages(entries) + "; create it, or correct the entry"
	}
	others := append(append(append([]string(nil), full...), closed...), missing...)
	switch {
	case len(serving) > 0:
		message := "new Clusters are served by " + serving[0]
		if rest := append(append([]string(nil), others...), settling...); len(rest) > 0 {
			message += "; the other pools: " + joinPoolMessages(rest)
		}
		return newValidationResult(metav1.ConditionTrue, v1alpha1.PoolAvailableReason, message, wrong)
	case len(settling) > 0:
		return newValidationResult(metav1.ConditionUnknown, v1alpha1.ReconcilingReason, joinPoolMessages(append(settling, others...)), wrong)
	case len(full) > 0:
		return newValidationResult(metav1.ConditionFalse, v1alpha1.PoolExhaustedReason,
			joinPoolMessages(others)+"; add addresses to a pool, or add a pool to network.poolRefs", wrong)
	case len(closed) > 0:
		return newValidationResult(metav1.ConditionFalse, v1alpha1.NetworkNotReadyReason, joinPoolMessages(others), wrong)
	}
	return newValidationResult(metav1.ConditionFalse, v1alpha1.ValidationFailedReason, wrong, wrong)
}

// poolRefFieldPath returns the path of the field that names a pool.
func poolRefFieldPath(network v1alpha1.ProviderNetwork, ref v1alpha1.PoolReference) string {
	const field = "spec.network.poolRefs"
	i := slices.IndexFunc(network.PoolRefs, func(r v1alpha1.ProviderPoolReference) bool { return withDefaultKind(r.PoolReference) == ref })
	if i < 0 {
		return field
	}
	return fmt.Sprintf("%s[%d]", field, i)
}

// newValidationResult builds both conditions. Ready equals PoolAvailable unless wrong is set, which makes Ready
// False.
func newValidationResult(status metav1.ConditionStatus, reason, message, wrong string) ValidationResult {
	v := ValidationResult{
		PoolAvailable: metav1.Condition{Type: v1alpha1.PoolAvailableCondition, Status: status, Reason: reason, Message: message},
		Ready:         metav1.Condition{Type: v1alpha1.ReadyCondition, Status: status, Reason: reason, Message: message},
		IsValid:       wrong == "",
	}
	switch {
	case wrong != "":
		v.Ready.Status, v.Ready.Reason, v.Ready.Message = metav1.ConditionFalse, v1alpha1.ValidationFailedReason, wrong
	case status == metav1.ConditionTrue && reason == v1alpha1.PoolAvailableReason:
		v.Ready.Reason = v1alpha1.ReadyReason
	}
	return v
}
