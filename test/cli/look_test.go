package cli

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// One namespace with objects of every sort, inspected with every command.
func TestInspectNamespace(t *testing.T) {
	const ns = "team-a" // as in docs/plugin.md
	createNamespace(t, ns, nil)
	startManager(t, "", "--node-cidrs=on")
	pool := framework.MakePool("machines").Namespace(ns).CIDR("10.90.0.0/27").Gateway("10.90.0.1").Reserved("10.90.0.2-10.90.0.9").
		PreAllocate("vip", "10.90.0.20").ReuseGracePeriod(600).Obj()
	pool.Spec.Reserved[0].Description = "switches"
	small := framework.MakePool("small").Namespace(ns).Addresses("10.90.1.1", "10.90.1.3", "10.90.1.5").Obj()
	cluster := &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "prod"},
		Spec:       clusterv1.ClusterSpec{ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "h", Port: 1}},
	}
	idle := cluster.DeepCopy()
	idle.Name, idle.Spec.Paused = "idle", ptr.To(true)
	create(t, pool, small, cluster, idle)
	owned := framework.MakeClaim(ns, "worker-0").Pool("machines").Cluster("prod").Obj()
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: "prod", UID: cluster.UID}}
	block := framework.MakeAllocation(ns, "lb").Pool("machines").Cluster(ns, "prod").Count(4).Obj()
	leaving := framework.MakeClaim(ns, "leaving").Pool("machines").Obj()
	tooLarge := framework.MakeAllocation(ns, "too-large").Pool("small").Cluster(ns, "prod").Count(2).Obj()
	create(t, owned)
	ready(t, owned, metav1.ConditionTrue)
	create(t, block)
	ready(t, block, metav1.ConditionTrue)
	lost := framework.MakeClaim(ns, "lost").Pool("nowhere").Obj()
	orphan := framework.MakeClaim(ns, "orphan").Pool("machines").Cluster("gone").Obj()
	mistyped := framework.MakeClaim(ns, "mistyped").PoolRef("butler.butlerlabs.dev", "Networkpool", "machines").Obj()
	create(t, leaving, tooLarge, lost, orphan, mistyped, framework.MakeClaim(ns, "paused").Pool("machines").Cluster("idle").Obj(),
		framework.MakeClaim(ns, "foreign").PoolRef("ipam.cluster.x-k8s.io", "InClusterIPPool", "x").Obj())
	ready(t, leaving, metav1.ConditionTrue)
	for _, waits := range []client.Object{tooLarge, lost, orphan, mistyped} {
		ready(t, waits, metav1.ConditionFalse)
	}
	if err := k8s.Delete(t.Context(), leaving); err != nil {
		t.Fatal(err)
	}
	eventually(t, gone(leaving))
	ready(t, pool, metav1.ConditionTrue)
	ready(t, small, metav1.ConditionTrue)
	eventually(t, settled(pool, 5))
	createNodesToInspect(t)

	t.Run("pools", func(t *testing.T) {
		expect(t, 0, ""+
			"NAMESPACE  NAME      KIND         ADDRESSES               TOTAL  FREE  USED  LARGEST  USAGE              READY\n"+
			ns+"     machines  NetworkPool  10.90.0.0/27            21     14    5     10       [##--------]  23%  True\n"+
			ns+"     small     NetworkPool  10.90.1.1,10.90.1.3,+1  3      3     0     1        [----------]   0%  True\n",
			"pools", "-n", ns)
	})
	t.Run("pools for programs", func(t *testing.T) {
		expect(t, 0, ""+
			"items:\n- addresses:\n  - 10.90.0.0/27\n  free: 14\n  kind: NetworkPool\n  largestFreeBlock: 10\n"+
			"  message: 14/21 IPs available (2 allocations)\n  name: machines\n  namespace: "+ns+"\n  ready: \"True\"\n"+
			"  reason: Ready\n  total: 21\n  used: 5\n  usedPercent: 23\n"+
			"- addresses:\n  - 10.90.1.1\n  - 10.90.1.3\n  - 10.90.1.5\n  free: 3\n  kind: NetworkPool\n  largestFreeBlock: 1\n"+
			"  message: 3/3 IPs available (0 allocations)\n  name: small\n  namespace: "+ns+"\n  ready: \"True\"\n"+
			"  reason: Ready\n  total: 3\n  used: 0\n  usedPercent: 0\n", "pools", "-n", ns, "-o", "yaml")
		expect(t, 0, "14 3", "pools", "-n", ns, "-o", "jsonpath={.items[*].free}")
		expect(t, 1, "{\n    \"subject\": \"IPAddressClaim "+ns+"/lost\",\n    \"verdict\": \"waits\",\n    \"served\": false,\n    \"findings\": [\n"+
			"        {\n            \"what\": \"NetworkPool "+ns+"/nowhere does not exist\",\n"+
			"            \"do\": \"create the pool, or create the object again with the right poolRef, which is immutable\"\n        }\n    ]\n}\n",
			"explain", "claim/lost", "-n", ns, "-o", "json")
	})
	in := " in NetworkPool " + ns + "/machines"
	for address, want := range map[string]string{
		"10.90.0.10": " is used" + in + "\n  IPAddressClaim  " + ns + "/worker-0\n  since           TIME\n  Cluster         " + ns + "/prod\n",
		"10.90.0.12": " is used" + in + "\n  IPAllocation  " + ns + "/lb, 10.90.0.11-10.90.0.14\n  since         TIME\n  Cluster       " + ns + "/prod\n",
		"10.90.0.15": " is resting" + in + ": until TIME; " + ns + "/leaving released it\n",
		"10.90.0.5":  " is reserved" + in + ": reserved by spec.reserved[0] (10.90.0.2-10.90.0.9: switches)\n",
		"10.90.0.1":  " is reserved" + in + ": the gateway (spec.gateway)\n",
		"10.90.0.20": " is kept" + in + ": preAllocations keeps it for claims named vip\n",
		"10.90.0.25": " is free" + in + "\n",
		"10.90.0.31": " is reserved" + in + ": the last address of the network 10.90.0.0/27, which hosts do not use\n",
		"192.0.2.1":  " is in no pool, no ClusterCIDR, no pod CIDR of a Node.\n",
	} {
		t.Run("who "+address, func(t *testing.T) { expect(t, 0, address+want, "who", address) })
	}
	t.Run("explain a pool", func(t *testing.T) {
		expect(t, 0, "NetworkPool "+ns+"/machines grants addresses: 14/21 IPs available (2 allocations)\n", "explain", "np/machines", "-n", ns)
	})
	t.Run("free", func(t *testing.T) {
		ranges := "14 addresses are free; the largest free block has 10.\n  10.90.0.16/30\n  10.90.0.21-10.90.0.30\n"
		of := " of NetworkPool " + ns + "/machines; 2 others wait for this pool.\n" + ranges
		expect(t, 0, "A block of 8 would get 10.90.0.21-10.90.0.28"+of, "free", "machines", "--namespace="+ns, "--count=8")
		expect(t, 0, "A block of 8 would get 10.90.0.21-10.90.0.28"+of, "free", "machines", "-n", "8", "--namespace="+ns)
		expect(t, 0, "A claim would get 10.90.0.16"+of, "free", "np/machines", "-n", ns)
		expect(t, 1, "NetworkPool "+ns+"/small has no room for a block of 2; 1 other waits for this pool.\n3 addresses are free; the largest free block has 1.\n"+
			"  10.90.1.1\n  10.90.1.3\n  10.90.1.5\n", "free", "small", "-n", ns, "--count=2")
	})
	for name, c := range map[string]struct {
		code int
		want string
	}{
		"claim/worker-0": {0, "IPAddressClaim " + ns + "/worker-0 has 10.90.0.10 of NetworkPool machines\n"},
		"ipa/lb":         {0, "IPAllocation " + ns + "/lb has 10.90.0.11-10.90.0.14 of NetworkPool machines\n"},
		"claim/paused": {1, "IPAddressClaim " + ns + "/paused waits\n  why:    its Cluster " + ns + "/idle is paused\n  to do:  kubectl patch cluster -n " + ns +
			" idle --type=merge -p '{\"spec\":{\"paused\":false}}', or remove the annotation cluster.x-k8s.io/paused\n"},
		"claim/lost": {1, "IPAddressClaim " + ns + "/lost waits\n  why:    NetworkPool " + ns + "/nowhere does not exist\n" +
			"  to do:  create the pool, or create the object again with the right poolRef, which is immutable\n"},
		"claim/orphan": {1, "IPAddressClaim " + ns + "/orphan waits\n  why:    waiting for Cluster " + ns + "/gone, which does not exist\n" +
			"  to do:  create the Cluster, or correct spec.clusterName or the label cluster.x-k8s.io/cluster-name of the claim\n"},
		"claim/mistyped": {1, "IPAddressClaim " + ns + "/mistyped names no pool of this provider\n  why:    its poolRef names kind Networkpool, which the group butler.butlerlabs.dev does not have\n" +
			"  to do:  poolRef is immutable, so create the claim again with kind NetworkPool\n"},
		"ipallocation/too-large": {1, "IPAllocation " + ns + "/too-large waits\n  why:    no contiguous block available: NetworkPool " + ns +
			"/small has no 2 free addresses in a row (3 free, at most 1 in a row)\n" +
			"  to do:  add addresses to the pool, ask for fewer, or delete allocations\n"},
	} {
		t.Run("explain "+name, func(t *testing.T) { expect(t, c.code, c.want, "explain", name, "-n", ns) })
	}
	t.Run("nodes", checkNodeCommands)
	t.Run("audit", func(t *testing.T) {
		out, _, code := run(t, "audit", "--strict")
		if code != 0 || !strings.HasSuffix(out, ": nothing is held twice, nothing is lost\n") {
			t.Error(out)
		}
	})
	t.Run("documented", func(t *testing.T) { documented(t, "plugin.md") })
	t.Run("completion", func(t *testing.T) {
		out, _, _ := run(t, "__complete", "free", "-n", ns, "")
		if !strings.HasPrefix(out, "machines\nsmall\n") {
			t.Error(out)
		}
	})
}
