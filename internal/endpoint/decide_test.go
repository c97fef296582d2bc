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

// lab is a Cluster with an endpoint, or none.
func lab(host string, but ...func(*clusterv1.Cluster)) *clusterv1.Cluster {
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

// asking is the claim of lab, as it is created.
func asking(but ...func(*ipamv1.IPAddressClaim)) *ipamv1.IPAddressClaim {
	c := newClaim(lab(""), machines, "")
	for _, do := range but {
		do(c)
	}
	return c
}

func bound(c *ipamv1.IPAddressClaim) { c.Status.AddressRef.Name = c.Name }
func going(c *ipamv1.IPAddressClaim) { c.DeletionTimestamp = &metav1.Time{} }
func requesting(address string) func(*ipamv1.IPAddressClaim) {
	return func(c *ipamv1.IPAddressClaim) {
		c.Annotations = map[string]string{v1alpha1.RequestedAddressAnnotation: address}
	}
}

func released(address string) *ipamv1.IPAddress {
	a := has(address)
	a.DeletionTimestamp = &metav1.Time{}
	return a
}

func recorded(c *ipamv1.IPAddressClaim) {
	c.Annotations = map[string]string{v1alpha1.AddressAnnotation: "10.0.0.5"}
}
func ofPool(name string) func(*ipamv1.IPAddressClaim) {
	return func(c *ipamv1.IPAddressClaim) { c.Spec.PoolRef.Name = name }
}

func told(reason string) func(*ipamv1.IPAddressClaim) {
	return func(c *ipamv1.IPAddressClaim) {
		c.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: metav1.ConditionFalse, Reason: reason, Message: "no room"}}
	}
}

func ownedBy(refs ...metav1.OwnerReference) func(*ipamv1.IPAddressClaim) {
	return func(c *ipamv1.IPAddressClaim) { c.OwnerReferences = refs }
}

func has(address string) *ipamv1.IPAddress {
	return &ipamv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "lab-control-plane"}, Spec: ipamv1.IPAddressSpec{Address: address}}
}

func TestDecide(t *testing.T) { // U40, U44, U45, U46
	earlier := metav1.OwnerReference{Kind: clusterv1.ClusterKind, Name: "lab", UID: "other-uid"}
	cases := map[string]struct {
		reason    string
		seen      Seen
		step      Step
		address   string
		requested string
		waits     bool
		says      string
	}{
		"nothing yet":                    {seen: Seen{Cluster: lab("")}, step: Create},
		"it asked":                       {seen: Seen{lab(""), asking(), nil}, step: Wait, waits: true, says: "see whether the pool exists"},
		"it is recorded":                 {seen: Seen{lab(""), asking(recorded), nil}, step: Wait, waits: true},
		"it has an answer":               {seen: Seen{lab(""), asking(bound), has("10.0.0.5")}, step: Serve, address: "10.0.0.5"},
		"the pool is full":               {seen: Seen{lab(""), asking(told("PoolExhausted")), nil}, step: Refuse, waits: true, says: "IPAddressClaim ns/lab-control-plane waits (PoolExhausted): no room"},
		"it was told, and has one since": {seen: Seen{lab(""), asking(told("PoolExhausted"), bound), has("10.0.0.5")}, step: Serve, address: "10.0.0.5"},
		"its IPAddress is made anew":     {seen: Seen{lab(""), asking(bound), nil}, step: Wait, waits: true},

		"it has an endpoint, and comes to the class": {seen: Seen{Cluster: lab("10.0.0.9")}, step: Create, requested: "10.0.0.9"},
		"its claim was deleted":                      {seen: Seen{Cluster: lab("10.0.0.5")}, step: Create, requested: "10.0.0.5"},
		"somebody else has it by now":                {seen: Seen{lab("10.0.0.5"), asking(requesting("10.0.0.5"), told("AllocationFailed")), nil}, step: Refuse, waits: true, says: "waits (AllocationFailed)"},
		"it has what it had":                         {seen: Seen{lab("10.0.0.5"), asking(bound), has("10.0.0.5")}, step: Serve, address: "10.0.0.5"},
		"it has another":                             {seen: Seen{lab("10.0.0.5"), asking(bound), has("10.0.0.6")}, step: Refuse, says: "has 10.0.0.6, and the endpoint of the Cluster is 10.0.0.5, which is not changed; delete the claim, and take its owner reference off: it is made anew and asks for 10.0.0.5; if preAllocations"},
		"it asks for none, and has an endpoint":      {reason: "the claim was made before the endpoint was known", seen: Seen{lab("10.0.0.5"), asking(), nil}, step: Delete},
		"its endpoint is a name":                     {seen: Seen{Cluster: lab("lab.example.com")}, step: Refuse, says: `"lab.example.com", which no pool has, and which is not changed; set the variable controlPlanePool of the Cluster to {name: ""}`},
		"IPv6, written in another way":               {seen: Seen{lab("FD00:0:0::5"), asking(bound), has("fd00::5")}, step: Serve, address: "fd00::5"},

		"another pool":                     {seen: Seen{lab(""), asking(ofPool("full"), told("PoolExhausted")), nil}, step: Delete},
		"another pool, and it has one":     {reason: "the address never changes", seen: Seen{lab(""), asking(ofPool("full"), bound), has("10.0.0.5")}, step: Serve, address: "10.0.0.5"},
		"another pool, and one on its way": {reason: "the record is written before the status", seen: Seen{lab(""), asking(ofPool("full"), recorded), nil}, step: Wait, waits: true},

		"paused":                       {seen: Seen{Cluster: lab("", paused)}, step: Refuse, says: "is paused"},
		"paused, and it has an answer": {seen: Seen{lab("", paused), asking(bound), has("10.0.0.5")}, step: Serve, address: "10.0.0.5"},
		"paused, and of another pool":  {seen: Seen{lab("", paused), asking(ofPool("full")), nil}, step: Refuse, says: "is paused"},
		"deleted":                      {seen: Seen{Cluster: lab("", deleting)}, step: Refuse, says: "is being deleted"},
		"moved":                        {seen: Seen{Cluster: lab("", moved)}, step: Refuse, says: "was moved away"},
		"its claim is being deleted":   {seen: Seen{lab("10.0.0.5"), asking(bound, going), has("10.0.0.5")}, step: Serve, address: "10.0.0.5"},
		"its address is released":      {seen: Seen{lab("10.0.0.5"), asking(bound, going), released("10.0.0.5")}, step: Wait, waits: true, says: "is made anew when it is gone"},
		"its address is gone":          {seen: Seen{lab("10.0.0.5"), asking(bound, going), nil}, step: Wait, waits: true, says: "is made anew when it is gone"},

		"a claim of nobody":              {seen: Seen{lab(""), asking(ownedBy(), bound), has("10.0.0.5")}, step: Refuse, says: "reserve lab-control-plane -n ns --pool POOL --cluster lab; delete it only if nobody uses its address"},
		"a claim of somebody else":       {seen: Seen{lab(""), asking(ownedBy(metav1.OwnerReference{Kind: "Pod", Name: "p", UID: "p"})), nil}, step: Refuse, says: "is left alone"},
		"a claim of an earlier Cluster":  {seen: Seen{lab(""), asking(ownedBy(earlier), bound), has("10.0.0.5")}, step: Wait, waits: true, says: "of an earlier Cluster"},
		"an IPAddress of other contents": {seen: Seen{lab(""), asking(bound), has("x")}, step: Refuse, says: "which is no address"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := Decide(c.seen, machines)
			if got.Step != c.step || got.Waits != c.waits || !strings.Contains(got.Message, c.says) {
				t.Errorf("%+v, not step %d, waits %t, %q (%s)", got, c.step, c.waits, c.says, c.reason)
			}
			if c.step == Serve && got.Address.String() != c.address {
				t.Errorf("serves %v, not %s", got.Address, c.address)
			}
			if c.step == Create && got.Claim.Annotations[v1alpha1.RequestedAddressAnnotation] != c.requested {
				t.Errorf("asks for %v, not %q", got.Claim.Annotations, c.requested)
			}
		})
	}
}

// A Cluster that names no pool is left alone, but for an address that it has.
func TestDecideWithoutPool(t *testing.T) { // U41, U44
	cases := map[string]struct {
		seen Seen
		step Step
	}{
		"it has nothing":                       {Seen{Cluster: lab("lab.example.com")}, Leave},
		"a claim of somebody else":             {Seen{lab(""), asking(ownedBy(), bound), has("10.0.0.5")}, Leave},
		"its claim waits":                      {Seen{lab("10.0.0.9"), asking(told("AllocationFailed")), nil}, Delete},
		"its claim waits, and it is paused":    {Seen{lab("", paused), asking(), nil}, Leave},
		"its claim is being deleted":           {Seen{lab(""), asking(bound, going), has("10.0.0.5")}, Serve},
		"its address is released":              {Seen{lab(""), asking(bound, going), released("10.0.0.5")}, Leave},
		"it has an address":                    {Seen{lab("10.0.0.5"), asking(bound), has("10.0.0.5")}, Serve},
		"it is about to have one":              {Seen{lab(""), asking(recorded), nil}, Wait},
		"its claim has another than it has":    {Seen{lab("10.0.0.9"), asking(bound), has("10.0.0.5")}, Leave},
		"its claim has one, and it has a name": {Seen{lab("lab.example.com"), asking(bound), has("10.0.0.5")}, Leave},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := Decide(c.seen, none); got.Step != c.step {
				t.Errorf("%+v, not step %d", got, c.step)
			}
		})
	}
}

func TestNewClaim(t *testing.T) { // U40
	cluster := lab("")
	cluster.Labels = map[string]string{clusterv1.WatchLabel: "blue"}
	got := newClaim(cluster, machines, "")
	if got.Namespace != "ns" || got.Name != "lab-control-plane" || !owns(cluster, got) || got.Spec.PoolRef != machines || got.Spec.ClusterName != "lab" {
		t.Errorf("%+v", got)
	}
	if got.Labels[clusterv1.ClusterNameLabel] != "lab" || got.Labels[clusterv1.WatchLabel] != "blue" {
		t.Errorf("labels %v", got.Labels)
	}
}
