package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// leasedTo waits until a lease has its address, and returns the address.
func leasedTo(ctx context.Context, l *v1alpha1.IPLease) string {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, keyOf(l), l)).To(Succeed())
		g.Expect(meta.IsStatusConditionTrue(l.Status.Conditions, v1alpha1.ReadyCondition)).To(BeTrue(), "%+v", l.Status.Conditions)
	}).Should(Succeed())
	return l.Status.Address
}

// refusedLease waits until a lease is refused for a reason, and returns the message.
func refusedLease(ctx context.Context, l *v1alpha1.IPLease, reason string) string {
	GinkgoHelper()
	var ready *metav1.Condition
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, keyOf(l), l)).To(Succeed())
		ready = meta.FindStatusCondition(l.Status.Conditions, v1alpha1.ReadyCondition)
		g.Expect(ready).To(HaveValue(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", reason))))
	}).Should(Succeed())
	return ready.Message
}

// leasePool returns a pool p for leases.
func leasePool(ns, cidr string) *v1alpha1.NetworkPool {
	p := framework.MakePool("p").Namespace(ns).CIDR(cidr).Obj()
	p.Spec.Leases = &v1alpha1.Leases{}
	return p
}

var _ = Describe("IPLeases", Ordered, func() {
	var m *framework.Manager
	BeforeAll(func(ctx SpecContext) { m = startManager(ctx) })

	It("get the lowest free address, show it in their status, and release it", func(ctx SpecContext) { // A1, H2, H18
		ns := newNamespace(ctx, nil)
		pool := leasePool(ns, "10.160.0.224/28")
		pool.Spec.Network = "edge"
		first, second, third := framework.MakeLease(ns, "a").Obj(), framework.MakeLease(ns, "b").Obj(), framework.MakeLease(ns, "c").Obj()
		create(ctx, pool, first)
		Expect(leasedTo(ctx, first)).To(Equal("10.160.0.225"))
		Expect(first.Finalizers).To(ConsistOf(v1alpha1.IPLeaseFinalizer))
		Expect(first.Annotations).To(HaveKeyWithValue(v1alpha1.AddressAnnotation, "10.160.0.225"))
		Expect(first.Status.Network).To(Equal("edge"))
		Expect(first.Status.ObservedGeneration).To(Equal(first.Generation))
		Expect(first.Status.Conditions).To(ConsistOf(And(HaveField("Type", "Ready"), HaveField("Reason", "Allocated"), HaveField("Message", "allocated 10.160.0.225"))))
		Eventually(func() []string { return eventsAbout(ctx, ns, first) }).Should(ConsistOf("LeaseAllocated"))
		create(ctx, second)
		Expect(leasedTo(ctx, second)).To(Equal("10.160.0.226"))
		remove(ctx, first)
		create(ctx, third)
		Expect(leasedTo(ctx, third)).To(Equal("10.160.0.225"))
		expectNumbers(ctx, pool, map[string]int64{"totalIPs": 14, "allocatedIPs": 2, "availableIPs": 12, "allocationCount": 2})
		// The status follows the network of the pool.
		modify(ctx, pool, func(p *v1alpha1.NetworkPool) { p.Spec.Network = "core" })
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, keyOf(third), third)).To(Succeed())
			g.Expect(third.Status).To(And(HaveField("Network", "core"), HaveField("Address", "10.160.0.225")))
		}).Should(Succeed())
	})

	It("report that the pool is full, and do not delay other leases", func(ctx SpecContext) { // A14, H3
		ns := newNamespace(ctx, nil)
		one, two := framework.MakeLease(ns, "one").Obj(), framework.MakeLease(ns, "two").Obj()
		create(ctx, leasePool(ns, "10.160.1.0/30"), leasePoolOf(ns, "other", "10.160.2.0/30"), one, two)
		leasedTo(ctx, one)
		leasedTo(ctx, two)
		late, elsewhere := framework.MakeLease(ns, "late").Obj(), framework.MakeLease(ns, "elsewhere").Pool("other").Obj()
		create(ctx, late)
		Expect(refusedLease(ctx, late, "PoolExhausted")).To(ContainSubstring("has no free address"))
		expectRestMeanwhile(ctx, 1, m)
		create(ctx, elsewhere)
		leasedTo(ctx, elsewhere)
		remove(ctx, one)
		leasedTo(ctx, late)
	})

	It("have the address that they request, or none", func(ctx SpecContext) { // H5, H10
		ns := newNamespace(ctx, nil)
		holder := framework.MakeLease(ns, "holder").RequestAddress("10.160.3.9").Obj()
		create(ctx, leasePool(ns, "10.160.3.0/28"), holder)
		Expect(leasedTo(ctx, holder)).To(Equal("10.160.3.9"))
		for name, c := range map[string]struct{ address, wantMessage string }{
			"outside":   {"10.160.4.9", "NetworkPool " + ns + "/p does not hand out spec.address 10.160.4.9: it is outside the pool"},
			"network":   {"10.160.3.0", "it is the first address of the network 10.160.3.0/28, which hosts do not use"},
			"broadcast": {"10.160.3.15", "it is the last address of the network 10.160.3.0/28, which hosts do not use"},
			"held":      {"10.160.3.9", "the requested address 10.160.3.9 is held by IPLease " + ns + "/holder"},
		} {
			l := framework.MakeLease(ns, name).RequestAddress(c.address).Obj()
			create(ctx, l)
			Expect(refusedLease(ctx, l, "AllocationFailed")).To(ContainSubstring(c.wantMessage), name)
		}
		held := framework.MakeLease(ns, "held").Obj()
		remove(ctx, holder)
		Expect(leasedTo(ctx, held)).To(Equal("10.160.3.9"))
	})

	It("keep within the quota of their namespace, exactly", func(ctx SpecContext) { // A7
		mine, otherNS := newNamespace(ctx, nil), newNamespace(ctx, nil)
		pool := framework.MakeGlobalPool(mine).CIDR("10.160.6.0/24").Obj()
		pool.Spec.Leases = &v1alpha1.Leases{QuotaPerNamespace: ptr.To[int32](3)}
		create(ctx, pool)
		g, gctx := errgroup.WithContext(ctx)
		for i := range 12 {
			ns := []string{mine, otherNS}[i%2]
			g.Go(func() error {
				return k8s.Create(gctx, framework.MakeLease(ns, fmt.Sprintf("l%d", i)).GlobalPool(pool.Name).Obj())
			})
		}
		Expect(g.Wait()).To(Succeed())
		served := func(ns string) (n int, refused *v1alpha1.IPLease) {
			var all v1alpha1.IPLeaseList
			Expect(k8s.List(ctx, &all, client.InNamespace(ns))).To(Succeed())
			for i := range all.Items {
				switch l := &all.Items[i]; {
				case l.Status.Address != "":
					n++
				case len(l.Status.Conditions) > 0:
					refused = l
				}
			}
			return n, refused
		}
		var waits *v1alpha1.IPLease
		for _, ns := range []string{mine, otherNS} {
			Eventually(func(g Gomega) {
				n, refused := served(ns)
				g.Expect(n).To(Equal(3))
				g.Expect(refused).NotTo(BeNil())
				waits = refused
			}).Should(Succeed())
		}
		Expect(refusedLease(ctx, waits, "QuotaExceeded")).To(ContainSubstring("the leases of namespace " + otherNS + " have as many addresses of "))
		expectRestMeanwhile(ctx, 2, m)
		modify(ctx, pool, func(p *v1alpha1.GlobalNetworkPool) { p.Spec.Leases.QuotaPerNamespace = ptr.To[int32](6) })
		leasedTo(ctx, waits)
	})

	It("are not granted by a pool without spec.leases", func(ctx SpecContext) {
		ns := newNamespace(ctx, nil)
		l := framework.MakeLease(ns, "l").Obj()
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.160.7.0/28").Obj()
		create(ctx, pool, l)
		Expect(refusedLease(ctx, l, "PoolNotReady")).To(ContainSubstring("gives no leases: its spec.leases is not set"))
		expectRestMeanwhile(ctx, 1, m)
		modify(ctx, pool, func(p *v1alpha1.NetworkPool) { p.Spec.Leases = &v1alpha1.Leases{} })
		leasedTo(ctx, l)
	})

	It("are kept while their address is shown", func(ctx SpecContext) {
		ns := newNamespace(ctx, nil)
		l := framework.MakeLease(ns, "l").Obj()
		pool := leasePool(ns, "10.160.8.0/30")
		create(ctx, pool, l)
		leasedTo(ctx, l)
		modify(ctx, l, func(l *v1alpha1.IPLease) { controllerutil.AddFinalizer(l, v1alpha1.LeaseShownFinalizer) })
		Expect(k8s.Delete(ctx, l)).To(Succeed())
		others := []*v1alpha1.IPLease{framework.MakeLease(ns, "x").Obj(), framework.MakeLease(ns, "y").Obj()}
		create(ctx, others[0], others[1])
		leasedTo(ctx, others[0])
		refusedLease(ctx, others[1], "PoolExhausted")
		expectRestMeanwhile(ctx, 1, m)
		Expect(k8s.Get(ctx, keyOf(l), l)).To(Succeed())
		Expect(l.Finalizers).To(ContainElement(v1alpha1.IPLeaseFinalizer), "it was released")
		modify(ctx, l, func(l *v1alpha1.IPLease) { controllerutil.RemoveFinalizer(l, v1alpha1.LeaseShownFinalizer) })
		leasedTo(ctx, others[1])
		expectGone(ctx, l)
	})

	It("are counted at an HTTP endpoint of the manager, without requests to the API server", func(ctx SpecContext) { // A11, A13
		ns := newNamespace(ctx, nil)
		pool := framework.MakeGlobalPool(ns).CIDR("10.160.9.0/28").Obj()
		pool.Spec.Leases = &v1alpha1.Leases{QuotaPerNamespace: ptr.To[int32](2)}
		create(ctx, pool)
		for i := range 3 {
			create(ctx, framework.MakeLease(ns, fmt.Sprintf("l%d", i)).GlobalPool(pool.Name).Obj())
		}
		ask := func(g Gomega, path string) (out struct {
			Pools []struct {
				Name                             string
				Total, InUse, Available, Waiting int
				Namespace                        struct{ Used, Quota, Left int }
			}
			Leases []struct{ Name, Address, Reason string }
		}) {
			code, text, err := m.GetPath(ctx, path)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(code).To(Equal(http.StatusOK), text)
			g.Expect(json.Unmarshal([]byte(text), &out)).To(Succeed())
			return out
		}
		Eventually(func(g Gomega) {
			u := ask(g, "/leases/usage?pool="+pool.Name+"&namespace="+ns)
			g.Expect(u.Pools).To(HaveLen(1))
			p := u.Pools[0]
			g.Expect([]int{p.Total, p.InUse, p.Available, p.Waiting, p.Namespace.Used, p.Namespace.Quota, p.Namespace.Left}).To(Equal([]int{14, 2, 12, 1, 2, 2, 0}))
			g.Expect(ask(g, "/leases/state?namespace="+ns).Leases).To(ConsistOf(HaveField("Address", "10.160.9.1"), HaveField("Address", "10.160.9.2")))
			g.Expect(ask(g, "/leases/waiting?namespace="+ns).Leases).To(ConsistOf(HaveField("Reason", "QuotaExceeded")))
			ask(g, "/leases/health")
		}).Should(Succeed())
		waits := ask(Default, "/leases/waiting?namespace="+ns).Leases[0].Name
		for i := range 3 { // a lease with an address is deleted: the waiting one gets the address, and the counts show that
			if name := fmt.Sprintf("l%d", i); name != waits {
				remove(ctx, framework.MakeLease(ns, name).Obj())
				break
			}
		}
		leasedTo(ctx, framework.MakeLease(ns, waits).Obj())
		Eventually(func(g Gomega) {
			p := ask(g, "/leases/usage?pool="+pool.Name+"&namespace="+ns).Pools[0]
			g.Expect([]int{p.Total, p.InUse, p.Available, p.Waiting, p.Namespace.Used, p.Namespace.Left}).To(Equal([]int{14, 2, 12, 0, 2, 0}))
			g.Expect(ask(g, "/leases/waiting?namespace="+ns).Leases).To(BeEmpty())
		}).Should(Succeed())
		before, err := m.ReadActivity(ctx)
		Expect(err).NotTo(HaveOccurred())
		for range 50 {
			ask(Default, "/leases/usage")
		}
		Eventually(func(g Gomega) { // other reconciles may run meanwhile
			now, err := m.ReadActivity(ctx)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(now.Since(before).Requests).To(BeNumerically("<", 50))
		}).Should(Succeed())
	})
})

func leasePoolOf(ns, name, cidr string) *v1alpha1.NetworkPool {
	p := leasePool(ns, cidr)
	p.Name = name
	return p
}

var _ = Describe("Leases over a restart", func() {
	It("keep their address, and a lease that is created again under its name gets its address again", func(ctx SpecContext) { // A16, A17, H22, H23
		ns := newNamespace(ctx, nil)
		m := namespaceManager(ctx, ns)
		pool := leasePool(ns, "10.160.5.0/28")
		pool.Spec.AddressReuseGracePeriodSeconds = ptr.To[int64](3600)
		a, b := framework.MakeLease(ns, "a").Obj(), framework.MakeLease(ns, "b").Obj()
		create(ctx, pool, a, b)
		had := map[string]string{"a": leasedTo(ctx, a), "b": leasedTo(ctx, b)}
		Expect(m.Kill()).To(Succeed())
		m = namespaceManager(ctx, ns)
		create(ctx, framework.MakeLease(ns, "c").Obj())
		leasedTo(ctx, framework.MakeLease(ns, "c").Obj())
		Expect(leasedTo(ctx, a)).To(Equal(had["a"]))
		modify(ctx, a, func(l *v1alpha1.IPLease) {
			l.Labels = map[string]string{"changed": "yes"}
			l.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"is": "other"}}
			l.Spec.Ports = []v1alpha1.LeasePort{{Protocol: corev1.ProtocolTCP, Port: 443, Service: "web"}}
		})
		Eventually(func(g Gomega) { // the manager has observed that
			lease := &v1alpha1.IPLease{}
			g.Expect(k8s.Get(ctx, keyOf(a), lease)).To(Succeed())
			g.Expect(lease.Status.ObservedGeneration).To(Equal(lease.Generation))
		}).Should(Succeed())
		Expect(leasedTo(ctx, a)).To(Equal(had["a"]))
		remove(ctx, b)
		again := framework.MakeLease(ns, "b").Obj()
		create(ctx, again)
		Expect(leasedTo(ctx, again)).To(Equal(had["b"]))
		Expect(m.Stop()).To(Succeed())
	})
})

// The attempts of a tenant that may write all leases of a namespace, with the policy.
var _ = Describe("Tenants with leases", func() {
	It("get no address that another lease has, and no more addresses than their quota", func(ctx SpecContext) {
		for _, o := range applyPolicy(ctx, k8s, "records.yaml") {
			DeferCleanup(func(ctx SpecContext) { Expect(k8s.Delete(ctx, o)).To(Succeed()) })
		}
		ns := newNamespace(ctx, nil)
		pool := leasePool(ns, "10.161.0.0/28")
		pool.Spec.Leases.QuotaPerNamespace = ptr.To[int32](2)
		tenant, m := tenantClient(ctx, ns), namespaceManager(ctx, ns)
		create(ctx, pool)
		forged := func(name string, change func(*v1alpha1.IPLease)) error {
			l := framework.MakeLease(ns, name).Obj()
			change(l)
			return tenant.Create(ctx, l)
		}
		record := func(l *v1alpha1.IPLease) { l.Annotations = map[string]string{v1alpha1.AddressAnnotation: "10.161.0.9"} }
		// The policy takes a moment to become effective.
		Eventually(func() error {
			return tenant.Create(ctx, recorded(framework.MakeLease(ns, "liar").Obj()), client.DryRunAll)
		}).
			Should(Satisfy(apierrors.IsForbidden))
		Expect(forged("record", record)).To(Satisfy(apierrors.IsForbidden))
		mine := framework.MakeLease(ns, "mine").Obj()
		Expect(tenant.Create(ctx, mine)).To(Succeed())
		Expect(leasedTo(ctx, mine)).To(Equal("10.161.0.1"))

		for name, try := range map[string]func() error{
			"another's address as its record": func() error { record(mine); return tenant.Update(ctx, mine) },
			"no record":                       func() error { mine.Annotations = nil; return tenant.Update(ctx, mine) },
			"no finalizer":                    func() error { mine.Finalizers = nil; return tenant.Update(ctx, mine) },
			"a move":                          func() error { mine.Annotations[v1alpha1.DeleteForMoveAnnotation] = ""; return tenant.Update(ctx, mine) },
			"another status":                  func() error { mine.Status.Address = "10.161.0.9"; return tenant.Status().Update(ctx, mine) },
		} {
			Expect(k8s.Get(ctx, keyOf(mine), mine)).To(Succeed())
			Expect(try()).To(Satisfy(apierrors.IsForbidden), name)
		}
		for name, try := range map[string]func(){
			"another address": func() { mine.Spec.Address = "10.161.0.9" },
			"another pool":    func() { mine.Spec.PoolRef.Name = "other" },
		} {
			Expect(k8s.Get(ctx, keyOf(mine), mine)).To(Succeed())
			try()
			Expect(tenant.Update(ctx, mine)).To(Satisfy(apierrors.IsInvalid), name)
		}
		// A flood gets no more than the quota, and does not delay others.
		for i := range 20 {
			Expect(tenant.Create(ctx, framework.MakeLease(ns, fmt.Sprintf("flood%d", i)).Obj())).To(Succeed())
		}
		history := &invariants.History{}
		Eventually(func(g Gomega) {
			o := objects(ctx, ns)
			g.Expect(history.CheckAtRest(o)).To(BeEmpty())
			had := 0
			for i := range o.Leases {
				g.Expect(o.Leases[i].Status.Conditions).NotTo(BeEmpty())
				if o.Leases[i].Status.Address != "" {
					had++
				}
			}
			g.Expect(had).To(Equal(2))
		}).Should(Succeed())
		create(ctx, framework.MakeClaim(ns, "machine").Pool("p").Obj())
		addressOf(ctx, ns, "machine")
		// A platform limits the number of these objects like that of any kind.
		create(ctx, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "leases"}, Spec: corev1.ResourceQuotaSpec{
			Hard: corev1.ResourceList{"count/ipleases.butler.butlerlabs.dev": resource.MustParse("100")},
		}})
		Expect(m.Stop()).To(Succeed())
	})

	It("take nothing from others without the policy: a record and a finalizer that are removed come back", func(ctx SpecContext) {
		ns := newNamespace(ctx, nil)
		m := namespaceManager(ctx, ns)
		mine := framework.MakeLease(ns, "mine").Obj()
		create(ctx, leasePool(ns, "10.161.1.0/28"), mine)
		had := leasedTo(ctx, mine)
		comesToRest(ctx, m)            // its grant is not in flight any more
		Expect(m.Stop()).To(Succeed()) // the next manager knows nothing but the status
		modify(ctx, mine, func(l *v1alpha1.IPLease) { l.Finalizers, l.Annotations = nil, nil })
		m = namespaceManager(ctx, ns)
		other := framework.MakeLease(ns, "other").Obj()
		create(ctx, other)
		Expect(leasedTo(ctx, other)).NotTo(Equal(had))
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, keyOf(mine), mine)).To(Succeed())
			g.Expect(mine.Finalizers).To(ConsistOf(v1alpha1.IPLeaseFinalizer))
			g.Expect(mine.Annotations).To(HaveKeyWithValue(v1alpha1.AddressAnnotation, had))
			g.Expect(mine.Status.Address).To(Equal(had))
		}).Should(Succeed())
		Expect(m.Stop()).To(Succeed())
	})
})

// recorded returns the lease with a forged record of an address.
func recorded(l *v1alpha1.IPLease) *v1alpha1.IPLease {
	l.Annotations = map[string]string{v1alpha1.AddressAnnotation: "10.161.0.9"}
	return l
}
