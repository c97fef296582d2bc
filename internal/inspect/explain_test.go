package inspect

import (
	"strings"
	"testing"
	"time"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/allocator"
)

func TestExplainClaimant(t *testing.T) {
	paused := map[string]string{clusterv1.PausedAnnotation: ""}
	open := func() *v1alpha1.NetworkPool {
		return &v1alpha1.NetworkPool{Status: v1alpha1.NetworkPoolStatus{Allocator: &v1alpha1.AllocatorStatus{}}}
	}
	notReady := func(reason string) *v1alpha1.NetworkPool {
		p := open()
		p.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: metav1.ConditionFalse, Reason: reason, Message: "m"}}
		return p
	}
	withReady := func(status metav1.ConditionStatus, reason string) func(*ClaimantInfo) {
		return func(c *ClaimantInfo) {
			c.Conditions = []metav1.Condition{{Type: "Ready", Status: status, Reason: reason, Message: "said"}}
		}
	}
	one := netipx.MustParseIPRange("10.0.0.5-10.0.0.5")
	for name, c := range map[string]struct {
		pool   *v1alpha1.NetworkPool
		change func(*ClaimantInfo)
		want   string // "summary: finding -> start of the advice; ..."
		served bool
	}{
		"served": {open(), func(c *ClaimantInfo) {
			c.GrantedAddress = "10.0.0.5"
			withReady(metav1.ConditionTrue, "Ready")(c)
		}, "has 10.0.0.5", true},
		"served, and its IPAddress was deleted": {open(), func(c *ClaimantInfo) {
			c.GrantedAddress, c.Address = "10.0.0.5", &ipamv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", DeletionTimestamp: &metav1.Time{Time: time.Unix(1, 0)}}}
			withReady(metav1.ConditionTrue, "Ready")(c)
		}, "has 10.0.0.5: IPAddress ns/c was deleted, and stays as long as the claim: the finalizer ipam.cluster.x-k8s.io/ProtectAddress keeps it -> delete the claim, or its machine", true},
		"served, but its Services want more": {open(), func(c *ClaimantInfo) {
			c.GrantedAddress = "10.0.0.1-10.0.0.2"
			withReady(metav1.ConditionTrue, "Ready")(c)
			c.Conditions = append(c.Conditions, metav1.Condition{Type: "DemandSatisfied", Status: metav1.ConditionFalse, Reason: "QuotaReached", Message: "m"})
		}, "has 10.0.0.1-10.0.0.2: Services of its Cluster wait for more (QuotaReached): m -> see docs/elastic.md", true},
		"served, but its Cluster does not answer": {open(), func(c *ClaimantInfo) {
			c.GrantedAddress = "10.0.0.1-10.0.0.2"
			withReady(metav1.ConditionTrue, "Ready")(c)
			c.Conditions = append(c.Conditions, metav1.Condition{Type: "DemandSatisfied", Status: metav1.ConditionUnknown, Reason: "TenantUnreachable", Message: "m"})
		}, "has 10.0.0.1-10.0.0.2: it is unknown whether its Cluster can use it (TenantUnreachable): m -> see docs/elastic.md", false},
		"served before its Cluster is there": {open(), func(c *ClaimantInfo) {
			c.GrantedAddress = "10.0.0.1-10.0.0.2"
			withReady(metav1.ConditionTrue, "Ready")(c)
			c.Conditions = append(c.Conditions, metav1.Condition{Type: "ClusterSeen", Status: metav1.ConditionFalse, Message: "m"})
		}, "has 10.0.0.1-10.0.0.2: m -> create the Cluster", true},
		"served, and its Cluster is gone that was paused": {open(), func(c *ClaimantInfo) {
			c.GrantedAddress = "10.0.0.1-10.0.0.2"
			withReady(metav1.ConditionTrue, "Ready")(c)
			c.ClusterName, c.ClusterNamespace = "k", "ns"
			c.Conditions = append(c.Conditions, metav1.Condition{Type: "ClusterSeen", Status: metav1.ConditionUnknown, Message: "m"})
		}, "has 10.0.0.1-10.0.0.2: m -> if clusterctl moves the namespace, resume the move; else delete the allocation", true},
		"served, and its Cluster of another namespace is gone that was paused": {open(), func(c *ClaimantInfo) {
			c.GrantedAddress = "10.0.0.1-10.0.0.2"
			withReady(metav1.ConditionTrue, "Ready")(c)
			c.ClusterName, c.ClusterNamespace = "k", "team"
			c.Conditions = append(c.Conditions, metav1.Condition{Type: "ClusterSeen", Status: metav1.ConditionUnknown, Message: "m"})
		}, "has 10.0.0.1-10.0.0.2: m -> if the Cluster uses these addresses in another management cluster, leave the allocation: the move of namespace team " +
			"does not take it along; else delete the allocation", true},
		"served, and its Cluster is paused": {open(), func(c *ClaimantInfo) {
			c.GrantedAddress = "10.0.0.1-10.0.0.2"
			withReady(metav1.ConditionTrue, "Ready")(c)
			c.ClusterName, c.ClusterObject = "k", &clusterv1.Cluster{}
			c.Conditions = append(c.Conditions, metav1.Condition{Type: "ClusterSeen", Status: metav1.ConditionUnknown, Message: "m"})
		}, "has 10.0.0.1-10.0.0.2", true},
		"served, and its pool is gone that was seen with a paused Cluster": {open(), func(c *ClaimantInfo) {
			c.GrantedAddress, c.ChildPoolGone = "10.0.0.0/30", true
			withReady(metav1.ConditionTrue, "Ready")(c)
			c.Conditions = append(c.Conditions, metav1.Condition{Type: "PoolSeen", Status: metav1.ConditionUnknown, Message: "m"})
		}, "has 10.0.0.0/30: m -> if clusterctl moves the namespace, resume the move; else delete the allocation", true},
		"no kind of ours": {nil, func(c *ClaimantInfo) {
			c.NamesOwnPool, c.PoolRef = false, ipamv1.IPPoolReference{APIGroup: "butler.butlerlabs.dev", Kind: "networkpool", Name: "p"}
		}, "names no pool of this provider: its poolRef names kind networkpool, which the group butler.butlerlabs.dev does not have -> poolRef is immutable, so create the claim again with kind NetworkPool", false},
		"no kind of ours, of a machine": {nil, func(c *ClaimantInfo) {
			c.NamesOwnPool, c.PoolRef = false, ipamv1.IPPoolReference{APIGroup: "butler.butlerlabs.dev", Kind: "networkpool", Name: "p"}
			c.Object.SetOwnerReferences([]metav1.OwnerReference{{Kind: "VSphereVM", Name: "w-0"}})
		}, "names no pool of this provider: its poolRef names kind networkpool, which the group butler.butlerlabs.dev does not have -> " +
			"poolRef is immutable, so create the claim again with kind NetworkPool. It belongs to VSphereVM w-0: if that is part of a machine, " +
			"correct the pool in the machine template, and delete the Machine (docs/pools.md#claims-of-machines)", false},
		"a pool that is deleted, of a machine": {notReady("Deleting"), func(c *ClaimantInfo) {
			c.Object.SetOwnerReferences([]metav1.OwnerReference{{Kind: "Data", Name: "d"}, {Kind: "Metal3Data", Name: "w-0", Controller: ptr.To(true)}})
		}, "waits: NetworkPool ns/p grants nothing now (Deleting): m -> use another pool: this one is being deleted. It belongs to Metal3Data w-0: name the right pool in a new Metal3DataTemplate, " +
			"as networkData cannot be changed, and that one in a new Metal3MachineTemplate, and delete the Machine", false},
		"no pool":    {nil, nil, "waits: NetworkPool ns/p does not exist -> create the pool", false},
		"no manager": {&v1alpha1.NetworkPool{}, nil, "waits: no manager has reconciled NetworkPool ns/p yet -> is the manager running", false},
		"a pool of another provider that is not there": {nil, func(c *ClaimantInfo) { c.NamesOwnPool, c.MissingForeignPool = false, "InClusterIPPool ns/p" },
			"waits: InClusterIPPool ns/p does not exist -> create it", false},
		"another's kind": {nil, func(c *ClaimantInfo) { c.NamesOwnPool = false }, "names no pool of this provider: its poolRef names NetworkPool p of \"g\": another provider serves it, if there is one -> ask that provider", false},
		"a slip in the group": {nil, func(c *ClaimantInfo) { c.NamesOwnPool, c.PoolRef.APIGroup = false, "butler.butlerlab.dev" },
			"names no pool of this provider: its poolRef names NetworkPool p of \"butler.butlerlab.dev\", a group that no provider is known for (did you mean \"butler.butlerlabs.dev\"?) -> " +
				"create the claim again with apiGroup butler.butlerlabs.dev: poolRef is immutable", false},
		"a part of the group": {nil, func(c *ClaimantInfo) { c.NamesOwnPool, c.PoolRef.APIGroup = false, "butlerlabs.dev" },
			"names no pool of this provider: its poolRef names NetworkPool p of \"butlerlabs.dev\", a group that no provider is known for (did you mean \"butler.butlerlabs.dev\"?) -> create", false},
		"the group with a version": {nil, func(c *ClaimantInfo) { c.NamesOwnPool, c.PoolRef.APIGroup = false, "butler.butlerlabs.dev/v1alpha1" },
			"names no pool of this provider: its poolRef names NetworkPool p of \"butler.butlerlabs.dev/v1alpha1\", a group that no provider is known for (did you mean \"butler.butlerlabs.dev\"?) -> create", false},
		"a slip in another's group": {nil, func(c *ClaimantInfo) {
			c.NamesOwnPool, c.PoolRef = false, ipamv1.IPPoolReference{APIGroup: "ipam.cluster.x-k8s.oi", Kind: "InClusterIPPool", Name: "p"}
		}, "names no pool of this provider: its poolRef names InClusterIPPool p of \"ipam.cluster.x-k8s.oi\", a group that no provider is known for (did you mean \"ipam.cluster.x-k8s.io\"?) -> " +
			"create the claim again with apiGroup ipam.cluster.x-k8s.io: poolRef is immutable", false},
		"another's group": {nil, func(c *ClaimantInfo) {
			c.NamesOwnPool, c.PoolRef = false, ipamv1.IPPoolReference{APIGroup: "ipam.cluster.x-k8s.io", Kind: "InClusterIPPool", Name: "p"}
		}, "names no pool of this provider: its poolRef names InClusterIPPool p of \"ipam.cluster.x-k8s.io\": another provider serves it, if there is one -> ask that provider", false},
		"another's kind, served": {nil, func(c *ClaimantInfo) {
			c.NamesOwnPool, c.GrantedAddress = false, "10.0.0.5 of InClusterIPPool nodes"
		}, "has 10.0.0.5 of InClusterIPPool nodes: its poolRef names NetworkPool p of \"g\": another provider serves it -> nothing has to be done", true},
		"another's kind, deleted": {nil, func(c *ClaimantInfo) {
			c.NamesOwnPool, c.GrantedAddress = false, "10.0.0.5 of InClusterIPPool nodes"
			c.Object.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(1, 0)})
		}, "names no pool of this provider: its poolRef names NetworkPool p of \"g\": another provider serves it -> ask that provider", false},
		"served of a pool that is gone": {nil, func(c *ClaimantInfo) {
			c.GrantedAddress = "10.0.0.5"
			withReady(metav1.ConditionTrue, "Ready")(c)
		}, "has 10.0.0.5: NetworkPool ns/p does not exist: nothing keeps another pool from granting its addresses -> create the pool again, with these addresses in it", true},
		"with a refusal, as the pool of its address is gone": {nil, func(c *ClaimantInfo) {
			c.GrantedAddress = "10.0.0.5"
			withReady(metav1.ConditionFalse, "PoolNotReady")(c)
		}, "waits: NetworkPool ns/p does not exist -> create the pool again, with these addresses in it", false},
		"a lease that is not released": {open(), func(c *ClaimantInfo) {
			c.Kind, c.Object = "IPLease", &v1alpha1.IPLease{}
			c.Object.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(1, 0)})
			c.Object.SetFinalizers([]string{v1alpha1.IPLeaseFinalizer})
		}, "is being deleted: the finalizer butler.butlerlabs.dev/iplease holds it, and no other and no pause -> it should be gone in a moment; if not, " +
			"check that a manager is running, with the component leases, service-leases or host-load-balancers", false},
		"a lease that is shown": {open(), func(c *ClaimantInfo) {
			c.Kind, c.Object = "IPLease", &v1alpha1.IPLease{}
			c.Object.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(1, 0)})
			c.Object.SetFinalizers([]string{v1alpha1.IPLeaseFinalizer, v1alpha1.LeaseShownFinalizer})
		}, "is being deleted: its address is shown to the world still: the finalizer butler.butlerlabs.dev/lease-shown holds it -> " +
			"delete what shows the address; the controller that set the finalizer takes it off then: the component service-leases or host-load-balancers", false},
		"a block that its Cluster has": {open(), func(c *ClaimantInfo) {
			c.Kind, c.Object = "IPAllocation", &v1alpha1.IPAllocation{}
			c.Object.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(1, 0)})
			c.Object.SetFinalizers([]string{v1alpha1.TenantPoolFinalizer})
		}, "is being deleted: the Cluster has not released the block yet -> see docs/elastic.md: a Cluster that does not answer keeps its block; " +
			"the component load-balancers takes the finalizer butler.butlerlabs.dev/tenant-pool off", false},
		"a paused claim": {open(), func(c *ClaimantInfo) { c.Object.SetAnnotations(paused) },
			"waits: it is paused by its annotation cluster.x-k8s.io/paused -> kubectl annotate ipaddressclaims.ipam.cluster.x-k8s.io -n ns c cluster.x-k8s.io/paused-", false},
		"a paused pool": {func() *v1alpha1.NetworkPool { p := open(); p.Annotations = paused; return p }(), nil,
			"waits: NetworkPool ns/p is paused -> remove the annotation", false},
		"a Cluster paused by annotation": {open(), func(c *ClaimantInfo) {
			c.ClusterObject = &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "k", Annotations: paused}}
		}, "waits: its Cluster ns/k is paused -> kubectl patch cluster", false},
		"an overlap":           {notReady("Overlap"), nil, "waits: NetworkPool ns/p grants nothing now (Overlap): m -> give the pool other addresses", false},
		"an adoption":          {notReady("Adopting"), nil, "waits: NetworkPool ns/p grants nothing now (Adopting): m -> wait until the time that the message names, or do what it says if it names none", false},
		"no pool of this kind": {nil, func(c *ClaimantInfo) { c.SameNamePool = "GlobalNetworkPool p" }, "waits: NetworkPool ns/p does not exist -> there is a GlobalNetworkPool p: if that is meant", false},
		"the quota, which no manager has said anew": {open(), func(c *ClaimantInfo) {
			withReady(metav1.ConditionFalse, "QuotaExceeded")(c)
			c.Conditions[0].Message, c.PlannedGrant = "the Cluster has 2; delete claims", &allocator.PlannedGrant{Range: one}
		}, "waits: the Cluster has 2 -> delete claims", false},
		"a message that ends with what to do": {open(), func(c *ClaimantInfo) {
			withReady(metav1.ConditionFalse, "AllocationFailed")(c)
			c.Conditions[0].Message = "the address is reserved; or kept; ask for another"
		}, "waits: the address is reserved; or kept -> ask for another", false},
		"room, and not in a row": {open(), func(c *ClaimantInfo) {
			c.Kind, c.FreeCount, c.LargestFree, c.PlannedGrant = "IPAllocation", 5, 2, &allocator.PlannedGrant{Reason: "PoolExhausted", Message: "no 4 in a row; ask for fewer"}
		}, "waits: no 4 in a row (5 free, at most 2 in a row) -> ask for fewer", false},
		"what is said": {open(), withReady(metav1.ConditionFalse, "AllocationFailed"), "waits: said -> correct what the message names", false},
		"what is so now goes before what was said": {open(), func(c *ClaimantInfo) {
			withReady(metav1.ConditionFalse, "AllocationFailed")(c)
			c.PlannedGrant = &allocator.PlannedGrant{Reason: "PoolExhausted", Message: "now"}
		}, "waits: now -> `kubectl butler-ipam free`", false},
		"about to be served": {open(), func(c *ClaimantInfo) { c.PlannedGrant, c.WaitingCount = &allocator.PlannedGrant{Range: one}, 3 },
			"waits: nothing is in its way: it is about to be given 10.0.0.5; 3 wait for this pool, the oldest is served first -> if it stays so", false},
		"a foreign finalizer on its IPAddress": {open(), func(c *ClaimantInfo) {
			c.Object.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(1, 0)})
			c.Object.SetFinalizers([]string{v1alpha1.ClaimFinalizer})
			c.Address = &ipamv1.IPAddress{ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "c", DeletionTimestamp: &metav1.Time{Time: time.Unix(1, 0)}, Finalizers: []string{"example.com/hold"},
			}}
		}, "is being deleted: IPAddress ns/c is kept by finalizer example.com/hold -> ask its owner to remove it", false},
		"the address of a Cluster that is there": {open(), func(c *ClaimantInfo) {
			c.Object.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(1, 0)})
			c.Object.SetFinalizers([]string{v1alpha1.ClaimFinalizer})
			c.Conditions = []metav1.Condition{{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.DeletingReason, Message: "its address is of Cluster ns/k; take the owner reference off"}}
		}, "is being deleted: its address is of Cluster ns/k -> take the owner reference off", false},
		"a foreign finalizer": {open(), func(c *ClaimantInfo) {
			c.Object.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(1, 0)})
			c.Object.SetFinalizers([]string{v1alpha1.ClaimFinalizer, "x/y"})
		}, "is being deleted: the finalizer x/y holds it -> the controller that set it", false},
	} {
		t.Run(name, func(t *testing.T) {
			in := ClaimantInfo{
				Kind: "IPAddressClaim", Namespace: "ns", Name: "c", NamesOwnPool: true, Object: &ipamv1.IPAddressClaim{},
				PoolRef: ipamv1.IPPoolReference{APIGroup: "g", Kind: "NetworkPool", Name: "p"},
			}
			if c.pool != nil {
				in.Pool = c.pool
			}
			if c.change != nil {
				c.change(&in)
			}
			e := ExplainClaimant(in)
			got := e.Summary
			for _, f := range e.Findings {
				got += ": " + f.Message + " -> " + f.Advice
			}
			if !strings.HasPrefix(got, c.want) || e.Served != c.served || len(e.Findings) > 1 {
				t.Errorf("%s\nwant\n%s", got, c.want)
			}
		})
	}
}
