package cli

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// Leases are explained and found as claims are, and before a downgrade to a version without leases the plugin lists
// them.
func TestInspectLeases(t *testing.T) {
	const ns = "tenant-a"
	createNamespace(t, ns, nil)
	startManager(t, ns)
	pool := framework.MakePool("p").Namespace(ns).CIDR("10.95.0.0/29").Obj()
	pool.Spec.Leases = &v1alpha1.Leases{QuotaPerNamespace: ptr.To[int32](2)}
	shop, leaving, late := framework.MakeLease(ns, "shop").Obj(), framework.MakeLease(ns, "leaving").Obj(), framework.MakeLease(ns, "late").Obj()
	leaving.Finalizers = []string{v1alpha1.LeaseShownFinalizer}
	create(t, pool, shop)
	ready(t, shop, metav1.ConditionTrue)
	create(t, leaving)
	ready(t, leaving, metav1.ConditionTrue)
	create(t, late)
	ready(t, late, metav1.ConditionFalse)
	if err := k8s.Delete(t.Context(), leaving); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		code int
		want string
	}{
		"iplease/shop": {0, "IPLease " + ns + "/shop has 10.95.0.1 of NetworkPool p\n"},
		"ipl/late": {1, "IPLease " + ns + "/late waits\n  why:    the leases of namespace " + ns + " have as many addresses of NetworkPool " + ns +
			"/p as its spec.leases.quotaPerNamespace allows: 2\n  to do:  delete leases, or raise the quota\n"},
		"lease/leaving": {1, "IPLease " + ns + "/leaving is being deleted\n  why:    its address is shown to the world still: the finalizer butler.butlerlabs.dev/lease-shown holds it\n" +
			"  to do:  delete what shows the address; the controller that set the finalizer takes it off then: the component service-leases or host-load-balancers, or one of yours (docs/install.md#removing-a-component)\n"},
	} {
		t.Run("explain "+name, func(t *testing.T) { expect(t, c.code, c.want, "explain", name, "-n", ns) })
	}
	t.Run("leases", func(t *testing.T) {
		table := "NAMESPACE  NAME     ADDRESS    POOL  PORTS                   READY\n"
		shop.Status.Ports = []v1alpha1.LeasedPort{{Protocol: "TCP", Port: 80, Service: "web", UID: "a"}, {Protocol: "UDP", Port: 53, Service: "dns", UID: "b"}}
		if err := k8s.Status().Update(t.Context(), shop); err != nil {
			t.Fatal(err)
		}
		expect(t, 0, table+
			"tenant-a   late                p                             False (QuotaExceeded)\n"+
			"tenant-a   leaving  10.95.0.2  p                             Draining: it is held by butler.butlerlabs.dev/iplease, butler.butlerlabs.dev/lease-shown\n"+
			"tenant-a   shop     10.95.0.1  p     TCP/80 web, UDP/53 dns  True\n", "leases", "-n", ns)
		expect(t, 0, "web dns", "leases", "-n", ns, "-o", "jsonpath={.items[2].ports[*].service}")
		expect(t, 0, "There are no leases in namespace default; -A shows those of all namespaces.\n", "leases", "-n", "default")
	})
	t.Run("not announced", func(t *testing.T) {
		for o, c := range map[*v1alpha1.IPLease]metav1.Condition{
			shop:    {Type: v1alpha1.AnnouncedCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.MetalLBRefusesReason, Message: "pools overlap"},
			leaving: {Type: v1alpha1.DrainingCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ConfirmingReason, Message: "Service web has it"},
		} {
			if err := k8s.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
				t.Fatal(err)
			}
			meta.SetStatusCondition(&o.Status.Conditions, c)
			o.Status.Ports = nil
			if err := k8s.Status().Update(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		expect(t, 0, "NAMESPACE  NAME     ADDRESS    POOL  PORTS  READY\n"+
			"tenant-a   late                p            False (QuotaExceeded)\n"+
			"tenant-a   leaving  10.95.0.2  p            Draining: Service web has it\n"+
			"tenant-a   shop     10.95.0.1  p            Not announced: pools overlap\n", "leases", "-n", ns)
		expect(t, 0, "IPLease "+ns+"/shop has 10.95.0.1 of NetworkPool p\n  why:    it is not announced (MetalLBRefuses): pools overlap\n"+
			"  to do:  see docs/leases.md#with-metallb\n", "explain", "iplease/shop", "-n", ns)
		expect(t, 1, "IPLease "+ns+"/leaving is being deleted\n  why:    its address is shown to the world still: Service web has it\n"+
			"  to do:  see docs/leases.md#with-metallb\n", "explain", "iplease/leaving", "-n", ns)
	})
	t.Run("who", func(t *testing.T) {
		expect(t, 0, "10.95.0.1 is used in NetworkPool "+ns+"/p\n  IPLease  "+ns+"/shop\n  since    TIME\n", "who", "10.95.0.1", "-n", ns)
	})
	t.Run("audit", func(t *testing.T) {
		out, _, code := run(t, "audit")
		if code != 0 || !strings.Contains(out, ", 3 IPLeases: ") {
			t.Errorf("%d %s", code, out)
		}
		out, _, code = run(t, "audit", "--rollback")
		want := "  rollback  IPLease " + ns + "/shop has 10.95.0.1 of NetworkPool " + ns + "/p, which an older manager would grant to another claimant: delete the lease first\n"
		if code != 1 || !strings.Contains(out, want) || strings.Contains(out, "late") {
			t.Errorf("%d %s", code, out)
		}
	})
	t.Run("completion", func(t *testing.T) {
		out, _, _ := run(t, "__complete", "explain", "-n", ns, "")
		if !strings.Contains(out, "iplease/shop\n") {
			t.Error(out)
		}
	})
}
