package endpoint

import (
	"fmt"
	"net/netip"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ending"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// ObservedState is the state that was read from the API server.
type ObservedState struct {
	Cluster *clusterv1.Cluster
	// Claim is the claim with the name for the Cluster; nil if there is none.
	Claim *ipamv1.IPAddressClaim
	// Address is the IPAddress that the status of the claim names; nil if it names none, or that does not exist.
	Address *ipamv1.IPAddress
}

// Action is the next step.
type Action int

// All actions. The last three end a request; after each of the others the state has to be read again.
const (
	// ActionWait waits for a change of the claim.
	ActionWait Action = iota
	// ActionCreate creates the claim.
	ActionCreate
	// ActionDelete deletes the claim, if it was not written since it was read.
	ActionDelete
	// ActionRefuse fails the request: the Cluster gets no address now.
	ActionRefuse
	// ActionServe serves the address.
	ActionServe
	// ActionSkip leaves the templates as they are.
	ActionSkip
)

// Decision is the next step with its arguments.
type Decision struct {
	Action
	// Claim is the claim to create.
	Claim *ipamv1.IPAddressClaim
	// Address is the address to serve.
	Address netip.Addr
	// Message explains why there is no address, or what the request waits for, and gives the advice.
	Message string
	// Temporary reports whether a refusal ends by itself, as soon as the pool has an address.
	Temporary bool
}

// DecideAction returns the next step for the control plane of a Cluster. pool is the pool of its address, or noPool.
// The Cluster keeps the address that it has, wherever that is from.
func DecideAction(seen ObservedState, pool ipamv1.IPPoolReference) Decision {
	cluster, claim := seen.Cluster, seen.Claim
	if pool == noPool {
		return decideWithoutPool(seen)
	}
	if claim != nil && !isOwnedByCluster(cluster, claim) {
		return decideForeignClaim(cluster, claim)
	}
	had, err := currentEndpoint(cluster)
	if err != nil {
		return refusef("%v", err)
	}
	if claim != nil && hasAddressToKeep(seen) {
		return decideGranted(seen, had)
	}
	if why := noAddressReason(cluster); why != "" {
		return refusef("the Cluster %s: its control plane gets no address meanwhile", why)
	}
	requested := ""
	if had.IsValid() {
		requested = had.String()
	}
	switch {
	case claim == nil:
		return Decision{Action: ActionCreate, Claim: newClaim(cluster, pool, requested)}
	case claim.DeletionTimestamp != nil:
		return Decision{Action: ActionWait, Temporary: true, Message: fmt.Sprintf(
			"IPAddressClaim %s is being deleted, and is recreated when it is gone; if it stays, check its finalizers", objectKey(claim))}
	case claim.Spec.PoolRef != pool, requested != "" && claim.Annotations[v1alpha1.RequestedAddressAnnotation] != requested:
		return Decision{Action: ActionDelete}
	}
	return decideWaiting(claim)
}

// decideWithoutPool decides for a Cluster whose address comes from no pool: it is left alone, but keeps an address that
// it has.
func decideWithoutPool(seen ObservedState) Decision {
	leave := Decision{Action: ActionSkip}
	claim := seen.Claim
	if claim == nil || !isOwnedByCluster(seen.Cluster, claim) {
		return leave
	}
	if hasAddressToKeep(seen) {
		had, err := currentEndpoint(seen.Cluster)
		if next := decideGranted(seen, had); err == nil && next.Action != ActionRefuse {
			return next
		}
		return leave
	}
	if noAddressReason(seen.Cluster) != "" || claim.DeletionTimestamp != nil {
		return leave
	}
	return Decision{Action: ActionDelete}
}

// hasAddressToKeep reports whether the claim has, or is about to get, an address that remains the Cluster's. A claim
// that is being deleted keeps its address as long as the Cluster exists (R9: no release while the owner exists).
func hasAddressToKeep(seen ObservedState) bool {
	return isGranted(seen.Claim) && (seen.Claim.DeletionTimestamp == nil || (seen.Address != nil && seen.Address.DeletionTimestamp == nil))
}

// decideGranted serves the address of a claim, but only if the Cluster had none or the same before.
func decideGranted(seen ObservedState, had netip.Addr) Decision {
	key := objectKey(seen.Claim)
	if seen.Address == nil {
		return decideWaiting(seen.Claim)
	}
	address, err := netip.ParseAddr(seen.Address.Spec.Address)
	if err != nil {
		return refusef("IPAddress %s/%s has %q, which is no address", seen.Address.Namespace, seen.Address.Name, text.SanitizeMessage(seen.Address.Spec.Address))
	}
	if had.IsValid() && had != address {
		return refusef("IPAddressClaim %s has %s, and the endpoint of the Cluster is %s, which is not changed; delete the claim, and remove its owner reference: it is recreated and asks for %s; if preAllocations of the pool names the claim, change that first",
			key, address, had, had)
	}
	return Decision{Action: ActionServe, Address: address}
}

// decideWaiting decides for a claim without an address. It passes the claim's condition on, as soon as there is one.
func decideWaiting(claim *ipamv1.IPAddressClaim) Decision {
	key, ref := objectKey(claim), claim.Spec.PoolRef
	ready := meta.FindStatusCondition(claim.Status.Conditions, ipamv1.IPAddressClaimReadyCondition)
	if ready != nil && ready.Status == metav1.ConditionFalse && !isGranted(claim) {
		return Decision{Action: ActionRefuse, Temporary: true, Message: text.SanitizeMessage(fmt.Sprintf("IPAddressClaim %s waits (%s): %s", key, ready.Reason, ready.Message))}
	}
	return Decision{Action: ActionWait, Temporary: true, Message: fmt.Sprintf(
		"IPAddressClaim %s has no answer from %s %s yet; if that stays so, see whether the pool exists, and whether the manager that serves it runs", key, ref.Kind, ref.Name)}
}

// decideForeignClaim leaves a claim alone that the Cluster does not own. The garbage collector deletes that of an
// earlier Cluster of the name.
func decideForeignClaim(cluster *clusterv1.Cluster, claim *ipamv1.IPAddressClaim) Decision {
	key := objectKey(claim)
	for _, ref := range claim.OwnerReferences {
		if ref.Kind == clusterv1.ClusterKind && ref.Name == cluster.Name {
			return Decision{Action: ActionWait, Temporary: true, Message: fmt.Sprintf(
				"IPAddressClaim %s is of an earlier Cluster of this name; the garbage collector deletes it. If it stays, check its finalizers", key)}
		}
	}
	return refusef("IPAddressClaim %s is not owned by the Cluster and is ignored. If it reserves the Cluster's endpoint, adopt it: "+
		"kubectl butler-ipam reserve %s -n %s --pool POOL --cluster %s; delete it only if its address is not in use", key, claim.Name, claim.Namespace, cluster.Name)
}

// currentEndpoint returns the address that a Cluster already has; the zero value where it has none.
func currentEndpoint(cluster *clusterv1.Cluster) (netip.Addr, error) {
	host := cluster.Spec.ControlPlaneEndpoint.Host
	if host == "" {
		return netip.Addr{}, nil
	}
	address, err := netip.ParseAddr(host)
	if err != nil || address.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("the endpoint of the Cluster is %q, which no pool has, and which is not changed; set the variable %s of the Cluster to {name: \"\"}", text.SanitizeMessage(host), PoolVariable)
	}
	return address.Unmap(), nil
}

// noAddressReason returns why a Cluster gets no new address; "" where it gets one.
func noAddressReason(cluster *clusterv1.Cluster) string {
	switch {
	case ending.IsMoved(cluster):
		return "was moved away"
	case cluster.DeletionTimestamp != nil:
		return "is being deleted"
	case annotations.IsPaused(cluster, cluster):
		return "is paused"
	}
	return ""
}

func refusef(format string, args ...any) Decision {
	return Decision{Action: ActionRefuse, Message: fmt.Sprintf(format, args...)}
}
