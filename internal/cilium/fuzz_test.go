package cilium

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// FuzzAssess checks that, whatever a workload cluster reports of a Service and a pool, its shortfall is never more
// than the number of its Services and families, and that what a Service has counts as used.
func FuzzAssess(f *testing.F) {
	f.Add("10.96.0.1", "10.0.0.1", "10.0.0.2", "key", "a,b", "10.0.0.0/30", "10.0.0.1", "10.0.0.9", "x=y", uint8(0))
	f.Add("fd00::1", "fe80::1%eth0", "::ffff:10.0.0.1, x", "", "*", "::/0", "fe80::1%eth0", "::ffff:10.0.0.9", "\x00", uint8(7))
	f.Add("None", "0.0.0.1", "", "", "", "", "10.0.0.9", "fd00::", "", uint8(3))
	f.Fuzz(func(t *testing.T, clusterIP, ingressIP, wants, key, across, cidr, start, stop, label string, bits uint8) {
		read := func(name string) service {
			s := &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{label: label}, Annotations: map[string]string{
					ipsAnnotation[bits%2]: wants, sharedAnnotation[bits%2]: key, crossNamespaceAnnotation[bits%2]: across,
				}},
				Spec: corev1.ServiceSpec{ClusterIPs: []string{clusterIP, "fd00::9"}[:1+bits%2], LoadBalancerIP: wants},
			}
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: ingressIP}}
			return newService(s)
		}
		p := pool("theirs", "", makeForeign, withServiceSelector(label))
		p.Spec.Blocks, p.Spec.AllowFirstLastIPs = []Block{{CIDR: cidr}, {Start: start, Stop: stop}, {Start: start}}, []string{"", "Yes", "No"}[bits%3]
		o := &observedCluster{services: []service{read("a"), read("b")}, pools: []Pool{p}}
		a := o.AssessServices(balancer.DesiredState{GrowableFamilies: [2]bool{true, true}, Pools: []elastic.DesiredPool{desired(DefaultPool, "10.0.0.1-10.0.0.2")}})
		if len(a.ServiceAssessments) != 2 || a.Shortfall[elastic.IPv4] > 2 || a.Shortfall[elastic.IPv6] > 2 {
			t.Errorf("%d verdicts, %v lacking", len(a.ServiceAssessments), a.Shortfall)
		}
		for _, addr := range o.services[0].Addresses {
			if _, used := a.UsedAddresses[addr]; !used {
				t.Errorf("%s is not used", addr)
			}
		}
		p.overlapsRange(rangesOf("10.0.0.1")[0])
	})
}
