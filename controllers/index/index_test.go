package index

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// TestBlockIndex checks that what the watch shows late, or again, does not undo what is known, and B34: the index has
// all load-balancer blocks of a Cluster, and no others.
func TestBlockIndex(t *testing.T) {
	g := NewWithT(t)
	b := &BlockIndex{}
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer q.ShutDown()
	g.Expect(b.NewSource().Start(context.Background(), q)).To(Succeed())
	woken := func() int {
		n := q.Len()
		for range n {
			item, _ := q.Get()
			q.Done(item)
		}
		return n
	}
	cluster := types.NamespacedName{Namespace: "team", Name: "prod"}
	block := func(name, uid string, rv int) *v1alpha1.IPAllocation {
		o := framework.MakeAllocation("ns", name).Cluster("team", "prod").Obj()
		o.UID, o.ResourceVersion = types.UID(uid), fmt.Sprint(rv)
		o.Status.Addresses = []string{"10.0.0.1"}
		o.CreationTimestamp = metav1.NewTime(time.Unix(int64(rv), 0))
		return o
	}
	versions := func() (out []string) {
		for _, a := range b.LoadBalancerBlocks(cluster) {
			out = append(out, a.Name+"@"+a.ResourceVersion)
		}
		return out
	}
	b.ObserveBlock(block("b", "1", 10))
	b.ObserveBlock(block("a", "2", 20))
	g.Expect(woken()).To(Equal(1)) // one Cluster, however often
	g.Expect(versions()).To(Equal([]string{"b@10", "a@20"}))
	g.Expect(b.LoadBalancerBlocks(cluster)[0].Status.Addresses).To(BeNil())
	b.ObserveBlock(block("a", "2", 15))
	b.ObserveBlock(block("a", "2", 20))
	g.Expect(woken()).To(Equal(0))
	b.LoadBalancerBlocks(cluster)[0].Labels = map[string]string{"x": "y"} // a copy
	g.Expect(b.LoadBalancerBlocks(cluster)[0].Labels).To(BeEmpty())

	// Another block of the name is another one; the end of the first does not change it.
	b.ObserveBlock(block("a", "3", 30))
	b.ForgetBlock(block("a", "2", 25))
	g.Expect(versions()).To(Equal([]string{"b@10", "a@30"}))
	b.ForgetBlock(block("a", "3", 31))
	g.Expect(versions()).To(Equal([]string{"b@10"}))
	// The answer to a write of ours may come after the end.
	b.ObserveBlock(block("a", "3", 29))
	b.ForgetBlock(block("c", "4", 41))
	b.ObserveBlock(block("c", "4", 40))
	g.Expect(versions()).To(Equal([]string{"b@10"}))
	g.Expect([]bool{b.HasProjectedBlock(cluster), b.HasDemandCondition(cluster)}).To(Equal([]bool{false, false}))
	shown := block("b", "1", 11)
	shown.Finalizers = []string{v1alpha1.TenantPoolFinalizer}
	shown.Status.Conditions = []metav1.Condition{{Type: v1alpha1.DemandSatisfiedCondition}}
	b.ObserveBlock(shown)
	b.ObserveBlock(shown)
	g.Expect([]bool{b.HasProjectedBlock(cluster), b.HasDemandCondition(cluster)}).To(Equal([]bool{true, true}))
	// Forget it as the list that misses it knows it: by name and UID.
	b.ForgetBlock(&v1alpha1.IPAllocation{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b", UID: "1"}})
	g.Expect([]bool{b.HasProjectedBlock(cluster), b.HasDemandCondition(cluster)}).To(Equal([]bool{false, false}))
	g.Expect(versions()).To(BeEmpty())
	nodes := block("n", "9", 90)
	nodes.Spec.Type = v1alpha1.NodesAllocation
	b.ObserveBlock(nodes)
	g.Expect(versions()).To(BeEmpty())
}
