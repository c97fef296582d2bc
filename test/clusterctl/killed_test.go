package clusterctl

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// adoption is how long a pool that has arrived waits at least, from the arrival of the last object with addresses.
const adoption = 75 * time.Second

// A long run of many moves that are killed: docs/reliability.md.
var (
	moveKills = flag.Int("move-kills", 0, "kill clusterctl move at so many random moments; 0: the spec is skipped")
	moveSeed  = flag.Uint64("move-seed", 0, "decides at which moments; 0: a seed that is drawn. It is printed")
	movePause = flag.Duration("move-pause", 2*time.Minute, "how long a move that was killed is left")
)

// killable is the latest time after its start at which a move is killed. A move that ends before that is followed by
// the move back.
const killable = 20 * time.Second

var _ = Describe("clusterctl move that is killed again and again", func() {
	It("gives no address twice, changes none and loses none, whatever the pool", func(ctx SpecContext) { // C53
		if *moveKills == 0 {
			Skip("it takes minutes for each kill: make move-kills")
		}
		t := newTrial(ctx)
		for kills := 0; kills < *moveKills; {
			if !t.kill(ctx) {
				t.expectArrived(ctx)
				continue
			}
			kills++
			t.addClaimsOnBothSides(ctx, kills)
			t.resume(ctx)
		}
		for range 2 { // to the other side and back, or back alone
			t.from.clusterctl(ctx, "move", "--to-kubeconfig", t.to.Kubeconfig, "-n", t.ns)
			t.expectArrived(ctx)
			if t.from == t.home {
				break
			}
		}
		Expect(t.from).To(BeIdenticalTo(t.home))
		Expect(t.names(ctx, t.from)).To(ContainElements(t.namesBeforeMove))
	})
})

// trial is a fleet that is moved there and back.
type trial struct {
	fleet
	home, from, to  *site
	draw            *rand.Rand
	nodes           *joiningNodes
	namesBeforeMove []string          // the names with an address before the first move
	known           map[string]string // the records by name, as first read on either side
	open            []string          // claims made between two moves, of pools that open by themselves
}

// newTrial creates a fleet with a hundred more claims, from every kind of pool, and with a Cluster whose Nodes get
// pod CIDRs.
func newTrial(ctx context.Context) *trial {
	GinkgoHelper()
	seed := *moveSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	AddReportEntry("seed", fmt.Sprintf("-move-seed %d", seed))
	t := &trial{draw: rand.New(rand.NewPCG(seed, 0)), known: map[string]string{}}
	nodes, credentials := startNodes(ctx)
	t.nodes = nodes
	t.from, t.to = startSite(), startSite()
	t.home = t.from
	for _, s := range []*site{t.from, t.to} {
		s.init(ctx)
		s.installInClusterPools(ctx)
		s.add(ctx, "load-balancers", "leases", "in-cluster-pools", "fleet-node-cidrs")
		s.run(ctx)
		s.addPodCIDRs(ctx)
	}
	t.fleet = newFleet(ctx, t.from, "fleet")
	t.markRunning(ctx, t.from)
	t.waitUntilGranted(ctx, t.from)
	t.from.makeInClusterPool(ctx, incluster.IPPoolKind, t.ns, "hosts", "10.33.0.10-10.33.0.199")
	t.from.makeInClusterPool(ctx, incluster.GlobalIPPoolKind, "", "shared", "10.34.0.10-10.34.0.199")
	_, err := framework.CreateClusterWithKubeconfig(ctx, t.from, credentials, metav1.ObjectMeta{
		Namespace: t.ns, Name: "nodes", Labels: map[string]string{v1alpha1.NodeCIDRsLabel: ""},
	})
	Expect(err).NotTo(HaveOccurred())
	t.claimOf(ctx, t.from, "prod-1")
	Expect(t.nodes.join(ctx, 4)).To(Succeed())
	t.nodes.served(ctx, t.from)
	Eventually(func() []ipamv1.IPAddressClaim { return t.claims(ctx, t.from) }).WithTimeout(framework.LongTimeout).
		Should(And(HaveLen(106), HaveEach(HaveField("Status.AddressRef.Name", Not(BeEmpty())))))
	t.checkRecords(ctx, Default)
	t.namesBeforeMove = slices.Collect(maps.Keys(t.known))
	return t
}

// installInClusterPools installs what clusterctl would install of the in-cluster provider, without its manager.
func (s *site) installInClusterPools(ctx context.Context) {
	GinkgoHelper()
	Expect(s.InstallInClusterPools()).To(Succeed())
	for _, k := range incluster.PoolKinds {
		crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: strings.ToLower(k.Name) + "s." + incluster.GroupVersion.Group}}
		Expect(s.Get(ctx, client.ObjectKeyFromObject(crd), crd)).To(Succeed())
		was := crd.DeepCopy()
		crd.Labels = map[string]string{clusterctlv1.ClusterctlLabel: "", clusterctlv1.ClusterctlMoveHierarchyLabel: ""}
		Expect(s.Patch(ctx, crd, client.MergeFrom(was))).To(Succeed())
	}
}

func (s *site) makeInClusterPool(ctx context.Context, kind, ns, name, addresses string) {
	GinkgoHelper()
	k, found := incluster.KindByName(kind)
	Expect(found).To(BeTrue())
	pool := k.NewPool()
	pool.SetNamespace(ns)
	pool.SetName(name)
	pool.Object["spec"] = map[string]any{"addresses": []any{addresses}, "prefix": int64(24)}
	Expect(s.Create(ctx, pool)).To(Succeed())
}

// claimOf creates a hundred claims of all pools. A Machine owns every other one.
func (t *trial) claimOf(ctx context.Context, s *site, machine string) {
	GinkgoHelper()
	m := &clusterv1.Machine{}
	Expect(s.Get(ctx, client.ObjectKey{Namespace: t.ns, Name: machine}, m)).To(Succeed())
	for i := range 20 {
		for pool, claim := range t.oneOfEach(fmt.Sprintf("base-%02d", i)) {
			if i%2 == 0 {
				claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: m.Name, UID: m.UID}}
			}
			Expect(s.Create(ctx, claim)).To(Succeed(), pool)
		}
	}
}

// oneOfEach returns a claim for each pool that serves claims, by the name of the pool.
func (t *trial) oneOfEach(name string) map[string]*ipamv1.IPAddressClaim {
	inCluster := incluster.GroupVersion.Group
	return map[string]*ipamv1.IPAddressClaim{
		"services": framework.MakeClaim(t.ns, name+"-services").Pool("services").Obj(),
		"machines": framework.MakeClaim(t.ns, name+"-machines").Pool("machines").Obj(),
		"hosts":    framework.MakeClaim(t.ns, name+"-hosts").PoolRef(inCluster, incluster.IPPoolKind, "hosts").Obj(),
		"storage":  framework.MakeClaim(t.ns, name+"-storage").GlobalPool("storage").Obj(),
		"shared":   framework.MakeClaim(t.ns, name+"-shared").PoolRef(inCluster, incluster.GlobalIPPoolKind, "shared").Obj(),
	}
}

// kill starts a move and kills it at a random moment. It reports whether it did: the move may have ended before.
func (t *trial) kill(ctx context.Context) bool {
	GinkgoHelper()
	after := time.Duration(t.draw.Int64N(int64(killable)))
	cmd := clusterctlCommand(ctx, "move", "--kubeconfig", t.from.Kubeconfig, "--to-kubeconfig", t.to.Kubeconfig, "-n", t.ns)
	cmd.Stdout, cmd.Stderr = GinkgoWriter, GinkgoWriter
	Expect(cmd.Start()).To(Succeed())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	killed := false
	select {
	case err := <-ended:
		Expect(err).NotTo(HaveOccurred())
	case <-time.After(after):
		_ = cmd.Process.Kill() // no effect if the process has just ended
		killed = <-ended != nil
	}
	By(fmt.Sprintf("moving: killed %v, after %v at most; there are %d claims on the source, and %d on the target",
		killed, after.Round(time.Millisecond), len(t.claims(ctx, t.from)), len(t.claims(ctx, t.to))))
	return killed
}

// addClaimsOnBothSides creates claims on both sides, adds a Node, and expects for a while that no address is granted
// twice, and none changes.
func (t *trial) addClaimsOnBothSides(ctx context.Context, n int) {
	GinkgoHelper()
	for side, s := range map[string]*site{"source": t.from, "target": t.to} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: t.ns}}
		Expect(client.IgnoreAlreadyExists(s.Create(ctx, ns))).To(Succeed())
		for pool, claim := range t.oneOfEach(fmt.Sprintf("made-%02d-%s", n, side)) {
			Expect(s.Create(ctx, claim)).To(Succeed())
			if pool != "storage" && pool != "shared" { // an administrator must open these two
				t.open = append(t.open, claim.Name)
			}
		}
		lease := framework.MakeLease(t.ns, fmt.Sprintf("made-%02d-%s-lease", n, side)).Pool("services").Obj()
		Expect(s.Create(ctx, lease)).To(Succeed())
		t.open = append(t.open, lease.Name)
	}
	Expect(t.nodes.join(ctx, 1)).To(Succeed())
	if n%3 == 0 { // the manager of one side dies too; the first check starts it again
		Expect([]*site{t.from, t.to}[n%2].manager.Kill()).To(Succeed())
	}
	// The Cluster keeps its own address, so this claim is in deletion for as long as the Cluster exists.
	endpoint := framework.MakeClaim(t.ns, "prod-control-plane").Obj()
	Expect(client.IgnoreNotFound(t.from.Delete(ctx, endpoint))).To(Succeed())
	Consistently(func(g Gomega) { t.checkRecords(ctx, g) }).WithTimeout(*movePause).WithPolling(2 * time.Second).Should(Succeed())
}

// resume prepares the next run of clusterctl, as docs/install.md describes: clusterctl moves no paused Clusters, and
// no object in deletion while a copy of it is on the target.
func (t *trial) resume(ctx context.Context) {
	GinkgoHelper()
	for _, c := range t.claims(ctx, t.from) {
		if c.DeletionTimestamp != nil {
			t.to.deleteAtOnce(ctx, framework.MakeClaim(c.Namespace, c.Name).Obj())
			t.to.deleteAtOnce(ctx, &ipamv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name}})
		}
	}
	if t.unpauseAll(ctx, t.from) && t.hasBlocks(ctx, t.from) {
		t.nodes.someServed(ctx, t.servable(ctx, t.from), t.from, t.to)
	}
}

// servable is how many Nodes a side can serve. A pool that is in no namespace stays behind when a block of it is moved, and is
// closed (Moved) until a person opens it, also when the block is back: then there is no other block.
func (t *trial) servable(ctx context.Context, s *site) int {
	GinkgoHelper()
	pool, blocks := &v1alpha1.GlobalNetworkPool{}, &v1alpha1.IPAllocationList{}
	Expect(s.Get(ctx, client.ObjectKey{Name: podsPool}, pool)).To(Succeed())
	if !slices.ContainsFunc(pool.Status.Held, func(h v1alpha1.HeldRange) bool { return h.Reason == v1alpha1.MovedReason }) {
		return t.nodes.n
	}
	Expect(s.List(ctx, blocks, client.InNamespace(t.ns), client.MatchingLabels{v1alpha1.AllocationTypeLabel: string(v1alpha1.PodsAllocation)})).To(Succeed())
	room := 0
	for i := range blocks.Items {
		if b := &blocks.Items[i]; b.Annotations[v1alpha1.AddressAnnotation] != "" && b.DeletionTimestamp == nil {
			room += nodesPerBlock
		}
	}
	return min(t.nodes.n, room)
}

// hasBlocks reports whether a side has the blocks of all pod CIDRs. clusterctl deletes blocks before their Cluster:
// when one is gone from the source, the pool there is closed (Moved), and Nodes wait for the end of the move.
func (t *trial) hasBlocks(ctx context.Context, s *site) bool {
	GinkgoHelper()
	blocks, nodes := &v1alpha1.IPAllocationList{}, &corev1.NodeList{}
	Expect(s.List(ctx, blocks, client.InNamespace(t.ns))).To(Succeed())
	Expect(t.nodes.List(ctx, nodes)).To(Succeed())
	return !slices.ContainsFunc(nodes.Items, func(n corev1.Node) bool {
		return n.Spec.PodCIDR != "" && !slices.ContainsFunc(blocks.Items, func(b v1alpha1.IPAllocation) bool {
			whole, err := netip.ParsePrefix(b.Status.CIDR)
			return err == nil && b.DeletionTimestamp == nil && whole.Contains(netip.MustParsePrefix(n.Spec.PodCIDR).Addr())
		})
	})
}

// deleteAtOnce deletes an object at once, if it exists.
func (s *site) deleteAtOnce(ctx context.Context, o client.Object) {
	GinkgoHelper()
	Expect(framework.ForceDelete(ctx, s, o)).To(Succeed())
}

// unpauseAll unpauses the Clusters of a side. It reports whether both Clusters of the trial are there.
func (t *trial) unpauseAll(ctx context.Context, s *site) bool {
	GinkgoHelper()
	clusters := &clusterv1.ClusterList{}
	Expect(s.List(ctx, clusters, client.InNamespace(t.ns))).To(Succeed())
	for i := range clusters.Items {
		was := clusters.Items[i].DeepCopy()
		clusters.Items[i].Spec.Paused = nil
		Expect(s.Patch(ctx, &clusters.Items[i], client.MergeFrom(was))).To(Succeed())
	}
	return len(clusters.Items) == 2
}

// expectArrived expects all objects on the other side after a move has ended, and resumes that side; then it swaps
// the two sides.
func (t *trial) expectArrived(ctx context.Context) {
	GinkgoHelper()
	Expect(t.names(ctx, t.from)).To(BeEmpty())
	t.unpauseAll(ctx, t.to) // clusterctl does that for Clusters that it has found on the source
	t.markRunning(ctx, t.to)
	Expect(framework.MarkProvisioned(ctx, t.to, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: t.ns, Name: "nodes"}})).To(Succeed())
	here := slices.DeleteFunc(slices.Clone(t.open), func(name string) bool {
		claim, lease := &ipamv1.IPAddressClaim{}, &v1alpha1.IPLease{}
		key := client.ObjectKey{Namespace: t.ns, Name: name}
		return t.to.Get(ctx, key, claim) != nil && t.to.Get(ctx, key, lease) != nil
	})
	Eventually(func(g Gomega) {
		t.checkRecords(ctx, g)
		g.Expect(t.names(ctx, t.to)).To(ContainElements(append(here, t.namesBeforeMove...)))
	}).WithTimeout(adoption + framework.LongTimeout).WithPolling(time.Second).Should(Succeed())
	t.nodes.someServed(ctx, t.servable(ctx, t.to), t.from, t.to)
	t.from, t.to = t.to, t.from
}

func (t *trial) names(ctx context.Context, s *site) []string {
	GinkgoHelper()
	return slices.Collect(maps.Keys(t.records(ctx, s)))
}

// checkRecords expects that no record has changed, that no two claims have the same address, on each side and on both
// together, and that each IPAddress has the address on record in its claim.
func (t *trial) checkRecords(ctx context.Context, g Gomega) {
	GinkgoHelper()
	ranges := map[string]netipx.IPRange{}
	for _, s := range []*site{t.from, t.to} {
		s.restart(ctx)
		addresses := t.expectAddressesOnce(ctx, g, s) // read first: a record exists before its IPAddress
		records := t.records(ctx, s)
		for name, record := range records {
			if was, known := t.known[name]; known {
				g.Expect(record).To(Equal(was), name)
			}
			t.known[name] = record
			r, err := poolutil.ParseRange(record)
			g.Expect(err).NotTo(HaveOccurred(), "%s: %s", name, record)
			ranges[name] = r
		}
		for address, name := range addresses {
			// clusterctl removes all annotations of a claim, including the record, right before it deletes the claim.
			record, err := poolutil.ParseRange(t.known[name])
			g.Expect(err).NotTo(HaveOccurred(), name)
			g.Expect(record.From().String()).To(Equal(address), name)
			ranges[name] = record
		}
		// The addresses of a carved pool are in use in its parent too: its block overlaps the addresses of its
		// claims.
		blocks := &v1alpha1.IPAllocationList{}
		g.Expect(s.List(ctx, blocks, client.InNamespace(t.ns))).To(Succeed())
		for i := range blocks.Items {
			if blocks.Items[i].Spec.ChildPoolRef != nil {
				delete(ranges, blocks.Items[i].Name)
			}
		}
	}
	names := slices.SortedFunc(maps.Keys(ranges), func(a, b string) int { return ranges[a].From().Compare(ranges[b].From()) })
	for i := 1; i < len(names); i++ {
		g.Expect(ranges[names[i-1]].Overlaps(ranges[names[i]])).To(BeFalse(), "%s and %s have %s", names[i-1], names[i], ranges[names[i]])
	}
}
