package cli

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// A pool without a free address is Ready; the explanation of a waiting claim shows that the pool is full, and which
// addresses become free.
func TestFullPool(t *testing.T) {
	ns := newNamespace(t, nil)
	startManager(t, ns)
	pool := framework.MakePool("small").Namespace(ns).Addresses("10.91.0.1-10.91.0.2").ReuseGracePeriod(600).Obj()
	stays, leaves := framework.MakeClaim(ns, "stays").Pool("small").Obj(), framework.MakeClaim(ns, "leaves").Pool("small").Obj()
	create(t, pool)
	ready(t, pool, metav1.ConditionTrue)
	for _, claim := range []*ipamv1.IPAddressClaim{stays, leaves} {
		create(t, claim)
		ready(t, claim, metav1.ConditionTrue)
	}
	eventually(t, settled(pool, 2))
	do := "  to do:  add addresses to the pool, or delete machines or claims that are not needed\n"
	expect(t, 1, "NetworkPool "+ns+"/small is full: 0 of 2 free, none waits\n  why:    0/2 IPs available (2 allocations)\n"+do, "explain", "np/small", "-n", ns)

	waits := framework.MakeClaim(ns, "waits").Pool("small").Obj()
	create(t, waits)
	ready(t, waits, metav1.ConditionFalse)
	if err := k8s.Delete(t.Context(), leaves); err != nil {
		t.Fatal(err)
	}
	eventually(t, gone(leaves))
	eventually(t, settled(pool, 1))
	rests := "  rests:  until TIME: 10.91.0.2 " + ns + "/leaves\n"
	expect(t, 1, "NetworkPool "+ns+"/small is full: 0 of 2 free, 1 waits\n  why:    0/2 IPs available (1 allocation)\n"+do+
		"  waits:  IPAddressClaim "+ns+"/waits\n"+rests, "explain", "np/small", "-n", ns)
	expect(t, 1, "IPAddressClaim "+ns+"/waits waits\n  why:    NetworkPool "+ns+"/small has no free address: all are allocated, reserved or resting\n"+
		"  to do:  add addresses to the pool, or delete machines or claims: released addresses become free after addressReuseGracePeriodSeconds (600)\n"+rests,
		"explain", "claim/waits", "-n", ns)
	out, _, code := run(t, "waiting", "-n", ns)
	if got := strings.Fields(out); code != 0 || len(got) < 14 || !slices.Equal(got[:7], []string{"NAMESPACE", "KIND", "NAME", "POOL", "AGE", "REASON", "MESSAGE"}) ||
		!slices.Equal(got[7:12], []string{ns, "IPAddressClaim", "waits", "NetworkPool", ns + "/small"}) || got[13] != "PoolExhausted" {
		t.Errorf("exit code %d\n%s", code, out)
	}
	expect(t, 0, "waits PoolExhausted", "waiting", "-n", ns, "-o", "jsonpath={.items[*].name} {.items[*].reason}")
	expect(t, 0, "Nothing waits in namespace default; -A lists all namespaces.\n", "waiting", "-n", "default")
}
