package tenancy

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

func newPoolRef(name string) v1alpha1.PoolReference {
	return v1alpha1.PoolReference{Kind: v1alpha1.NetworkPoolKind, Name: name}
}

func openPool(name string, largest int64) Pool {
	return Pool{Ref: newPoolRef(name), Availability: PoolOpen, AvailableIPs: 1000, LargestFreeBlock: largest}
}

func otherPool(name string, state PoolAvailability, message string) Pool {
	return Pool{Ref: newPoolRef(name), Availability: state, Message: message, LargestFreeBlock: 1000}
}

// TestValidateNetwork checks that mode ipam without a pool or with an unknown pool (B31), exhausted pools (B32) and
// other faults of the pools (B79) are reported.
func TestValidateNetwork(t *testing.T) {
	missing := otherPool("gone", PoolMissing, "does not exist")
	closed := otherPool("closed", PoolClosed, "is being deleted")
	settling := otherPool("new", PoolSettling, "has not been served by a manager yet")
	var many []Pool
	for i := range 10 {
		many = append(many, otherPool(fmt.Sprintf("p%d", i), PoolClosed, "is being deleted"))
	}
	tests := map[string]struct {
		reason           string
		network          network
		pools            []Pool
		available, ready string // status, reason, part of the message
	}{
		"Cloud": {reason: "no pool is needed", network: network{Mode: v1alpha1.CloudMode}, available: "True CloudMode mode is cloud", ready: "True CloudMode mode is cloud"},
		"Absent": {reason: "cloud is the default", network: network{}, pools: []Pool{missing},
			available: "True CloudMode mode is cloud", ready: "True CloudMode mode is cloud"},
		"NoPools": {reason: "ipam without pools", available: "False ValidationFailed names no pools; add spec.network.poolRefs", ready: "False ValidationFailed names no pools"},
		"Unknown": {reason: "a pool that is not there", pools: []Pool{missing}, available: "False ValidationFailed NetworkPool gone does not exist; create it, or correct the entry", ready: "False ValidationFailed NetworkPool gone does not exist"},
		"Entry": {reason: "which of them it is", network: network{Mode: v1alpha1.IPAMMode, PoolRefs: []v1alpha1.ProviderPoolReference{{PoolReference: newPoolRef("p")}, {PoolReference: v1alpha1.PoolReference{Name: "gone"}}}}, pools: []Pool{openPool("p", 8), missing},
			available: "True PoolAvailable served by NetworkPool p", ready: "False ValidationFailed spec.network.poolRefs[1]: NetworkPool gone does not exist; create it, or correct the entry"},
		"Serves":    {reason: "one pool with room is enough", pools: []Pool{openPool("p", 8)}, available: "True PoolAvailable served by NetworkPool p", ready: "True Ready served by NetworkPool p"},
		"Typo":      {reason: "a wrong name is wrong although others serve", pools: []Pool{openPool("p", 8), missing}, available: "True PoolAvailable served by NetworkPool p; the other pools: NetworkPool gone does not exist", ready: "False ValidationFailed NetworkPool gone does not exist"},
		"Failover":  {reason: "a full pool is no fault while another has room", pools: []Pool{openPool("p", 7), openPool("q", 8)}, available: "True PoolAvailable served by NetworkPool q; the other pools: NetworkPool p has no 8 free", ready: "True Ready served by NetworkPool q"},
		"OneClosed": {reason: "nor is a closed one", pools: []Pool{closed, openPool("q", 8)}, available: "True PoolAvailable new Clusters are served by NetworkPool q; the other pools: NetworkPool closed is being deleted", ready: "True Ready served by NetworkPool q"},
		"NotReady":  {reason: "all closed", pools: []Pool{closed}, available: "False NetworkNotReady NetworkPool closed is being deleted", ready: "False NetworkNotReady is being deleted"},
		"Exhausted": {reason: "all full", pools: []Pool{openPool("p", 0), openPool("q", 0)}, available: "False PoolExhausted NetworkPool p has no 8 free addresses in a row; NetworkPool q has no 8 free addresses in a row; add", ready: "False PoolExhausted in a row"},
		"Pieces":    {reason: "enough, but in pieces, is not enough (F7)", pools: []Pool{openPool("p", 7)}, available: "False PoolExhausted no 8 free addresses in a row", ready: "False PoolExhausted in a row"},
		"Settling":  {reason: "not known yet", pools: []Pool{settling}, available: "Unknown Reconciling NetworkPool new has not been served by a manager yet", ready: "Unknown Reconciling has not been served by a manager yet"},
		"FullAndNew": {reason: "what is new may have room", pools: []Pool{openPool("p", 0), settling},
			available: "Unknown Reconciling has not been served by a manager yet; NetworkPool p has no 8", ready: "Unknown Reconciling has not been served by a manager yet"},
		"FullAndClosed": {reason: "full is what can be helped", pools: []Pool{openPool("p", 0), closed}, available: "False PoolExhausted NetworkPool closed is being deleted", ready: "False PoolExhausted in a row"},
		"FullAndGone":   {reason: "two faults", pools: []Pool{openPool("p", 0), missing}, available: "False PoolExhausted NetworkPool gone does not exist", ready: "False ValidationFailed gone"},
		"RealSize": {reason: "what a Cluster of this ProviderConfig takes", network: network{Mode: v1alpha1.IPAMMode, LoadBalancer: &lb{AllocationMode: v1alpha1.ElasticAllocation}},
			pools: []Pool{openPool("p", 2)}, available: "True PoolAvailable p", ready: "True Ready p"},
		"SizeNone": {reason: "a Cluster that begins with none will want one", network: network{Mode: v1alpha1.IPAMMode, LoadBalancer: &lb{AllocationMode: v1alpha1.ElasticAllocation, InitialPoolSize: ptr.To[int32](0)}},
			pools: []Pool{openPool("p", 0)}, available: "False PoolExhausted no 1 free", ready: "False PoolExhausted no 1 free"},
		"Many": {reason: "no user reads a hundred names", pools: many, available: "False NetworkNotReady p7 is being deleted; and 2 more", ready: "False NetworkNotReady and 2 more"},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			if c.network.Mode == "" && name != "Absent" {
				c.network.Mode = v1alpha1.IPAMMode
			}
			got := ValidateNetwork(c.network, c.pools)
			for _, x := range []struct {
				condition metav1.Condition
				kind      string
				want      string
			}{{got.PoolAvailable, v1alpha1.PoolAvailableCondition, c.available}, {got.Ready, v1alpha1.ReadyCondition, c.ready}} {
				want := strings.SplitN(x.want, " ", 3)
				if x.condition.Type != x.kind || string(x.condition.Status) != want[0] || x.condition.Reason != want[1] || !strings.Contains(x.condition.Message, want[2]) {
					t.Errorf("%s: %+v", c.reason, x.condition)
				}
			}
			if got.IsValid != (got.Ready.Reason != v1alpha1.ValidationFailedReason) {
				t.Errorf("%s: validated is %v", c.reason, got.IsValid)
			}
		})
	}
}
