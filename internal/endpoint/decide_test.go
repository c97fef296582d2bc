package endpoint

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

var machines = ipamv1.IPPoolReference{APIGroup: v1alpha1.GroupVersion.Group, Kind: v1alpha1.NetworkPoolKind, Name: "machines"}

// newCluster returns a Cluster with an endpoint, or without one.
func newCluster(host string, but ...func(*clusterv1.Cluster)) *clusterv1.Cluster {
	c := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "lab", UID: "lab-uid"}}
	c.Spec.ControlPlaneEndpoint.Host = host
	for _, do := range but {
		do(c)
	}
	return c
}

func paused(c *clusterv1.Cluster)   { c.Spec.Paused = ptr.To(true) }
func deleting(c *clusterv1.Cluster) { c.DeletionTimestamp = &metav1.Time{} }
func moved(c *clusterv1.Cluster) {
	c.Annotations, c.DeletionTimestamp = map[string]string{v1alpha1.DeleteForMoveAnnotation: ""}, &metav1.Time{}
}

// newClaimOf returns the claim of the Cluster lab, as it is created.
func newClaimOf(but ...func(*ipamv1.IPAddressClaim)) *ipamv1.IPAddressClaim {
	c := newClaim(newCluster(""), machines, "")
	for _, do := range but {
		do(c)
	}
	return c
}

func bound(c *ipamv1.IPAddressClaim)       { c.Status.AddressRef.Name = c.Name }
func markDeleted(c *ipamv1.IPAddressClaim) { c.DeletionTimestamp = &metav1.Time{} }
func requesting(address string) func(*ipamv1.IPAddressClaim) {
	return func(c *ipamv1.IPAddressClaim) {
		c.Annotations = map[string]string{v1alpha1.RequestedAddressAnnotation: address}
	}
}

func released(address string) *ipamv1.IPAddress {
	a := newAddress(address)
	a.DeletionTimestamp = &metav1.Time{}
	return a
}

func recorded(c *ipamv1.IPAddressClaim) {
	c.Annotations = map[string]string{v1alpha1.AddressAnnotation: "10.0.0.5"}
}
func ofPool(name string) func(*ipamv1.IPAddressClaim) {
	return func(c *ipamv1.IPAddressClaim) { c.Spec.PoolRef.Name = name }
}

func withNotReady(reason string) func(*ipamv1.IPAddressClaim) {
	return func(c *ipamv1.IPAddressClaim) {
		c.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: metav1.ConditionFalse, Reason: reason, Message: "no room"}}
	}
}

func ownedBy(refs ...metav1.OwnerReference) func(*ipamv1.IPAddressClaim) {
	return func(c *ipamv1.IPAddressClaim) { c.OwnerReferences = refs }
}

func newAddress(address string) *ipamv1.IPAddress {
	return &ipamv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "lab-control-plane"}, Spec: ipamv1.IPAddressSpec{Address: address}}
}

func TestDecideAction(t *testing.T) { // U40, U44, U45, U46
	earlier := metav1.OwnerReference{Kind: clusterv1.ClusterKind, Name: "lab", UID: "other-uid"}
	cases := map[string]struct {
		reason      string
		seen        ObservedState
		step        Action
		address     string
		requested   string
		waits       bool
		wantMessage string
	}{
		"nothing yet":                        {seen: ObservedState{Cluster: newCluster("")}, step: ActionCreate},
		"it asked":                           {seen: ObservedState{newCluster(""), newClaimOf(), nil}, step: ActionWait, waits: true, wantMessage: "see whether the pool exists"},
		"it is recorded":                     {seen: ObservedState{newCluster(""), newClaimOf(recorded), nil}, step: ActionWait, waits: true},
		"it has an answer":                   {seen: ObservedState{newCluster(""), newClaimOf(bound), newAddress("10.0.0.5")}, step: ActionServe, address: "10.0.0.5"},
		"the pool is full":                   {seen: ObservedState{newCluster(""), newClaimOf(withNotReady("PoolExhausted")), nil}, step: ActionRefuse, waits: true, wantMessage: "IPAddressClaim ns/lab-control-plane waits (PoolExhausted): no room"},
		"it was reported, and has one since": {seen: ObservedState{newCluster(""), newClaimOf(withNotReady("PoolExhausted"), bound), newAddress("10.0.0.5")}, step: ActionServe, address: "10.0.0.5"},
		"its IPAddress is recreated":         {seen: ObservedState{newCluster(""), newClaimOf(bound), nil}, step: ActionWait, waits: true},

		"it has an endpoint, and comes to the class": {seen: ObservedState{Cluster: newCluster("10.0.0.9")}, step: ActionCreate, requested: "10.0.0.9"},
		"its claim was deleted":                      {seen: ObservedState{Cluster: newCluster("10.0.0.5")}, step: ActionCreate, requested: "10.0.0.5"},
		"another claim has it by now":                {seen: ObservedState{newCluster("10.0.0.5"), newClaimOf(requesting("10.0.0.5"), withNotReady("AllocationFailed")), nil}, step: ActionRefuse, waits: true, wantMessage: "waits (AllocationFailed)"},
		"it has what it had":                         {seen: ObservedState{newCluster("10.0.0.5"), newClaimOf(bound), newAddress("10.0.0.5")}, step: ActionServe, address: "10.0.0.5"},
		"it has another":                             {seen: ObservedState{newCluster("10.0.0.5"), newClaimOf(bound), newAddress("10.0.0.6")}, step: ActionRefuse, wantMessage: "has 10.0.0.6, and the endpoint of the Cluster is 10.0.0.5, which is not changed; delete the claim, and remove its owner reference: it is recreated and asks for 10.0.0.5; if preAllocations"},
		"it asks for none, and has an endpoint":      {reason: "the claim was made before the endpoint was known", seen: ObservedState{newCluster("10.0.0.5"), newClaimOf(), nil}, step: ActionDelete},
		"its endpoint is a name":                     {seen: ObservedState{Cluster: newCluster("lab.example.com")}, step: ActionRefuse, wantMessage: `"lab.example.com", which no pool has, and which is not changed; set the variable controlPlanePool of the Cluster to {name: ""}`},
		"IPv6, written in another way":               {seen: ObservedState{newCluster("FD00:0:0::5"), newClaimOf(bound), newAddress("fd00::5")}, step: ActionServe, address: "fd00::5"},

		"another pool":                     {seen: ObservedState{newCluster(""), newClaimOf(ofPool("full"), withNotReady("PoolExhausted")), nil}, step: ActionDelete},
		"another pool, and it has one":     {reason: "the address never changes", seen: ObservedState{newCluster(""), newClaimOf(ofPool("full"), bound), newAddress("10.0.0.5")}, step: ActionServe, address: "10.0.0.5"},
		"another pool, and one on its way": {reason: "the record is written before the status", seen: ObservedState{newCluster(""), newClaimOf(ofPool("full"), recorded), nil}, step: ActionWait, waits: true},

		"paused":                       {seen: ObservedState{Cluster: newCluster("", paused)}, step: ActionRefuse, wantMessage: "is paused"},
		"paused, and it has an answer": {seen: ObservedState{newCluster("", paused), newClaimOf(bound), newAddress("10.0.0.5")}, step: ActionServe, address: "10.0.0.5"},
		"paused, and of another pool":  {seen: ObservedState{newCluster("", paused), newClaimOf(ofPool("full")), nil}, step: ActionRefuse, wantMessage: "is paused"},
		"deleted":                      {seen: ObservedState{Cluster: newCluster("", deleting)}, step: ActionRefuse, wantMessage: "is being deleted"},
		"moved":                        {seen: ObservedState{Cluster: newCluster("", moved)}, step: ActionRefuse, wantMessage: "was moved away"},
		"its claim is being deleted":   {seen: ObservedState{newCluster("10.0.0.5"), newClaimOf(bound, markDeleted), newAddress("10.0.0.5")}, step: ActionServe, address: "10.0.0.5"},
		"its address is released":      {seen: ObservedState{newCluster("10.0.0.5"), newClaimOf(bound, markDeleted), released("10.0.0.5")}, step: ActionWait, waits: true, wantMessage: "is recreated when it is gone"},
		"its address is gone":          {seen: ObservedState{newCluster("10.0.0.5"), newClaimOf(bound, markDeleted), nil}, step: ActionWait, waits: true, wantMessage: "is recreated when it is gone"},

		"a claim without owner":          {seen: ObservedState{newCluster(""), newClaimOf(ownedBy(), bound), newAddress("10.0.0.5")}, step: ActionRefuse, wantMessage: "reserve lab-control-plane -n ns --pool POOL --cluster lab; delete it only if its address is not in use"},
		"a claim of another owner":       {seen: ObservedState{newCluster(""), newClaimOf(ownedBy(metav1.OwnerReference{Kind: "Pod", Name: "p", UID: "p"})), nil}, step: ActionRefuse, wantMessage: "is not owned by the Cluster and is ignored"},
		"a claim of an earlier Cluster":  {seen: ObservedState{newCluster(""), newClaimOf(ownedBy(earlier), bound), newAddress("10.0.0.5")}, step: ActionWait, waits: true, wantMessage: "of an earlier Cluster"},
		"an IPAddress of other contents": {seen: ObservedState{newCluster(""), newClaimOf(bound), newAddress("x")}, step: ActionRefuse, wantMessage: "which is no address"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := DecideAction(c.seen, machines)
			if got.Action != c.step || got.Temporary != c.waits || !strings.Contains(got.Message, c.wantMessage) {
				t.Errorf("%+v, not step %d, waits %t, %q (%s)", got, c.step, c.waits, c.wantMessage, c.reason)
			}
			if c.step == ActionServe && got.Address.String() != c.address {
				t.Errorf("serves %v, not %s", got.Address, c.address)
			}
			if c.step == ActionCreate && got.Claim.Annotations[v1alpha1.RequestedAddressAnnotation] != c.requested {
				t.Errorf("asks for %v, not %q", got.Claim.Annotations, c.requested)
			}
		})
	}
}

// TestDecideWithoutPool checks that a Cluster that names no pool is left alone, but keeps an address that it has.
func TestDecideWithoutPool(t *testing.T) { // U41, U44
	cases := map[string]struct {
		seen ObservedState
		step Action
	}{
		"it has nothing":                       {ObservedState{Cluster: newCluster("lab.example.com")}, ActionSkip},
		"a claim of another owner":             {ObservedState{newCluster(""), newClaimOf(ownedBy(), bound), newAddress("10.0.0.5")}, ActionSkip},
		"its claim waits":                      {ObservedState{newCluster("10.0.0.9"), newClaimOf(withNotReady("AllocationFailed")), nil}, ActionDelete},
		"its claim waits, and it is paused":    {ObservedState{newCluster("", paused), newClaimOf(), nil}, ActionSkip},
		"its claim is being deleted":           {ObservedState{newCluster(""), newClaimOf(bound, markDeleted), newAddress("10.0.0.5")}, ActionServe},
		"its address is released":              {ObservedState{newCluster(""), newClaimOf(bound, markDeleted), released("10.0.0.5")}, ActionSkip},
		"it has an address":                    {ObservedState{newCluster("10.0.0.5"), newClaimOf(bound), newAddress("10.0.0.5")}, ActionServe},
		"it is about to have one":              {ObservedState{newCluster(""), newClaimOf(recorded), nil}, ActionWait},
		"its claim has another than it has":    {ObservedState{newCluster("10.0.0.9"), newClaimOf(bound), newAddress("10.0.0.5")}, ActionSkip},
		"its claim has one, and it has a name": {ObservedState{newCluster("lab.example.com"), newClaimOf(bound), newAddress("10.0.0.5")}, ActionSkip},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := DecideAction(c.seen, noPool); got.Action != c.step {
				t.Errorf("%+v, not step %d", got, c.step)
			}
		})
	}
}

func TestNewClaim(t *testing.T) { // U40
	cluster := newCluster("")
	cluster.Labels = map[string]string{clusterv1.WatchLabel: "blue"}
	got := newClaim(cluster, machines, "")
	if got.Namespace != "ns" || got.Name != "lab-control-plane" || !isOwnedByCluster(cluster, got) || got.Spec.PoolRef != machines || got.Spec.ClusterName != "lab" {
		t.Errorf("%+v", got)
	}
	if got.Labels[clusterv1.ClusterNameLabel] != "lab" || got.Labels[clusterv1.WatchLabel] != "blue" {
		t.Errorf("labels %v", got.Labels)
	}
}
