package allocator

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

func ownedBy(kind, name string, uid types.UID) func(*ipamv1.IPAddressClaim) {
	return func(c *ipamv1.IPAddressClaim) {
		version := clusterv1.GroupVersion.String()
		if kind == "VSphereVM" {
			version = "infrastructure.cluster.x-k8s.io/v1beta2"
		}
		c.OwnerReferences = append(c.OwnerReferences, metav1.OwnerReference{APIVersion: version, Kind: kind, Name: name, UID: uid})
	}
}

// TestClusterKeepsItsAddress checks that a Cluster keeps its own address as long as it exists: its machines use it. A
// claim that a user deletes meanwhile stays, and so does the claim of a Cluster that is deleted in the foreground.
func TestClusterKeepsItsAddress(t *testing.T) { // U44
	its := ownedBy(clusterv1.ClusterKind, "k", "uid-k")
	unserved := func(c *ipamv1.IPAddressClaim) { delete(c.Annotations, v1alpha1.AddressAnnotation) }
	tests := map[string]struct {
		cluster func(*clusterv1.Cluster)
		claim   []func(*ipamv1.IPAddressClaim)
		stays   bool
	}{
		"its Cluster lives": {claim: []func(*ipamv1.IPAddressClaim){its}, stays: true},
		"its Cluster is being deleted": {claim: []func(*ipamv1.IPAddressClaim){its}, cluster: func(c *clusterv1.Cluster) {
			c.DeletionTimestamp, c.Finalizers = &metav1.Time{Time: grantstest.Noon}, []string{"x/y"}
		}, stays: true},
		"its Cluster waits for it in the foreground": {claim: []func(*ipamv1.IPAddressClaim){its}, cluster: func(c *clusterv1.Cluster) {
			c.DeletionTimestamp, c.Finalizers = &metav1.Time{Time: grantstest.Noon}, []string{metav1.FinalizerDeleteDependents, v1alpha1.TenantNetworkFinalizer}
		}},
		"its Cluster has machines, and waits in the foreground": {claim: []func(*ipamv1.IPAddressClaim){its}, cluster: func(c *clusterv1.Cluster) {
			c.DeletionTimestamp, c.Finalizers = &metav1.Time{Time: grantstest.Noon}, []string{metav1.FinalizerDeleteDependents, clusterv1.ClusterFinalizer}
		}, stays: true},
		"its Cluster is gone":              {claim: []func(*ipamv1.IPAddressClaim){its}, cluster: func(c *clusterv1.Cluster) { c.Name = "other" }},
		"its Cluster was made again":       {claim: []func(*ipamv1.IPAddressClaim){its}, cluster: func(c *clusterv1.Cluster) { c.UID = "again" }},
		"it is moved away":                 {claim: []func(*ipamv1.IPAddressClaim){its, grantstest.MarkedAsMoved}},
		"it has no address":                {claim: []func(*ipamv1.IPAddressClaim){its, unserved}},
		"a machine's":                      {claim: []func(*ipamv1.IPAddressClaim){ownedBy("VSphereVM", "k", "uid-k")}},
		"a machine's, that a Cluster owns": {claim: []func(*ipamv1.IPAddressClaim){its, ownedBy("VSphereVM", "m", "uid-m")}},
		"of another Cluster than it names": {claim: []func(*ipamv1.IPAddressClaim){ownedBy(clusterv1.ClusterKind, "other", "uid-k")}},
		"without owner":                    {},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := clusterv1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "k", UID: "uid-k"}}
			if tc.cluster != nil {
				tc.cluster(cluster)
			}
			a := New(Options{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(cluster).Build()})
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.2")
			c := grantstest.ObserveClaim(p, "a", 0, append([]func(*ipamv1.IPAddressClaim){grantstest.OfCluster("k"), grantstest.WithRecordedAddress("10.0.0.1"), grantstest.WithDeletionTimestamp}, tc.claim...)...)
			if c.HasRecord() {
				grantstest.ObserveAddress(p, "a", "10.0.0.1", c.Owner.UID)
			}
			due, _ := p.ListDueWrites(grantstest.Noon, 8, time.Minute, a.admission.newAdmissionFunc(t.Context(), p, grantstest.Noon), a.admission.newReleaseAdmissionFunc(t.Context(), p))
			if stays := len(due.ReleaseClaimants) == 0; stays != tc.stays && !c.Moved { // a move is recorded first
				t.Errorf("it stays: %v, want %v", stays, tc.stays)
			}
			condition := p.Conditions.Unpublished[c]
			if reported := strings.Contains(condition.Message, "is released when the Cluster is gone"); reported != tc.stays || (reported && condition.Reason != v1alpha1.DeletingReason) {
				t.Errorf("its condition is %q %q", condition.Reason, condition.Message)
			}
			if _, awaits := p.Conditions.BlockingClusters[types.NamespacedName{Namespace: "ns", Name: "k"}]; awaits != tc.stays {
				t.Errorf("the end of its Cluster wakes the pool: %v, want %v", awaits, tc.stays)
			}
		})
	}
}
