package metallb

import (
	"fmt"
	"strings"
	"testing"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// TestForeignPoolsCount checks that a pool of another owner counts, however its ranges are written, so that
// addresses that Services have of it are not requested again, and that a pool that cannot be parsed is named.
func TestForeignPoolsCount(t *testing.T) { // B37 (what Services have is not requested again)
	for _, addresses := range []string{"192.0.2.10-192.0.2.20", "192.0.2.10 - 192.0.2.20", " 192.0.2.10- 192.0.2.20 ", "192.0.2.0/27", "::ffff:192.0.2.10-192.0.2.20"} {
		foreign := ipPool(addresses)
		foreign.Name, foreign.Labels = "theirs", nil
		objs := []client.Object{foreign}
		for i := range 5 {
			s := newServiceUsing(fmt.Sprintf("192.0.2.%d", 10+i))
			s.Name = fmt.Sprint("web", i)
			s.Spec.ClusterIP, s.Spec.Ports = "10.96.0.1", []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}
			objs = append(objs, s)
		}
		c := tenant(t, true, objs...)
		o, err := ObserveCluster(t.Context(), c, c, c)
		if err != nil {
			t.Fatal(err)
		}
		shown := []elastic.DesiredPool{{Name: DefaultPool, Ranges: []netipx.IPRange{netipx.MustParseIPRange("10.0.0.1-10.0.0.1")}, AutoAssign: true}}
		a := observedAdapter{o}.AssessServices(balancer.DesiredState{Pools: shown, GrowthPool: DefaultPool, GrowableFamilies: [2]bool{true, true}})
		if why := (observedAdapter{o}).UnreadablePool(); a.Shortfall != [2]int64{} || a.CountInState(elastic.ServicePlaced) != 5 || why != "" {
			t.Errorf("%q: five Services have addresses of it, and %v more are lacking; unread: %s", addresses, a.Shortfall, why)
		}
	}
	foreign := ipPool("192.0.2.10")
	foreign.Name = "theirs"
	c := tenant(t, true, foreign)
	o, err := ObserveCluster(t.Context(), c, c, c)
	if err != nil {
		t.Fatal(err)
	}
	if why := (observedAdapter{o}).UnreadablePool(); !strings.Contains(why, "IPAddressPool theirs") {
		t.Errorf("it says %q", why)
	}
}
