package allocator

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
)

func ownedBy(kind, name string) func(*ipamv1.IPAddressClaim) {
	return func(c *ipamv1.IPAddressClaim) {
		version := clusterv1.GroupVersion.String()
		if kind == "VSphereVM" {
			version = "infrastructure.cluster.x-k8s.io/v1beta2"
		}
		c.OwnerReferences = append(c.OwnerReferences, metav1.OwnerReference{APIVersion: version, Kind: kind, Name: name, UID: "owner"})
	}
}

// The address of a Cluster whose claim somebody deletes rests for the name of the claim while the Cluster lives, in a pool
// without a grace too: its machines have it still. What the end of the Cluster, or of a machine, makes free does not.
func TestOutlived(t *testing.T) { // U44
	its := ownedBy(clusterv1.ClusterKind, "k")
	tests := map[string]struct {
		grace   time.Duration
		cluster func(*clusterv1.Cluster)
		claim   []func(*ipamv1.IPAddressClaim)
		// rests is for how long at least, 0: not at all.
		rests time.Duration
	}{
		"its Cluster lives":        {claim: []func(*ipamv1.IPAddressClaim){its}, rests: grants.OutlivedRest},
		"a pool with a grace":      {grace: time.Minute, claim: []func(*ipamv1.IPAddressClaim){its}, rests: grants.OutlivedRest},
		"a pool with a longer one": {grace: 2 * time.Hour, claim: []func(*ipamv1.IPAddressClaim){its}, rests: 2 * time.Hour},
		"its Cluster is being deleted": {claim: []func(*ipamv1.IPAddressClaim){its}, cluster: func(c *clusterv1.Cluster) {
			c.DeletionTimestamp, c.Finalizers = &metav1.Time{Time: noon}, []string{"x/y"}
		}},
		"its Cluster is gone":                 {claim: []func(*ipamv1.IPAddressClaim){its}, cluster: func(c *clusterv1.Cluster) { c.Name = "other" }},
		"it is moved away":                    {claim: []func(*ipamv1.IPAddressClaim){its, isMoved}},
		"a machine's":                         {claim: []func(*ipamv1.IPAddressClaim){ownedBy("VSphereVM", "k")}},
		"a machine's, that a Cluster owns":    {claim: []func(*ipamv1.IPAddressClaim){its, ownedBy("VSphereVM", "m")}},
		"of another Cluster than it names":    {claim: []func(*ipamv1.IPAddressClaim){ownedBy(clusterv1.ClusterKind, "other")}},
		"nobody's, in a pool with a grace":    {grace: time.Minute, rests: time.Minute},
		"nobody's, in a pool without a grace": {},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := clusterv1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "k"}}
			if tc.cluster != nil {
				tc.cluster(cluster)
			}
			a := New(Options{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(cluster).Build()})
			p := aPool(t, "10.0.0.1-10.0.0.2", func(o *v1alpha1.NetworkPool) {
				o.Spec.AddressReuseGracePeriodSeconds = ptr.To(int64(tc.grace / time.Second))
			})
			c := see(p, "a", 0, append(tc.claim, ofCluster("k"), remembers("10.0.0.1"), ends)...)
			seeAddress(p, "a", "10.0.0.1", c.Owner.UID)
			if is := restOf(t, a, p, c, tc.rests); tc.rests > 0 && is.For != grants.NameOf(c.Owner) {
				t.Errorf("it rests for %q", is.For)
			}
		})
	}
}
