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

// Seen is what the API server has.
type Seen struct {
	Cluster *clusterv1.Cluster
	// Claim is the one of the Cluster's name; nil: there is none.
	Claim *ipamv1.IPAddressClaim
	// Address is the one that the status of the claim names; nil: it names none, or none that is there.
	Address *ipamv1.IPAddress
}

// Step is what comes next.
type Step int

// All steps. After each but the last three there is something else to be seen.
const (
	// Wait for a change of the claim.
	Wait Step = iota
	// Create the claim.
	Create
	// Delete the claim, if nobody has written it since it was seen.
	Delete
	// Refuse: the Cluster has no address now.
	Refuse
	// Serve the address.
	Serve
	// Leave the templates as they are.
	Leave
)

// Decision is the next step.
type Decision struct {
	Step
	// Claim is the one to create.
	Claim *ipamv1.IPAddressClaim
	// Address is the one to serve.
	Address netip.Addr
	// Message says why there is no address, or what is waited for, and what to do.
	Message string
	// Waits reports whether a refusal ends by itself, as soon as the pool has an address.
	Waits bool
}

// Decide returns the next step for the control plane of a Cluster that is to have an address of a pool, or of none. The
// Cluster keeps the one that it has, wherever that comes from.
func Decide(seen Seen, pool ipamv1.IPPoolReference) Decision {
	cluster, claim := seen.Cluster, seen.Claim
	if pool == none {
		return leftOut(seen)
	}
	if claim != nil && !owns(cluster, claim) {
		return notIts(cluster, claim)
	}
	had, err := hadBy(cluster)
	if err != nil {
		return refuse("%v", err)
	}
	if claim != nil && keeps(seen) {
		return granted(seen, had)
	}
	if why := getsNothing(cluster); why != "" {
		return refuse("the Cluster %s: its control plane gets no address meanwhile", why)
	}
	requested := ""
	if had.IsValid() {
		requested = had.String()
	}
	switch {
	case claim == nil:
		return Decision{Step: Create, Claim: newClaim(cluster, pool, requested)}
	case claim.DeletionTimestamp != nil:
		return Decision{Step: Wait, Waits: true, Message: fmt.Sprintf(
			"IPAddressClaim %s is being deleted, and is made anew when it is gone; if it stays, look at its finalizers", keyOf(claim))}
	case claim.Spec.PoolRef != pool, requested != "" && claim.Annotations[v1alpha1.RequestedAddressAnnotation] != requested:
		return Decision{Step: Delete}
	}
	return waiting(claim)
}

// leftOut leaves a Cluster alone that is to have no address of a pool. One that it has already stays its own.
func leftOut(seen Seen) Decision {
	leave := Decision{Step: Leave}
	claim := seen.Claim
	if claim == nil || !owns(seen.Cluster, claim) {
		return leave
	}
	if keeps(seen) {
		had, err := hadBy(seen.Cluster)
		if next := granted(seen, had); err == nil && next.Step != Refuse {
			return next
		}
		return leave
	}
	if getsNothing(seen.Cluster) != "" || claim.DeletionTimestamp != nil {
		return leave
	}
	return Decision{Step: Delete}
}

// keeps reports whether the claim has an address that stays the Cluster's, or is about to be told of one. A claim that is
// deleted keeps it as long as the Cluster is there (R9).
func keeps(seen Seen) bool {
	return isGranted(seen.Claim) && (seen.Claim.DeletionTimestamp == nil || (seen.Address != nil && seen.Address.DeletionTimestamp == nil))
}

// granted serves what a claim has: only if that is what the Cluster had before.
func granted(seen Seen, had netip.Addr) Decision {
	key := keyOf(seen.Claim)
	if seen.Address == nil {
		return waiting(seen.Claim)
	}
	address, err := netip.ParseAddr(seen.Address.Spec.Address)
	if err != nil {
		return refuse("IPAddress %s/%s has %q, which is no address", seen.Address.Namespace, seen.Address.Name, text.Message(seen.Address.Spec.Address))
	}
	if had.IsValid() && had != address {
		return refuse("IPAddressClaim %s has %s, and the endpoint of the Cluster is %s, which is not changed; delete the claim, and take its owner reference off: it is made anew and asks for %s; if preAllocations of the pool names the claim, change that first",
			key, address, had, had)
	}
	return Decision{Step: Serve, Address: address}
}

// waiting says what a claim is told that has no address, as soon as it is told anything.
func waiting(claim *ipamv1.IPAddressClaim) Decision {
	key, ref := keyOf(claim), claim.Spec.PoolRef
	ready := meta.FindStatusCondition(claim.Status.Conditions, ipamv1.IPAddressClaimReadyCondition)
	if ready != nil && ready.Status == metav1.ConditionFalse && !isGranted(claim) {
		return Decision{Step: Refuse, Waits: true, Message: text.Message(fmt.Sprintf("IPAddressClaim %s waits (%s): %s", key, ready.Reason, ready.Message))}
	}
	return Decision{Step: Wait, Waits: true, Message: fmt.Sprintf(
		"IPAddressClaim %s has no answer from %s %s yet; if that stays so, see whether the pool exists, and whether the manager that serves it runs", key, ref.Kind, ref.Name)}
}

// notIts leaves a claim alone that is not the Cluster's. One of an earlier Cluster of the name goes by itself.
func notIts(cluster *clusterv1.Cluster, claim *ipamv1.IPAddressClaim) Decision {
	key := keyOf(claim)
	for _, ref := range claim.OwnerReferences {
		if ref.Kind == clusterv1.ClusterKind && ref.Name == cluster.Name {
			return Decision{Step: Wait, Waits: true, Message: fmt.Sprintf(
				"IPAddressClaim %s is of an earlier Cluster of this name; the garbage collector deletes it. If it stays, look at its finalizers", key)}
		}
	}
	return refuse("IPAddressClaim %s is not the Cluster's, which does not own it, and is left alone; if it keeps the Cluster's own address, give it to the Cluster: "+
		"kubectl butler-ipam reserve %s -n %s --pool POOL --cluster %s; delete it only if nobody uses its address", key, claim.Name, claim.Namespace, cluster.Name)
}

// hadBy returns the address that a Cluster has already.
func hadBy(cluster *clusterv1.Cluster) (netip.Addr, error) {
	host := cluster.Spec.ControlPlaneEndpoint.Host
	if host == "" {
		return netip.Addr{}, nil
	}
	address, err := netip.ParseAddr(host)
	if err != nil || address.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("the endpoint of the Cluster is %q, which no pool has, and which is not changed; set the variable %s of the Cluster to {name: \"\"}", text.Message(host), PoolVariable)
	}
	return address.Unmap(), nil
}

// getsNothing says why a Cluster gets nothing new; empty: it does.
func getsNothing(cluster *clusterv1.Cluster) string {
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

func refuse(format string, args ...any) Decision {
	return Decision{Step: Refuse, Message: fmt.Sprintf(format, args...)}
}
