package cli

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// A claim reserves an address; the command prints the address alone, and the same one each time.
func TestReserveAddress(t *testing.T) { // U80
	ns := newNamespace(t, nil)
	startManager(t, ns)
	pool := framework.MakePool("machines").Namespace(ns).CIDR("10.91.4.0/29").Gateway("10.91.4.1").Obj() // .2 to .6 are handed out
	create(t, pool)
	ready(t, pool, metav1.ConditionTrue)
	expect(t, 0, "10.91.4.2\n", "reserve", "prod-control-plane", "--pool=machines", "-n", ns)
	expect(t, 0, "10.91.4.2\n", "reserve", "prod-control-plane", "--pool=np/machines", "-n", ns)
	expect(t, 0, "10.91.4.5\n", "reserve", "wanted", "--pool=machines", "--address=10.91.4.5", "-n", ns)
	expect(t, 0, "10.91.4.2 29 10.91.4.1", "reserve", "prod-control-plane", "--pool=machines", "-n", ns, "-o", "jsonpath={.address} {.prefix} {.gateway}")

	// Once the Cluster exists, it becomes the owner of the claim.
	claim := &ipamv1.IPAddressClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "prod-control-plane"}}
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "prod"}}
	cluster.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "TestCluster", Name: "prod"}
	create(t, cluster)
	for range 2 {
		expect(t, 0, "10.91.4.2\n", "reserve", "prod-control-plane", "--pool=machines", "--cluster=prod", "-n", ns)
		if err := k8s.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
			t.Fatal(err)
		}
		if owners := claim.OwnerReferences; len(owners) != 1 || owners[0].UID != cluster.UID {
			t.Fatalf("the claim is owned by %v", owners)
		}
		if of := claim.Labels[clusterv1.ClusterNameLabel]; of != cluster.Name { // the label stays as long as the Cluster exists
			t.Fatalf("the claim is of Cluster %q", of)
		}
	}

	taken := framework.MakeClaim(ns, "taken").Pool("machines").RequestAddress("10.91.4.5").Obj()
	create(t, taken)
	ready(t, taken, metav1.ConditionFalse)
	for name, tc := range map[string]struct {
		args   []string
		code   int
		errOut string
	}{
		"no pool":       {[]string{"x"}, 2, `required flag(s) "pool" not set`},
		"wrong pool":    {[]string{"x", "--pool=none"}, 2, "NetworkPool " + ns + "/none does not exist; is it a global one? Then write gnp/none"},
		"no address":    {[]string{"x", "--pool=machines", "--address=10.91.4"}, 2, `--address: "10.91.4" is not an address`},
		"had another":   {[]string{"wanted", "--pool=machines", "--address=10.91.4.6"}, 2, "IPAddressClaim " + ns + "/wanted has had 10.91.4.5 before: delete it, or reserve 10.91.4.6 under another name"},
		"no Cluster":    {[]string{"x", "--pool=machines", "--cluster=none"}, 2, `reading the Cluster that the claim is to belong to: clusters.cluster.x-k8s.io "none" not found`},
		"not to be had": {[]string{"taken", "--pool=machines", "--address=10.91.4.5", "--timeout=1ms"}, 1, "IPAddressClaim " + ns + "/taken waits: AllocationFailed: "},
	} {
		t.Run(name, func(t *testing.T) {
			out, errOut, code := run(t, append([]string{"reserve", "-n", ns}, tc.args...)...)
			if code != tc.code || out != "" || !strings.Contains(errOut, tc.errOut) {
				t.Errorf("exit code %d, prints %q and %q", code, out, errOut)
			}
		})
	}
	other := framework.MakePool("other").Namespace(ns).CIDR("10.91.5.0/29").Obj()
	create(t, other)
	want := "IPAddressClaim " + ns + "/wanted exists, and names NetworkPool machines: delete it, or choose another name"
	if _, errOut, code := run(t, "reserve", "wanted", "--pool=other", "-n", ns); code != 2 || !strings.Contains(errOut, want) {
		t.Errorf("exit code %d, and prints %q", code, errOut)
	}
}
