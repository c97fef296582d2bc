package endpoints

import (
	"context"
	"fmt"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// The pool has fewer addresses than there are users, so some Clusters wait for others.
const (
	users           = 6
	clustersPerUser = 8
	chaosAddresses  = "10.9.0.1-10.9.0.4"
)

// history holds what a watch of Clusters has shown, in order.
type history struct {
	mu     sync.Mutex
	living map[types.UID]*clusterv1.Cluster
	served int
	bad    []string
}

func (h *history) see(kind watch.EventType, c *clusterv1.Cluster) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before, host := h.living[c.UID], c.Spec.ControlPlaneEndpoint.Host
	if before != nil && before.Spec.ControlPlaneEndpoint.Host != "" && before.Spec.ControlPlaneEndpoint.Host != host {
		h.bad = append(h.bad, fmt.Sprintf("Cluster %s had %s, and has %q", c.Name, before.Spec.ControlPlaneEndpoint.Host, host))
	}
	if kind == watch.Deleted {
		delete(h.living, c.UID)
		return
	}
	if host != "" && (before == nil || before.Spec.ControlPlaneEndpoint.Host == "") {
		h.served++
	}
	h.living[c.UID] = c
	for _, other := range h.living {
		if host != "" && other.UID != c.UID && other.Spec.ControlPlaneEndpoint.Host == host {
			h.bad = append(h.bad, fmt.Sprintf("Clusters %s and %s have %s", c.Name, other.Name, host))
		}
	}
}

// follow calls see for each event of a watch until the context ends.
func follow[T client.Object](ctx context.Context, list client.ObjectList, ns string, see func(watch.EventType, T)) {
	GinkgoHelper()
	w, err := k8s.Watch(ctx, list, client.InNamespace(ns))
	Expect(err).NotTo(HaveOccurred())
	go func() {
		defer GinkgoRecover()
		for event := range w.ResultChan() {
			obj, ok := event.Object.(T)
			if !ok && ctx.Err() != nil {
				return
			}
			Expect(ok).To(BeTrue(), "the watch ended: %v", event.Object)
			see(event.Type, obj)
		}
	}()
}

var _ = Describe("Managers that are killed while Clusters come and go", func() {
	It("give no Cluster two endpoints, no two Clusters one, and leave nothing behind", func(ctx SpecContext) { // U48
		ns := newNamespace(ctx)
		addresses := pool(ns, "endpoints").Addresses(chaosAddresses).Prefix(24).Obj()
		create(ctx, addresses)
		newClass(ctx, ns, "VSphere")
		startManager(ctx) // one of the three is never killed, so that Clusters are served

		watching, stop := context.WithCancel(ctx)
		DeferCleanup(stop)
		h := &history{living: map[types.UID]*clusterv1.Cluster{}}
		follow(watching, &clusterv1.ClusterList{}, ns, h.see)
		followInfrastructure(watching, ns, h)

		progress := make(chan struct{}, users*clustersPerUser)
		killing := killManagers(ctx, progress)
		var all sync.WaitGroup
		for u := range users {
			all.Go(func() {
				defer GinkgoRecover()
				for i := range clustersPerUser {
					runClusterLifecycle(ctx, newCluster(ns, fmt.Sprintf("c-%d-%d", u, i), ""))
					progress <- struct{}{}
				}
			})
		}
		all.Wait()
		close(progress)
		kills := <-killing
		Eventually(allocated(ctx, addresses)).WithTimeout(framework.LongTimeout).Should(BeZero())
		Expect(claimsIn(ctx, ns)).To(BeEmpty())
		h.mu.Lock()
		defer h.mu.Unlock()
		Expect(h.bad).To(BeEmpty())
		Expect(h.served).To(Equal(users * clustersPerUser))
		Expect(kills).To(BeNumerically(">", users))
		GinkgoWriter.Printf("%d Clusters were served, %d managers killed\n", h.served, kills)
	})
})

// followInfrastructure marks each infrastructure object as provisioned, as its provider does, and checks that its
// host does not change.
func followInfrastructure(ctx context.Context, ns string, h *history) {
	GinkgoHelper()
	hosts := map[types.UID]string{}
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion(infrastructure + "/" + versions["VSphere"])
	list.SetKind("VSphereClusterList")
	follow(ctx, list, ns, func(kind watch.EventType, infra *unstructured.Unstructured) {
		if had := hosts[infra.GetUID()]; had != "" && had != hostOf(infra) {
			h.mu.Lock()
			h.bad = append(h.bad, fmt.Sprintf("VSphereCluster %s had %s, and has %q", infra.GetName(), had, hostOf(infra)))
			h.mu.Unlock()
		}
		hosts[infra.GetUID()] = hostOf(infra)
		if provisioned, _, _ := unstructured.NestedBool(infra.Object, "status", "initialization", "provisioned"); provisioned || kind == watch.Deleted {
			return
		}
		before := infra.DeepCopy()
		Expect(unstructured.SetNestedField(infra.Object, true, "status", "initialization", "provisioned")).To(Succeed())
		Expect(client.IgnoreNotFound(k8s.Status().Patch(ctx, infra, client.MergeFrom(before)))).To(Succeed())
	})
}

// runClusterLifecycle creates a Cluster, waits for its endpoint, and deletes it.
func runClusterLifecycle(ctx context.Context, cluster *clusterv1.Cluster) {
	GinkgoHelper()
	const pollInterval = 50 * time.Millisecond
	create(ctx, cluster)
	Expect(wait.PollUntilContextTimeout(ctx, pollInterval, framework.LongTimeout, true, func(ctx context.Context) (bool, error) {
		err := k8s.Get(ctx, client.ObjectKeyFromObject(cluster), cluster)
		return cluster.Spec.ControlPlaneEndpoint.Host != "", err
	})).To(Succeed(), "%s: %s", cluster.Name, topologyOf(cluster).Message)
	Expect(k8s.Delete(ctx, cluster)).To(Succeed())
	Expect(wait.PollUntilContextTimeout(ctx, pollInterval, framework.LongTimeout, true, func(ctx context.Context) (bool, error) {
		err := k8s.Get(ctx, client.ObjectKeyFromObject(cluster), cluster)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})).To(Succeed())
}

// killManagers starts two managers besides the running ones, and replaces one of them for every third Cluster that is
// done. When progress is closed it sends the number of kills.
func killManagers(ctx context.Context, progress <-chan struct{}) <-chan int {
	GinkgoHelper()
	type one struct {
		m    *framework.Manager
		port int
	}
	next := func() one {
		m, port := launch(ctx)
		return one{m, port}
	}
	two, out := []one{next(), next()}, make(chan int, 1)
	go func() {
		defer GinkgoRecover()
		kills, through := 0, 0
		for range progress {
			if through++; through%3 != 0 {
				continue
			}
			victim := two[0]
			Expect(victim.m.Kill()).To(Succeed())
			managers.remove(victim.port)
			two = []one{two[1], next()}
			kills++
		}
		for _, left := range two {
			managers.remove(left.port)
			Expect(left.m.Kill()).To(Succeed())
		}
		out <- kills
	}()
	return out
}
