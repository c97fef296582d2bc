package migrate

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
)

// TestPlanImport checks the plan for an input without a problem, and for each problem.
func TestPlanImport(t *testing.T) {
	source := Source{incluster.IPPoolKind, "ns", "p"}
	paused := map[string]string{clusterv1.PausedAnnotation: ""}
	k := client.ObjectKey{Namespace: "ns", Name: "k"}
	give := func(in *planInput, name, address string) {
		in.claims = append(in.claims, ipamv1.IPAddressClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: "k"}},
			Spec:       ipamv1.IPAddressClaimSpec{PoolRef: source.poolRef()},
		})
		if address == "" {
			return
		}
		a := ipamv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: ipamv1.IPAddressSpec{
			ClaimRef: ipamv1.IPAddressClaimReference{Name: name}, PoolRef: source.poolRef(), Address: address,
		}}
		in.addresses = append(in.addresses, a)
		in.addressByClaim[client.ObjectKeyFromObject(&a)] = &a
	}
	spec := func(in *planInput, change func(*incluster.Spec)) {
		s := incluster.Spec{Addresses: []string{"10.0.0.10-10.0.0.20"}, Prefix: 24}
		change(&s)
		in.pool = sourcePoolFromInCluster(in.pool.ObjectMeta, s)
	}
	owned := func(in *planInput, version, kind string, machines ...string) {
		for _, name := range machines {
			give(in, name+"-0", "")
			in.claims[len(in.claims)-1].OwnerReferences = []metav1.OwnerReference{{APIVersion: version, Kind: kind, Name: name}}
		}
	}
	const vmsFail = ": CAPV writes the pool of the network device into the claim at every reconcile, which Cluster API refuses for another pool; these machines would fail until they are replaced"
	local := func(name, network string, addresses ...string) *v1alpha1.NetworkPool {
		return &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: v1alpha1.NetworkPoolSpec{Addresses: addresses, Network: network}}
	}
	drop := func(in *planInput, name string) { // the claim and its address
		in.claims = slices.DeleteFunc(in.claims, func(c ipamv1.IPAddressClaim) bool { return c.Name == name })
		in.addresses = slices.DeleteFunc(in.addresses, func(a ipamv1.IPAddress) bool { return a.Name == name })
		delete(in.addressByClaim, client.ObjectKey{Namespace: "ns", Name: name})
	}
	deletes := func(name string) func(*planInput) { return func(in *planInput) { drop(in, name) } }
	renew := func(in *planInput) { in.pool.Annotations, in.pool.DeletionTimestamp = paused, nil }
	// helps has the alternatives of each advice; each alone removes the problem (W29).
	helps := map[string][]func(*planInput){
		"the pool is not paused":    {renew},
		"the pool goes":             {renew},
		"the provider runs":         {func(in *planInput) { in.runningWorkloads = nil }},
		"a pool of the name":        {func(in *planInput) { in.targetPool = nil }}, // as with another name, by --to
		"one of Metal3 of the name": {func(in *planInput) { in.metal3NameConflict = false }},
		"another has the addresses": {func(in *planInput) { in.otherPools = []v1alpha1.Pool{local("q", "", "10.9.0.1")} }, func(in *planInput) { in.otherPools = []v1alpha1.Pool{local("q", "own", "10.0.0.12/30")} }, func(in *planInput) {
			spec(in, func(s *incluster.Spec) { s.Addresses = []string{"10.0.0.10-10.0.0.11"} })
		}},
		"the Cluster is not paused": {func(in *planInput) { in.clusters[k].Spec.Paused = ptr.To(true) }},
		"the Cluster does not exist": {func(in *planInput) {
			in.clusters[k] = &clusterv1.Cluster{Spec: clusterv1.ClusterSpec{Paused: ptr.To(true)}}
		}, func(in *planInput) { drop(in, "a"); drop(in, "b"); delete(in.clusters, k) }},
		"a claim without a Cluster": {nil}, // --without-cluster
		"a claim that goes":         {deletes("b")},
		"an address twice":          {deletes("c"), deletes("a")},
		"an address outside": {deletes("c"), func(in *planInput) {
			spec(in, func(s *incluster.Spec) { s.Addresses = append(s.Addresses, "10.0.0.50") })
		}},
		"an address that is excluded": {deletes("a"), func(in *planInput) { spec(in, func(*incluster.Spec) {}) }},
		"an address that is none":     {deletes("c")},
		"an address without a claim":  {deletes("b")},
		"a gateway elsewhere":         {func(in *planInput) { spec(in, func(s *incluster.Spec) { s.Gateway = "10.0.0.1" }) }},
		"an IPAddress in the way":     {func(in *planInput) { delete(in.addressByClaim, client.ObjectKey{Namespace: "ns", Name: "c"}) }},
	}
	for name, c := range map[string]struct {
		change func(*planInput)
		want   []string
	}{
		"nothing":                {func(*planInput) {}, nil},
		"the pool is not paused": {func(in *planInput) { in.pool.Annotations = nil }, []string{"InClusterIPPool ns/p is not paused"}},
		"the pool goes":          {func(in *planInput) { in.pool.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }, []string{"InClusterIPPool ns/p is being deleted"}},
		"the provider runs": {func(in *planInput) { in.runningWorkloads = []string{"deployment -n x y", "pod -n x z"} },
			[]string{"the in-cluster provider runs: deployment -n x y", "the in-cluster provider runs: pod -n x z"}},
		"a pool of the name":         {func(in *planInput) { in.targetPool = local("p", "") }, []string{"NetworkPool ns/p exists"}},
		"another has the addresses":  {func(in *planInput) { in.otherPools = append(in.otherPools, local("q", "", "10.0.0.12/30")) }, []string{"NetworkPool ns/q has 10.0.0.12-10.0.0.15 too"}},
		"one of Metal3 of the name":  {func(in *planInput) { in.metal3NameConflict = true }, []string{"Metal3 has an IPPool that is called p, too, and its IPAM takes part in claims on any pool of that name"}},
		"in another network":         {func(in *planInput) { in.otherPools = append(in.otherPools, local("q", "other", "10.0.0.12/30")) }, nil},
		"the Cluster is not paused":  {func(in *planInput) { in.clusters[k].Spec.Paused = nil }, []string{"Cluster ns/k is not paused"}},
		"the Cluster does not exist": {func(in *planInput) { in.clusters[k] = nil }, []string{"Cluster ns/k does not exist"}},
		"a claim without a Cluster":  {func(in *planInput) { in.claims[0].Labels = nil }, []string{"claim ns/a names no Cluster that could be paused"}},
		"a machine of vSphere":       {func(in *planInput) { owned(in, "infrastructure.cluster.x-k8s.io/v1beta2", "VSphereVM", "v1") }, []string{"claims of 1 VSphereVM (ns/v1)" + vmsFail}},
		"a machine of vSphere, and what could be solved": {func(in *planInput) {
			owned(in, "infrastructure.cluster.x-k8s.io/v1beta2", "VSphereVM", "v1")
			in.clusters[k].Spec.Paused, in.pool.Annotations = nil, nil
		}, []string{"claims of 1 VSphereVM (ns/v1)" + vmsFail}},
		"machines of vSphere": {func(in *planInput) {
			owned(in, "infrastructure.cluster.x-k8s.io/v1beta1", "VSphereVM", "v5", "v1", "v2", "v3", "v4")
			in.claims[2].OwnerReferences = in.claims[3].OwnerReferences // two network devices
		}, []string{"claims of 4 VSphereVMs (ns/v1, ns/v2, ns/v3 and 1 more)" + vmsFail}},
		"a machine of Proxmox": {func(in *planInput) { owned(in, "infrastructure.cluster.x-k8s.io/v1alpha2", "ProxmoxMachine", "m") }, []string{
			"claims of 1 ProxmoxMachine (ns/m): CAPMOX can name no other kind of pool, so its next machines would ask the old pool, which would no longer count these addresses"}},
		"machines of others": {func(in *planInput) {
			owned(in, "infrastructure.cluster.x-k8s.io/v1beta2", "Metal3Data", "d")
			owned(in, "infrastructure.cluster.x-k8s.io/v1alpha1", "OpenStackServer", "s")
			owned(in, "example.com/v1", "VSphereVM", "x")
		}, nil},
		"a claim that waits":          {func(in *planInput) { give(in, "c", "") }, nil},
		"a claim that goes":           {func(in *planInput) { in.claims[1].DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }, []string{"claim ns/b is being deleted"}},
		"an address twice":            {func(in *planInput) { give(in, "c", "10.0.0.10") }, []string{"10.0.0.10 is given twice: to ns/a and to ns/c"}},
		"an address outside":          {func(in *planInput) { give(in, "c", "10.0.0.50") }, []string{"10.0.0.50 of IPAddress ns/c is not among what the pool hands out"}},
		"an address that is excluded": {func(in *planInput) { spec(in, func(s *incluster.Spec) { s.ExcludedAddresses = []string{"10.0.0.10"} }) }, []string{"10.0.0.10 of IPAddress ns/a is not among what the pool hands out"}},
		"an address that is none":     {func(in *planInput) { give(in, "c", "x") }, []string{`IPAddress ns/c has spec.address "x", which is not an IP address`}},
		"an address without a claim":  {func(in *planInput) { in.claims = in.claims[:1] }, []string{"IPAddress ns/b (10.0.0.11) has no claim"}},
		"a link-local gateway of IPv6": {func(in *planInput) {
			spec(in, func(s *incluster.Spec) {
				*s = incluster.Spec{Addresses: []string{"fd00:50::/64"}, Prefix: 64, Gateway: "fe80::1"}
			})
			in.addresses[0].Spec.Address, in.addresses[1].Spec.Address = "fd00:50::10", "fd00:50::11"
			in.otherPools = append(in.otherPools, &v1alpha1.NetworkPool{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "q"}, Spec: v1alpha1.NetworkPoolSpec{CIDR: "fd00:51::/64", Gateway: "fe80::1"},
			})
		}, nil},
		"a gateway elsewhere": {func(in *planInput) { spec(in, func(s *incluster.Spec) { s.Gateway = "169.254.1.1" }) },
			[]string{`this provider cannot serve this spec: spec.gateway: Invalid value: "169.254.1.1": is outside 10.0.0.0/24, the network of 10.0.0.10; correct prefix, or describe several networks with subnets`}},
		"an IPAddress in the way": {func(in *planInput) {
			in.addressByClaim[client.ObjectKey{Namespace: "ns", Name: "c"}] = &ipamv1.IPAddress{}
			give(in, "c", "")
		}, []string{"IPAddress ns/c has the name of a claim of the pool, and is of another pool or claim"}},
	} {
		t.Run(name, func(t *testing.T) {
			begin := func() *planInput {
				in := &planInput{
					pool:      &sourcePool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", Annotations: paused}},
					poolUsers: poolUsers{addressByClaim: map[client.ObjectKey]*ipamv1.IPAddress{}},
					clusters:  map[client.ObjectKey]*clusterv1.Cluster{k: {Spec: clusterv1.ClusterSpec{Paused: ptr.To(true)}}},
				}
				spec(in, func(*incluster.Spec) {})
				give(in, "a", "10.0.0.10")
				give(in, "b", "10.0.0.11")
				c.change(in)
				return in
			}
			in := begin()
			for i, do := range helps[name] {
				done := begin()
				if do != nil {
					do(done)
				}
				if p := newPlan(source, source.targetKey(""), done, do == nil); len(p.Problems) > 0 {
					t.Errorf("after step %d: %+v", i, p.Problems)
				}
			}
			var got []string
			for _, p := range newPlan(source, source.targetKey(""), in, false).Problems {
				if p.Advice == "" {
					t.Errorf("nothing to do about %q", p.Message)
				}
				got = append(got, p.Message)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestCompressEntries checks that a journal is read as it was written, whatever its size.
func TestCompressEntries(t *testing.T) {
	var in []Entry
	for range 3 {
		in = append(in, Entry{Claim: &ipamv1.IPAddressClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Finalizers: []string{"f"}}}})
	}
	packed, err := compressEntries(in)
	if err != nil {
		t.Fatal(err)
	}
	out, err := decompressEntries(packed)
	if diff := cmp.Diff(in, out); err != nil || diff != "" {
		t.Error(err, diff)
	}
}
