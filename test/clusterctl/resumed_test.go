package clusterctl

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cli"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("clusterctl move that is killed and resumed minutes later", func() {
	const usual, more = 6, 60 // claims of a fleet, and further ones that one of its Machines owns

	It("gives no address twice, on either side, there and back", func(ctx SpecContext) { // C53
		here, there := startSite(), startSite()
		for _, s := range []*site{here, there} {
			s.init(ctx)
			s.add(ctx, "load-balancers", "leases")
			s.run(ctx)
		}
		f := newFleet(ctx, here, "fleet")
		f.markRunning(ctx, here)
		f.waitUntilGranted(ctx, here)
		f.claimFor(ctx, here, "prod-1", more)
		Eventually(func() int { return f.countBound(ctx, here) }).WithTimeout(framework.LongTimeout).Should(Equal(usual + more))

		By("killing it when the pools, the Cluster and some of the claims of its Machines are on the target")
		f.moveAndKill(ctx, here, there, func() bool { return len(f.claims(ctx, there)) > usual })
		Expect(len(f.claims(ctx, there))).To(BeNumerically("<", usual+more), "it came to its end")
		for _, pool := range []string{"services", "machines"} {
			Expect(there.Create(ctx, framework.MakeClaim(f.ns, "made-there-"+pool).Pool(pool).Obj())).To(Succeed())
		}
		Expect(here.audit(ctx)).To(ContainSubstring("a move of namespace " + f.ns + " has not ended; clusterctl has paused Cluster prod"))
		Expect(there.audit(ctx)).To(And(ContainSubstring("a move of namespace "+f.ns+" to here has not ended"), ContainSubstring("clusterctl has paused Cluster prod")))
		f.unpause(ctx, here)
		made := framework.MakeClaim(f.ns, "made-here").Pool("services").Obj()
		Expect(here.Create(ctx, made)).To(Succeed())
		here.addressOf(ctx, made)
		had := f.records(ctx, here)
		// Time alone opens no pool. When all objects are there, the pool opens after the same time again, counted
		// from the last arrival.
		Consistently(func(g Gomega) {
			for name, record := range f.records(ctx, there) {
				g.Expect(had).To(HaveKeyWithValue(name, record))
			}
			f.expectAddressesOnce(ctx, g, there)
		}).WithTimeout(adoption + 10*time.Second).WithPolling(2 * time.Second).Should(Succeed())

		By("resuming it")
		here.clusterctl(ctx, "move", "--to-kubeconfig", there.Kubeconfig, "-n", f.ns)
		f.expectMoved(ctx, here, there, had)
		Eventually(func() map[string]string { return f.records(ctx, there) }).WithTimeout(adoption + framework.LongTimeout).
			Should(And(HaveKey("made-there-services"), HaveKey("made-there-machines")))
		had = f.records(ctx, there)
		f.expectMoved(ctx, here, there, had) // including a new address for the claims that were created on the target

		By("moving back")
		f.markRunning(ctx, there)
		there.clusterctl(ctx, "move", "--to-kubeconfig", here.Kubeconfig, "-n", f.ns)
		f.expectMoved(ctx, there, here, had)
	})
})

// audit returns the output of `audit --move` for a site.
func (s *site) audit(ctx context.Context) string {
	GinkgoHelper()
	var out bytes.Buffer
	cli.Run(ctx, []string{"audit", "--move", "--kubeconfig", s.Kubeconfig}, cli.EnvFromStreams(nil, &out, &out, time.Now))
	return out.String()
}

// moveAndKill moves a fleet, and kills clusterctl as soon as a condition is met.
func (f fleet) moveAndKill(ctx context.Context, from, to *site, when func() bool) {
	GinkgoHelper()
	cmd := clusterctlCommand(ctx, "move", "--kubeconfig", from.Kubeconfig, "--to-kubeconfig", to.Kubeconfig, "-n", f.ns)
	Expect(cmd.Start()).To(Succeed())
	DeferCleanup(func() { _ = cmd.Process.Kill() }) // if the condition is never met
	Eventually(when).WithTimeout(framework.LongTimeout).WithPolling(5 * time.Millisecond).Should(BeTrue())
	Expect(cmd.Process.Kill()).To(Succeed())
	Expect(cmd.Wait()).NotTo(Succeed(), "it had ended by itself")
}

// unpause prepares the next run of clusterctl, as docs/install.md describes: clusterctl moves no paused Clusters.
func (f fleet) unpause(ctx context.Context, s *site) {
	GinkgoHelper()
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "prod"}}
	Expect(s.Patch(ctx, cluster, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"paused":null}}`)))).To(Succeed())
}

// claimFor creates claims that a Machine owns. clusterctl creates them on the target after pools, Clusters and
// Machines.
func (f fleet) claimFor(ctx context.Context, s *site, machine string, n int) {
	GinkgoHelper()
	m := &clusterv1.Machine{}
	Expect(s.Get(ctx, client.ObjectKey{Namespace: f.ns, Name: machine}, m)).To(Succeed())
	for i := range n {
		claim := framework.MakeClaim(f.ns, fmt.Sprintf("%s-more-%02d", machine, i)).Pool("services").Obj()
		claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: m.Name, UID: m.UID}}
		Expect(s.Create(ctx, claim)).To(Succeed())
	}
}

func (f fleet) claims(ctx context.Context, s *site) []ipamv1.IPAddressClaim {
	GinkgoHelper()
	list := &ipamv1.IPAddressClaimList{}
	Expect(s.List(ctx, list, client.InNamespace(f.ns))).To(Succeed())
	return list.Items
}

// countBound returns the number of claims that have an address.
func (f fleet) countBound(ctx context.Context, s *site) (n int) {
	for _, c := range f.claims(ctx, s) {
		if c.Status.AddressRef.Name != "" {
			n++
		}
	}
	return n
}

// records returns the records of the claims, the blocks and the leases of a fleet, by name.
func (f fleet) records(ctx context.Context, s *site) map[string]string {
	GinkgoHelper()
	blocks, leases := &v1alpha1.IPAllocationList{}, &v1alpha1.IPLeaseList{}
	Expect(s.List(ctx, blocks, client.InNamespace(f.ns))).To(Succeed())
	Expect(s.List(ctx, leases, client.InNamespace(f.ns))).To(Succeed())
	var all []client.Object
	for _, c := range f.claims(ctx, s) {
		all = append(all, &c)
	}
	for i := range blocks.Items {
		all = append(all, &blocks.Items[i])
	}
	for i := range leases.Items {
		all = append(all, &leases.Items[i])
	}
	out := map[string]string{}
	for _, o := range all {
		if record := o.GetAnnotations()[v1alpha1.AddressAnnotation]; record != "" {
			out[o.GetName()] = record
		}
	}
	return out
}

// expectAddressesOnce expects no two IPAddresses of a fleet to have the same address, and returns the addresses by
// claim.
func (f fleet) expectAddressesOnce(ctx context.Context, g Gomega, s *site) map[string]string {
	GinkgoHelper()
	list := &ipamv1.IPAddressList{}
	g.Expect(s.List(ctx, list, client.InNamespace(f.ns))).To(Succeed())
	nameByAddress := map[string]string{}
	for i := range list.Items {
		a := &list.Items[i]
		g.Expect(nameByAddress).NotTo(HaveKey(a.Spec.Address), a.Name)
		nameByAddress[a.Spec.Address] = a.Name
	}
	return nameByAddress
}

// expectMoved expects all of a fleet to have the same addresses at the other site, and no object to be left behind.
func (f fleet) expectMoved(ctx context.Context, from, to *site, had map[string]string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		records := f.records(ctx, to)
		for name, record := range had {
			g.Expect(records).To(HaveKeyWithValue(name, record))
		}
		claims := 0
		nameByAddress := f.expectAddressesOnce(ctx, g, to)
		for _, c := range f.claims(ctx, to) {
			if record, _, _ := strings.Cut(records[c.Name], "/"); record != "" {
				claims++
				g.Expect(nameByAddress).To(HaveKeyWithValue(record, c.Name))
			}
		}
		g.Expect(nameByAddress).To(HaveLen(claims))
	}).WithTimeout(framework.LongTimeout).Should(Succeed())
	Expect(f.records(ctx, from)).To(BeEmpty())
}
