package metallb

import (
	"testing"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// FuzzAssess checks that, whatever a workload cluster reports of a Service and a pool, its shortfall is never more
// than the number of its Services and families, and that a valid address of a Service counts as used.
func FuzzAssess(f *testing.F) {
	f.Add("10.96.0.1", "10.0.0.1", "10.0.0.2", "default-pool", "key", "10.0.0.0/30", int32(80), uint8(0))
	f.Add("fd00::1", "fe80::1%eth0", "::ffff:10.0.0.1, x", "", "", "::/0", int32(-1), uint8(7))
	f.Add("None", "10.0.0.300", "", "nowhere", "\x00", "10.0.0.9-10.0.0.1", int32(0), uint8(3))
	f.Fuzz(func(t *testing.T, clusterIP, ingressIP, wants, pool, key, addresses string, port int32, bits uint8) {
		policies := []corev1.IPFamilyPolicy{corev1.IPFamilyPolicySingleStack, corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack, "x"}
		s := service(func(s *corev1.Service) {
			s.Spec.ClusterIPs = []string{clusterIP, "fd00::9", "10.96.0.9"}[:1+bits%3]
			s.Spec.IPFamilyPolicy = &policies[bits%4]
			s.Spec.Ports[0].Port = port
			s.Spec.LoadBalancerIP = wants
			s.Annotations = map[string]string{poolAnnotation[bits%2]: pool, sharedAnnotation[bits%2]: key}
			if bits&8 != 0 {
				s.Spec.LoadBalancerIP, s.Annotations[ipsAnnotation[bits%2]] = "", wants
			}
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: ingressIP}}
		})
		// In particular, MetalLB ignores an annotation that is empty.
		read := NewService(s)
		p, _ := NewPool(&metallbv1beta1.IPAddressPool{
			ObjectMeta: metav1.ObjectMeta{Name: DefaultPool}, Spec: metallbv1beta1.IPAddressPoolSpec{Addresses: []string{addresses}, AvoidBuggyIPs: bits&16 != 0},
		}, nil)
		p.ReceivesGrowth = bits&32 != 0
		waiting := NewService(service(nil))
		a := elastic.AssessServices(elastic.Inventory{Services: []elastic.Service{read, waiting}, Pools: []elastic.Pool{p}, GrowableFamilies: [2]bool{true, true}})
		if len(a.ServiceAssessments) != 2 || a.Shortfall[elastic.IPv4] > 2 || a.Shortfall[elastic.IPv6] > 1 || a.Shortfall[elastic.IPv4] < 0 || a.Shortfall[elastic.IPv6] < 0 {
			t.Errorf("%d verdicts, %v lacking", len(a.ServiceAssessments), a.Shortfall)
		}
		for _, addr := range read.Addresses {
			if _, used := a.UsedAddresses[addr]; !used && !addr.IsPrivate() {
				continue // an address that the replay would grow by
			} else if !used {
				t.Errorf("%s is not used", addr)
			}
		}
		isCounted(&metallbv1beta1.IPAddressPool{Spec: metallbv1beta1.IPAddressPoolSpec{Addresses: []string{addresses, addresses}}, Status: metallbv1beta1.IPAddressPoolStatus{AvailableIPv6: 1 << 62, AssignedIPv6: 1 << 62}})
	})
}
