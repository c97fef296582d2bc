package integration

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// shortGrace is for specs that delete claims as soon as they are created. The API server decides that a claim may be
// deleted at once before it checks whether a finalizer was added meanwhile: now and then a claim is gone while its
// IPAddress exists.
const shortGrace = "--orphan-grace=2s"

// Namespaces isolate specs. Global pools are in none, so each spec deletes them.
var _ = AfterEach(func(ctx SpecContext) {
	pools := &v1alpha1.GlobalNetworkPoolList{}
	Expect(k8s.List(ctx, pools)).To(Succeed())
	for i := range pools.Items {
		force(ctx, &pools.Items[i])
	}
})

// namespaceManager starts a manager that serves one namespace, so that it can have flags of its own.
func namespaceManager(ctx context.Context, ns string, args ...string) *framework.Manager {
	GinkgoHelper()
	return startManager(ctx, append([]string{"--namespace=" + ns}, args...)...)
}

// modify reads an object again and patches it as a user would with kubectl.
func modify[O client.Object](ctx context.Context, obj O, change func(O)) {
	GinkgoHelper()
	patch := changed(ctx, obj, change)
	Expect(k8s.Patch(ctx, obj, patch)).To(Succeed())
}

// startCollectorOfInClusterPools installs the pools of the in-cluster provider, starts Kubernetes' garbage collector
// until the end of the specs, and returns the flag that gives a manager the rights on those pools.
func startCollectorOfInClusterPools(ctx context.Context) string {
	GinkgoHelper()
	// Installed before the garbage collector starts: it searches for new kinds only every 30 s.
	Expect(cp.InstallInClusterPools()).To(Succeed())
	stop, err := cp.StartControllerManager()
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(stop()).To(Succeed()) })
	kubeconfig, err := cp.InClusterManagerKubeconfig(ctx)
	Expect(err).NotTo(HaveOccurred())
	return "--kubeconfig=" + kubeconfig
}

// modifyStatus is modify for the status.
func modifyStatus[O client.Object](ctx context.Context, obj O, change func(O)) {
	GinkgoHelper()
	patch := changed(ctx, obj, change)
	Expect(k8s.Status().Patch(ctx, obj, patch)).To(Succeed())
}

// changed reads an object again, changes it, and returns the patch for the change.
func changed[O client.Object](ctx context.Context, obj O, change func(O)) client.Patch {
	GinkgoHelper()
	Expect(k8s.Get(ctx, client.ObjectKeyFromObject(obj), obj)).To(Succeed())
	before, ok := obj.DeepCopyObject().(O)
	Expect(ok).To(BeTrue())
	change(obj)
	return client.MergeFrom(before)
}

func setPaused(ctx context.Context, obj client.Object, paused bool) {
	GinkgoHelper()
	modify(ctx, obj, func(o client.Object) {
		annotations := o.GetAnnotations()
		delete(annotations, clusterv1.PausedAnnotation)
		if paused {
			if annotations == nil {
				annotations = map[string]string{}
			}
			annotations[clusterv1.PausedAnnotation] = ""
		}
		o.SetAnnotations(annotations)
	})
}

// force deletes an object and removes all its finalizers, as a user in a hurry does.
func force(ctx context.Context, obj client.Object) {
	GinkgoHelper()
	Expect(framework.ForceDelete(ctx, k8s, obj)).To(Succeed())
}

// emptyCluster deletes the objects that earlier specs have left. A manager with a short orphan grace checks the
// owners of each pool's blocks in each such period, in all namespaces: with enough pools it has no second without a
// reconcile. It does not suffice to delete the blocks: a carved pool, and a Cluster with Services, would get theirs
// again.
func emptyCluster(ctx context.Context) {
	GinkgoHelper()
	Expect(framework.CleanUpCluster(ctx, k8s)).To(Succeed())
}

// expectUntouched expects a claim without any change by a provider.
func expectUntouched(ctx context.Context, ns, name string) {
	GinkgoHelper()
	claim := getClaim(ctx, ns, name)
	Expect(claim.Finalizers).To(BeEmpty(), name)
	Expect(claim.Annotations).NotTo(HaveKey(v1alpha1.AddressAnnotation), name)
	Expect(claim.Status.Conditions).To(BeEmpty(), name)
	Expect(claim.Status.AddressRef.Name).To(BeEmpty(), name)
}

// expectOnlyPaused expects a claim that no manager has changed, except for the condition with the reason of its
// pause.
func expectOnlyPaused(ctx context.Context, ns, name, by string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		claim := getClaim(ctx, ns, name)
		g.Expect(claim.Finalizers).To(BeEmpty(), name)
		g.Expect(claim.Annotations).NotTo(HaveKey(v1alpha1.AddressAnnotation), name)
		g.Expect(claim.Status.AddressRef.Name).To(BeEmpty(), name)
		g.Expect(claim.Status.Conditions).To(ConsistOf(And(HaveField("Type", clusterv1.PausedCondition), HaveField("Status", metav1.ConditionTrue),
			HaveField("Reason", clusterv1.PausedReason), HaveField("Message", by))), name)
	}).Should(Succeed())
}

func keyOf(obj client.Object) client.ObjectKey { return client.ObjectKeyFromObject(obj) }

// statusOf reads the status of a pool again.
func statusOf(ctx context.Context, pool v1alpha1.Pool) *v1alpha1.NetworkPoolStatus {
	GinkgoHelper()
	Expect(k8s.Get(ctx, client.ObjectKeyFromObject(pool), pool)).To(Succeed())
	return pool.PoolStatus()
}

// expectCondition waits for a condition of a pool, for its current spec, and returns the message.
func expectCondition(ctx context.Context, pool v1alpha1.Pool, condition string, status metav1.ConditionStatus, reason string) string {
	GinkgoHelper()
	var c *metav1.Condition
	Eventually(func(g Gomega) {
		s := statusOf(ctx, pool)
		g.Expect(s.ObservedGeneration).To(Equal(pool.GetGeneration()))
		c = meta.FindStatusCondition(s.Conditions, condition)
		g.Expect(c).NotTo(BeNil())
		g.Expect(*c).To(And(HaveField("Status", status), HaveField("Reason", reason)), c.Message)
	}).Should(Succeed())
	return c.Message
}

// eventsOf returns the reasons of the events of a pool, each as often as it was recorded.
func eventsOf(ctx context.Context, pool v1alpha1.Pool) []string {
	GinkgoHelper()
	ns := pool.GetNamespace()
	if ns == "" {
		ns = corev1.NamespaceDefault
	}
	return eventReasons(ctx, ns, pool.GetUID())
}

// eventReasons returns the reasons of the events on an object, each as often as it was recorded.
func eventReasons(ctx context.Context, ns string, uid types.UID) []string {
	GinkgoHelper()
	list := &eventsv1.EventList{}
	Expect(k8s.List(ctx, list, client.InNamespace(ns))).To(Succeed())
	var reasons []string
	for i := range list.Items {
		e := &list.Items[i]
		if e.Regarding.UID != uid {
			continue
		}
		n := int32(1)
		if e.Series != nil {
			n = e.Series.Count
		}
		for range n {
			reasons = append(reasons, e.Reason)
		}
	}
	return reasons
}

// recreated waits for a new IPAddress with the name of one that was deleted by force.
func recreated(ctx context.Context, before *ipamv1.IPAddress) *ipamv1.IPAddress {
	GinkgoHelper()
	after := &ipamv1.IPAddress{}
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, keyOf(before), after)).To(Succeed())
		g.Expect(after.UID).NotTo(Equal(before.UID))
	}).Should(Succeed())
	return after
}

// madeAddress returns an IPAddress for a claim of pool p that was not created by the manager, but by a move, a
// restore or a user.
func madeAddress(ns, name, address string, prefix int32, owners ...metav1.OwnerReference) *ipamv1.IPAddress {
	return &ipamv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: ns, Name: name, OwnerReferences: owners, Finalizers: []string{"ipam.cluster.x-k8s.io/ProtectAddress"},
		},
		Spec: ipamv1.IPAddressSpec{
			ClaimRef: ipamv1.IPAddressClaimReference{Name: name},
			PoolRef:  ipamv1.IPPoolReference{APIGroup: v1alpha1.GroupVersion.Group, Kind: v1alpha1.NetworkPoolKind, Name: "p"},
			Address:  address,
			Prefix:   &prefix,
		},
	}
}

func claimOwner(name string, uid types.UID) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: ipamv1.GroupVersion.String(), Kind: "IPAddressClaim", Name: name, UID: uid,
		Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
	}
}

func poolOwner(name string, uid types.UID) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.NetworkPoolKind, Name: name, UID: uid,
		Controller: ptr.To(false), BlockOwnerDeletion: ptr.To(true),
	}
}

func makeCluster(ns, name string, paused bool) *clusterv1.Cluster {
	return &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec:       clusterv1.ClusterSpec{Paused: &paused, ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "h", Port: 1}},
	}
}

// expectNothingWrong checks the invariants that must hold at any moment.
func expectNothingWrong(ctx context.Context, ns string) {
	GinkgoHelper()
	Expect((&invariants.History{}).CheckMoment(objects(ctx, ns))).To(BeEmpty())
}

// endQuarantine moves the start of the wait after an adoption into the past, so that it is over (R10: a pool without
// a record of an allocator waits). No manager may run.
func endQuarantine(ctx context.Context, pool *v1alpha1.NetworkPool) {
	GinkgoHelper()
	modifyStatus(ctx, pool, func(p *v1alpha1.NetworkPool) {
		c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ReadyCondition)
		Expect(c).To(HaveValue(HaveField("Reason", v1alpha1.AdoptingReason)))
		c.LastTransitionTime = metav1.NewTime(c.LastTransitionTime.Add(-2 * time.Minute))
	})
}
