package cilium

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// A workload cluster may say anything of a Service and a pool. It never lacks more than it has Services and families, and
// what a Service has counts as used.
func FuzzAssess(f *testing.F) {
	f.Add("10.96.0.1", "10.0.0.1", "10.0.0.2", "key", "a,b", "10.0.0.0/30", "10.0.0.1", "10.0.0.9", "x=y", uint8(0))
	f.Add("fd00::1", "fe80::1%eth0", "::ffff:10.0.0.1, x", "", "*", "::/0", "fe80::1%eth0", "::ffff:10.0.0.9", "\x00", uint8(7))
	f.Add("None", "0.0.0.1", "", "", "", "", "10.0.0.9", "fd00::", "", uint8(3))
	f.Fuzz(func(t *testing.T, clusterIP, has, wants, key, across, cidr, start, stop, label string, bits uint8) {
		read := func(name string) service {
			s := &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{label: label}, Annotations: map[string]string{
					ipsAnnotation[bits%2]: wants, sharedAnnotation[bits%2]: key, acrossAnnotation[bits%2]: across,
				}},
				Spec: corev1.ServiceSpec{ClusterIPs: []string{clusterIP, "fd00::9"}[:1+bits%2], LoadBalancerIP: wants},
			}
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: has}}
			return serviceOf(s)
		}
		p := pool("theirs", "", foreign, only(label))
		p.Spec.Blocks, p.Spec.AllowFirstLastIPs = []Block{{CIDR: cidr}, {Start: start, Stop: stop}, {Start: start}}, []string{"", "Yes", "No"}[bits%3]
		o := &observed{services: []service{read("a"), read("b")}, pools: []Pool{p}}
		a := o.Assess(balancer.Outlook{Families: [2]bool{true, true}, Pools: []elastic.Desired{desired(DefaultPool, "10.0.0.1-10.0.0.2")}})
		if len(a.Verdicts) != 2 || a.Lacking[elastic.IPv4] > 2 || a.Lacking[elastic.IPv6] > 2 {
			t.Errorf("%d verdicts, %v lacking", len(a.Verdicts), a.Lacking)
		}
		for _, addr := range o.services[0].Has {
			if _, used := a.Used[addr]; !used {
				t.Errorf("%s is not used", addr)
			}
		}
		p.overlaps(rangesOf("10.0.0.1")[0])
	})
}
