package cli

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// U55: the explanation of a waiting claim shows its failure domain, and the subnets that serve it; the number of free
// addresses for each is shown too.
func TestFailureDomains(t *testing.T) {
	ns := newNamespace(t, nil)
	startManager(t, ns, "--failure-domains")
	pool := framework.MakePool("zones").Namespace(ns).Addresses("10.95.0.1-10.95.0.3", "10.95.1.1").Obj()
	pool.Spec.Subnets = []v1alpha1.Subnet{{CIDR: "10.95.0.0/24"}, {CIDR: "10.95.1.0/24", FailureDomains: []string{"zone-a"}}}
	in := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "m"}}
	in.Spec.ClusterName, in.Spec.FailureDomain, in.Spec.Bootstrap.DataSecretName = "k", "zone-a", new("none")
	in.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "VM", Name: "m"}
	create(t, pool)
	create(t, in)
	served, waits := framework.MakeClaim(ns, "has").Pool("zones").Obj(), framework.MakeClaim(ns, "waits").Pool("zones").Obj()
	for _, claim := range []*ipamv1.IPAddressClaim{served, waits} {
		claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: in.Name, UID: in.UID}}
	}
	create(t, served)
	ready(t, served, metav1.ConditionTrue)
	create(t, waits)
	ready(t, waits, metav1.ConditionFalse)
	expect(t, 1, "IPAddressClaim "+ns+"/waits waits\n  why:    NetworkPool "+ns+"/zones has no free address for failure domain zone-a: those in 10.95.1.0/24 are allocated, reserved or resting, or there are none\n"+
		"  to do:  add addresses there, or a subnet for the failure domain, or delete machines or claims\n", "explain", "claim/waits", "-n", ns)
	expect(t, 0, "A claim without a failure domain would get 10.95.0.1 of NetworkPool "+ns+"/zones; 1 other waits for this pool.\n"+
		"3 addresses are free; the largest free block has 3.\n  without a failure domain: 3\n  for failure domain zone-a: 0\n  10.95.0.1-10.95.0.3\n", "free", "zones", "-n", ns)
}
