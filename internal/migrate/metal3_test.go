package migrate

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	m3ipamv1 "github.com/metal3-io/ip-address-manager/api/v1alpha1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metal3"
)

// metal3Objects is an input without a problem.
type metal3Objects struct {
	planInput
	spec         m3ipamv1.IPPoolSpec
	claims       []m3ipamv1.IPClaim
	addresses    []m3ipamv1.IPAddress
	apiClaims    []ipamv1.IPAddressClaim
	apiAddresses []ipamv1.IPAddress
}

func (w *metal3Objects) addIPClaim(name string) *m3ipamv1.IPClaim {
	w.claims = append(w.claims, m3ipamv1.IPClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Labels: map[string]string{clusterv1.ClusterNameLabel: "k"}},
		Spec:       m3ipamv1.IPClaimSpec{Pool: corev1.ObjectReference{Name: "p"}},
	})
	return &w.claims[len(w.claims)-1]
}

func (w *metal3Objects) addServedIPClaim(name, address string) {
	as := strings.ReplaceAll("x-"+address, ".", "-")
	w.addIPClaim(name).Status.Address = &corev1.ObjectReference{Name: as}
	w.addresses = append(w.addresses, m3ipamv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: as, OwnerReferences: []metav1.OwnerReference{{Kind: "IPClaim", Name: name, UID: types.UID(name)}}},
		Spec:       m3ipamv1.IPAddressSpec{Claim: corev1.ObjectReference{Name: name}, Pool: corev1.ObjectReference{Name: "p"}, Address: m3ipamv1.IPAddressStr(address)},
	})
}

// TestPlanOfMetal3 checks the problems and notes of an import from Metal3's IPAM (U62, U63).
func TestPlanOfMetal3(t *testing.T) {
	source := Source{Metal3IPPoolKind, "ns", "p"}
	without := func(claims ...string) func(*metal3Objects) { // with their addresses
		return func(w *metal3Objects) {
			w.claims = slices.DeleteFunc(w.claims, func(c m3ipamv1.IPClaim) bool { return slices.Contains(claims, c.Name) })
			w.addresses = slices.DeleteFunc(w.addresses, func(a m3ipamv1.IPAddress) bool { return slices.Contains(claims, a.Spec.Claim.Name) })
		}
	}
	address := func(n int) func(*metal3Objects) {
		return func(w *metal3Objects) { w.addresses = slices.Delete(w.addresses, n, n+1) }
	}
	// helps has the alternatives of each advice; each alone removes the problem.
	helps := map[string][]func(*metal3Objects){ // W29
		"the provider runs":       {func(w *metal3Objects) { w.runningWorkloads = nil }},
		"a webhook is in the way": {func(w *metal3Objects) { w.blockingWebhooks = nil }},
		"the Cluster is not paused": {func(w *metal3Objects) {
			w.clusters[client.ObjectKey{Namespace: "ns", Name: "k"}].Spec.Paused = ptr.To(true)
		}},
		"a claim without a Cluster":                  {nil},                                           // --without-cluster
		"a pool of the name":                         {func(w *metal3Objects) { w.targetPool = nil }}, // as with another name, by --to
		"a claim that goes":                          {without("b")},
		"an address without a claim":                 {address(1)},
		"an address outside":                         {without("c"), func(w *metal3Objects) { w.spec.Pools[0].End = ptr.To(m3ipamv1.IPAddressStr("10.0.0.60")) }},
		"an address that is none":                    {without("c")},
		"an address twice":                           {without("c"), without("a")},
		"two addresses of one claim":                 {address(1)},
		"a claim that does not know its address yet": {func(w *metal3Objects) { w.claims[0].Status.Address = &corev1.ObjectReference{Name: "x-10-0-0-10"} }},
		"an address that goes":                       {without("a")},
		"a claim whose address is gone":              {without("a")},
		"an address that is the pool's alone": {func(w *metal3Objects) {
			w.addresses[0].OwnerReferences = []metav1.OwnerReference{{Kind: "IPClaim", Name: "a", UID: "a"}}
		}},
		"a claim of Cluster API on the pool": {func(w *metal3Objects) { w.apiClaims, w.apiAddresses = nil, nil }},
		"the name is taken":                  {func(w *metal3Objects) { w.apiClaims, w.apiAddresses = nil, nil }, without("a", "b")},
	}
	for name, c := range map[string]struct {
		change      func(*metal3Objects)
		want, notes []string
	}{
		"nothing": {func(*metal3Objects) {}, nil, nil},
		"the provider runs": {func(w *metal3Objects) { w.runningWorkloads = []string{"deployment -n x y"} },
			[]string{"Metal3's IPAM runs: deployment -n x y"}, nil},
		"a webhook is in the way": {func(w *metal3Objects) { w.blockingWebhooks = []string{"validatingwebhookconfiguration v"} },
			[]string{"Metal3's IPAM is asked about each write of its objects, and does not answer while it is stopped: validatingwebhookconfiguration v"}, nil},
		"the Cluster is not paused": {func(w *metal3Objects) { w.clusters[client.ObjectKey{Namespace: "ns", Name: "k"}].Spec.Paused = nil }, []string{"Cluster ns/k is not paused"}, nil},
		"a claim without a Cluster": {func(w *metal3Objects) { w.claims[0].Labels = nil }, []string{"claim ns/a names no Cluster that could be paused"}, nil},
		"a pool of the name":        {func(w *metal3Objects) { w.targetPool = &v1alpha1.NetworkPool{} }, []string{"NetworkPool ns/p exists"}, nil},
		"a claim that waits": {func(w *metal3Objects) { w.addIPClaim("c") }, nil,
			[]string{"IPClaim ns/c waits, and is left as it is: CAPM3 looks for its address there, so replace its machine"}},
		"a claim that goes":          {func(w *metal3Objects) { w.claims[1].DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }, []string{"claim ns/b is being deleted"}, nil},
		"an address without a claim": {func(w *metal3Objects) { w.claims = w.claims[:1] }, []string{"IPAddress ns/x-10-0-0-11 (10.0.0.11) has no claim"}, nil},
		"an address outside":         {func(w *metal3Objects) { w.addServedIPClaim("c", "10.0.0.50") }, []string{"10.0.0.50 of IPAddress ns/c is not among what the pool hands out"}, nil},
		"the last address of a network": {func(w *metal3Objects) {
			w.spec.Pools[0] = m3ipamv1.Pool{Subnet: ptr.To(m3ipamv1.IPSubnetStr("10.0.0.0/24"))}
			w.addServedIPClaim("c", "10.0.0.255")
		}, []string{"10.0.0.255 of IPAddress ns/c is not among what the pool hands out"}, nil},
		"an address that is none": {func(w *metal3Objects) { w.addServedIPClaim("c", "x") }, []string{`IPAddress ns/c has spec.address "x", which is not an IP address`}, nil},
		"an address twice": {func(w *metal3Objects) {
			w.addServedIPClaim("c", "10.0.0.10")
		}, []string{"10.0.0.10 is given twice: to ns/a and to ns/c"}, nil},
		"two addresses of one claim": {func(w *metal3Objects) {
			w.addresses[1].Spec.Claim.Name = "a"
			w.claims = w.claims[:1]
		}, []string{"IPClaim ns/a has two IPAddresses, x-10-0-0-10 and x-10-0-0-11"}, nil},
		"a claim that does not know its address yet": {func(w *metal3Objects) { w.claims[0].Status.Address = nil },
			[]string{`the status of IPClaim ns/a names IPAddress "", but it has "x-10-0-0-10"`}, nil},
		"an address that goes": {func(w *metal3Objects) { w.addresses[0].DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} },
			[]string{"IPAddress x-10-0-0-10 of IPClaim ns/a is being deleted"}, nil},
		"a claim whose address is gone": {func(w *metal3Objects) { w.addresses = w.addresses[1:] },
			[]string{`the status of IPClaim ns/a names IPAddress "x-10-0-0-10", but it has ""`}, nil},
		"an address that is the pool's alone": {func(w *metal3Objects) { w.addresses[0].OwnerReferences = nil },
			[]string{"IPAddress x-10-0-0-10 is not owned by IPClaim ns/a, and would go with the pool"}, nil},
		"other pools": {func(w *metal3Objects) {
			w.addIPClaim("c").Spec.Pool.Name = "q"
			w.addServedIPClaim("d", "10.0.0.12")
			w.claims[3].Spec.Pool.Name, w.addresses[2].Spec.Pool.Name = "q", "q"
		}, nil, nil},
		"a claim of Cluster API on the pool": {func(w *metal3Objects) {
			w.apiClaims = append(w.apiClaims, ipamv1.IPAddressClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}, Spec: ipamv1.IPAddressClaimSpec{PoolRef: source.poolRef()}})
			w.apiAddresses = append(w.apiAddresses, ipamv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "x-1"}, Spec: ipamv1.IPAddressSpec{PoolRef: source.poolRef()}})
		}, []string{
			"IPAddressClaim ns/c names the pool: only IPClaims of Metal3 are imported",
			"IPAddress ns/x-1 of Cluster API is of the pool: only those of Metal3 are imported",
		}, nil},
		"the name is taken": {func(w *metal3Objects) {
			w.apiClaims = append(w.apiClaims, ipamv1.IPAddressClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}})
			w.apiAddresses = append(w.apiAddresses, ipamv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b"}})
		}, []string{
			"an IPAddressClaim or IPAddress of Cluster API has the name of IPClaim ns/a",
			"an IPAddressClaim or IPAddress of Cluster API has the name of IPClaim ns/b",
		}, nil},
		"DNS servers": {func(w *metal3Objects) { w.spec.DNSServers = []m3ipamv1.IPAddressStr{"10.0.0.53"} }, nil,
			[]string{"dnsServers are not taken over: write them into networkData.services.dns of the new Metal3DataTemplates"}},
		"a spec that cannot be said": {func(w *metal3Objects) { w.spec.Pools = append(w.spec.Pools, m3ipamv1.Pool{}) },
			[]string{"spec.pools[1] has neither start nor subnet"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			planned := func(withoutCluster bool, changes ...func(*metal3Objects)) *Plan {
				k := &clusterv1.Cluster{Spec: clusterv1.ClusterSpec{Paused: ptr.To(true)}}
				w := &metal3Objects{
					planInput: planInput{pool: &sourcePool{}, clusters: map[client.ObjectKey]*clusterv1.Cluster{{Namespace: "ns", Name: "k"}: k}},
					spec:      m3ipamv1.IPPoolSpec{Prefix: 24, Pools: []m3ipamv1.Pool{{Start: ptr.To(m3ipamv1.IPAddressStr("10.0.0.10")), End: ptr.To(m3ipamv1.IPAddressStr("10.0.0.20"))}}},
				}
				w.addServedIPClaim("a", "10.0.0.10")
				w.addServedIPClaim("b", "10.0.0.11")
				for _, change := range changes {
					change(w)
				}
				spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&w.spec)
				if err != nil {
					t.Fatal(err)
				}
				w.pool.spec, w.pool.notes, w.pool.problems = metal3.ToNetworkPoolSpec(&unstructured.Unstructured{Object: map[string]any{"spec": spec}})
				w.poolUsers = metal3Pool{source}.pairClaims(w.claims, w.addresses, w.apiClaims, w.apiAddresses)
				return newPlan(source, source.targetKey(""), &w.planInput, withoutCluster)
			}
			p := planned(false, c.change)
			for i, do := range helps[name] {
				changes := []func(*metal3Objects){c.change}
				if do != nil {
					changes = append(changes, do)
				}
				if p := planned(do == nil, changes...); len(p.Problems) > 0 {
					t.Errorf("after step %d: %+v", i, p.Problems)
				}
			}
			var got []string
			for _, p := range p.Problems {
				if p.Advice == "" {
					t.Errorf("nothing to do about %q", p.Message)
				}
				got = append(got, p.Message)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(append([]string{}, c.notes...), p.Notes); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestBlocksMetal3Writes checks that webhooks of this group alone block writes, if their failure policy is Fail (U63).
func TestBlocksMetal3Writes(t *testing.T) {
	rules := func(group string) []admissionv1.RuleWithOperations {
		return []admissionv1.RuleWithOperations{{Rule: admissionv1.Rule{APIGroups: []string{group}}}}
	}
	for _, c := range []struct {
		policy *admissionv1.FailurePolicyType
		group  string
		want   bool
	}{
		{ptr.To(admissionv1.Fail), "ipam.metal3.io", true}, {nil, "ipam.metal3.io", true},
		{ptr.To(admissionv1.Ignore), "ipam.metal3.io", false}, {ptr.To(admissionv1.Fail), "infrastructure.cluster.x-k8s.io", false},
	} {
		if got := blocksMetal3Writes(c.policy, rules(c.group)); got != c.want {
			t.Errorf("%v of %s: %t", c.policy, c.group, got)
		}
	}
}
