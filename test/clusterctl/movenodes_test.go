package clusterctl

import (
	"context"
	"fmt"
	"maps"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// joiningNodes are the Nodes of a workload cluster. No kubelet runs: a Node is only an object.
type joiningNodes struct {
	client.Client
	n int
}

// join creates the given number of further Nodes.
func (j *joiningNodes) join(ctx context.Context, more int) error {
	for range more {
		if err := j.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n-%02d", j.n)}}); err != nil {
			return err
		}
		j.n++
	}
	return nil
}

// served waits until all Nodes have CIDRs, expects that no two have the same, and returns the CIDRs by Node. A
// manager of the sites that ends meanwhile is started again, as Kubernetes does: a manager that does not renew its
// lease in time ends.
func (j *joiningNodes) served(ctx context.Context, sites ...*site) (cidrs map[string]string) {
	GinkgoHelper()
	return j.someServed(ctx, j.n, sites...)
}

// someServed waits until so many of them have CIDRs, and no more, and expects that no two have one.
func (j *joiningNodes) someServed(ctx context.Context, n int, sites ...*site) (cidrs map[string]string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		for _, s := range sites {
			s.restart(ctx)
		}
		var all corev1.NodeList
		g.Expect(j.List(ctx, &all)).To(Succeed())
		cidrs = map[string]string{}
		nodeByCIDR := map[string]string{}
		for i := range all.Items {
			if cidr := all.Items[i].Spec.PodCIDR; cidr != "" {
				Expect(nodeByCIDR).NotTo(HaveKey(cidr), "of %s", all.Items[i].Name)
				cidrs[all.Items[i].Name], nodeByCIDR[cidr] = cidr, all.Items[i].Name
			}
		}
		g.Expect(cidrs).To(HaveLen(n))
	}).WithTimeout(framework.LongTimeout).Should(Succeed())
	return cidrs
}

var _ = Describe("clusterctl move of a Cluster whose Nodes get pod CIDRs", func() {
	It("takes its blocks along while Nodes join, and no CIDR changes or is given twice", func(ctx SpecContext) {
		nodes, credentials := startNodes(ctx)

		here, there := startSite(), startSite()
		for _, s := range []*site{here, there} {
			s.init(ctx)
			s.add(ctx, "fleet-node-cidrs")
			s.run(ctx)
			s.addPodCIDRs(ctx)
		}
		const ns = "nodes"
		Expect(here.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})).To(Succeed())
		cluster, err := framework.CreateClusterWithKubeconfig(ctx, here, credentials, metav1.ObjectMeta{
			Namespace: ns, Name: "prod", Labels: map[string]string{v1alpha1.NodeCIDRsLabel: ""},
		})
		Expect(err).NotTo(HaveOccurred())
		Expect(nodes.join(ctx, 5)).To(Succeed())
		before := nodes.served(ctx)

		for _, way := range []struct {
			from, to    *site
			more, later int // Nodes that join during the move, and after it
		}{{here, there, 8, 7}, {there, here, 5, 5}} { // the target needs another block, the way back needs none
			blocks := way.from.allocated(ctx)
			Expect(blocks).NotTo(BeEmpty())
			var load errgroup.Group
			load.Go(func() error { return nodes.join(ctx, way.more) })
			way.from.clusterctl(ctx, "move", "--to-kubeconfig", way.to.Kubeconfig, "-n", ns)
			Expect(load.Wait()).To(Succeed())
			Expect(nodes.join(ctx, way.later)).To(Succeed())
			moved := cluster.DeepCopy()
			Expect(framework.MarkProvisioned(ctx, way.to, moved)).To(Succeed()) // a move does not copy the status
			after := nodes.served(ctx)
			for name, cidr := range before {
				Expect(after).To(HaveKeyWithValue(name, cidr))
			}
			before = after
			// The pool that stays on the source does not offer the moved blocks.
			Expect(way.from.allocated(ctx)).To(BeEmpty())
			Eventually(func(g Gomega) {
				staying := &v1alpha1.GlobalNetworkPool{}
				g.Expect(way.from.Get(ctx, client.ObjectKey{Name: podsPool}, staying)).To(Succeed())
				for name := range blocks {
					g.Expect(staying.Status.Held).To(ContainElement(HaveField("Name", strings.TrimPrefix(name, "IPAllocation "+ns+"/"))))
				}
			}).Should(Succeed())
			Eventually(func(g Gomega) {
				allocated := way.to.allocated(ctx)
				for name, cidr := range blocks {
					g.Expect(allocated).To(HaveKeyWithValue(name, cidr))
				}
			}).Should(Succeed())
		}

		By("joining one Node more than the blocks have room for: the pool is closed since the first move, until a person opens it")
		blocks := here.allocated(ctx)
		maps.DeleteFunc(blocks, func(_, cidr string) bool { return cidr == "" }) // one may be asked for, and gets nothing
		room := len(blocks) * nodesPerBlock
		Expect(nodes.join(ctx, room+1-nodes.n)).To(Succeed())
		before = nodes.someServed(ctx, room)
		Eventually(func(g Gomega) {
			cc := &v1alpha1.ClusterCIDR{}
			g.Expect(here.Get(ctx, client.ObjectKey{Name: "fleet"}, cc)).To(Succeed())
			g.Expect(cc.Status.Conditions).To(ContainElement(And(
				HaveField("Type", v1alpha1.ExhaustedCondition), HaveField("Status", metav1.ConditionTrue), HaveField("Message", ContainSubstring("kubectl butler-ipam release-held")))))
		}).Should(Succeed())
		here.releaseHeld(ctx, podsPool)
		after := nodes.served(ctx)
		for name, cidr := range before {
			Expect(after).To(HaveKeyWithValue(name, cidr))
		}
	})
})

var _ = Describe("clusterctl move of ClusterCIDRs for the Nodes of the management cluster itself", func() {
	It("copies each one whose name is free to the target, which serves its own Nodes from the copies", func(ctx SpecContext) {
		here, there := startSite(), startSite()
		for _, s := range []*site{here, there} {
			s.init(ctx)
			s.add(ctx, "own-node-cidrs")
		}
		there.run(ctx)          // the source needs no manager
		const few, many = 12, 8 // host bits for each Node, by how many Nodes a range serves
		own := func(name, cidr string, hostBits int32) *v1alpha1.ClusterCIDR {
			return &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ClusterCIDRSpec{PerNodeHostBits: hostBits, IPv4: cidr}}
		}
		for _, c := range []*v1alpha1.ClusterCIDR{own("default", "10.244.0.0/16", many), own("more", "10.245.0.0/16", few), own("idle", "10.246.0.0/16", many)} {
			Expect(here.Create(ctx, c)).To(Succeed())
		}
		Expect(there.Create(ctx, own("default", "10.250.0.0/16", many))).To(Succeed())
		nodes := &joiningNodes{Client: there}
		Expect(nodes.join(ctx, 1)).To(Succeed())
		Expect(nodes.served(ctx)).To(HaveKeyWithValue("n-00", HavePrefix("10.250.")))

		here.clusterctl(ctx, "move", "--to-kubeconfig", there.Kubeconfig, "-n", "default")
		cc := &v1alpha1.ClusterCIDR{}
		Expect(there.Get(ctx, client.ObjectKey{Name: "default"}, cc)).To(Succeed())
		Expect(cc.Spec.IPv4).To(Equal("10.250.0.0/16"))
		Expect(here.Get(ctx, client.ObjectKey{Name: "more"}, cc)).To(Succeed(), "the original stays")
		Expect(nodes.join(ctx, 1)).To(Succeed())
		Expect(nodes.served(ctx)).To(HaveKeyWithValue("n-01", HavePrefix("10.245."))) // the range for the fewest Nodes

		By("deleting the copies: no Node that joins gets a CIDR of them, and the unused one is removed")
		for _, name := range []string{"more", "idle"} {
			Expect(there.Delete(ctx, own(name, "", 0))).To(Succeed())
		}
		Eventually(func() error { return there.Get(ctx, client.ObjectKey{Name: "idle"}, cc) }).Should(Satisfy(apierrors.IsNotFound))
		Expect(nodes.join(ctx, 1)).To(Succeed())
		Expect(nodes.served(ctx)).To(HaveKeyWithValue("n-02", HavePrefix("10.250.")))
		Expect(there.Get(ctx, client.ObjectKey{Name: "more"}, cc)).To(Succeed())
	})
})

// startNodes starts a workload cluster, and returns credentials with which a manager may set the pod CIDRs of its
// Nodes.
func startNodes(ctx context.Context) (*joiningNodes, []byte) {
	GinkgoHelper()
	workload, err := framework.StartControlPlane(framework.Options{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(workload.Stop()).To(Succeed()) })
	admin, err := workload.NewClient()
	Expect(err).NotTo(HaveOccurred())
	credentials, err := workload.NodesTenantKubeconfig(ctx)
	Expect(err).NotTo(HaveOccurred())
	return &joiningNodes{Client: admin}, credentials
}

// podsPool is the pool of the blocks for Nodes, and nodesPerBlock how many Nodes one serves.
const (
	podsPool      = "pods"
	nodesPerBlock = 16
)

// addPodCIDRs creates a pool and a ClusterCIDR for the Nodes of all Clusters.
func (s *site) addPodCIDRs(ctx context.Context) {
	GinkgoHelper()
	pool := framework.MakeGlobalPool(podsPool).CIDR("100.64.0.0/20").AllocateReservedAddresses().Obj()
	Expect(s.Create(ctx, pool)).To(Succeed())
	Expect(s.Create(ctx, &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: "fleet"}, Spec: v1alpha1.ClusterCIDRSpec{
		PerNodeHostBits: 4, ClusterSelector: &metav1.LabelSelector{}, IPv4Pool: &v1alpha1.PodPool{Name: pool.Name, NodesPerBlock: nodesPerBlock},
	}})).To(Succeed())
}
