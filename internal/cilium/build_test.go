package cilium

import (
	"net/netip"
	"strings"
	"time"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// pool returns one of our pools with ranges, which Cilium has applied.
func pool(name, ranges string, change ...func(*Pool)) Pool {
	p := Pool{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: "u", ResourceVersion: "1", Generation: 3, Labels: map[string]string{balancer.ManagedByLabel: balancer.ManagedByValue},
	}}
	p.Spec.Blocks = blocksFromRanges(rangesOf(ranges))
	withPoolCondition(totalCondition, metav1.ConditionUnknown, 3)(&p)
	for _, c := range change {
		c(&p)
	}
	return p
}

func withPoolCondition(kind string, status metav1.ConditionStatus, generation int64) func(*Pool) {
	return func(p *Pool) {
		p.Status.Conditions = append(p.Status.Conditions, metav1.Condition{Type: kind, Status: status, ObservedGeneration: generation, Message: "x"})
	}
}

// makeForeign makes a pool belong to another owner.
func makeForeign(p *Pool) {
	p.Labels = nil
	p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "helm", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: GroupVersion.String(), FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1("{}")}}
}

func changed(p *Pool) { p.Generation++ }

func disabled(p *Pool) { p.Spec.Disabled = true }

func withServiceSelector(label string) func(*Pool) {
	return func(p *Pool) {
		key, value, _ := strings.Cut(label, "=")
		p.Spec.ServiceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
	}
}

func rangesOf(text string) (out []netipx.IPRange) {
	for _, r := range strings.Fields(text) {
		if !strings.Contains(r, "-") {
			r += "-" + r
		}
		out = append(out, netipx.MustParseIPRange(r))
	}
	return out
}

func desired(name, ranges string) elastic.DesiredPool {
	return elastic.DesiredPool{Name: name, Ranges: rangesOf(ranges), AutoAssign: true}
}

// newTestService returns a Service that requests one IPv4 address and has the addresses in addresses.
func newTestService(name, addresses string, change ...func(*service)) service {
	s := service{Service: elastic.Service{
		Namespace: "ns", Name: name, Families: []elastic.Family{elastic.IPv4}, Created: time.Unix(0, 0), Ports: []elastic.Port{{Protocol: "TCP", Number: 80}},
	}}
	for _, a := range strings.Fields(addresses) {
		s.Addresses = append(s.Addresses, netip.MustParseAddr(a))
	}
	for _, c := range change {
		c(&s)
	}
	return s
}
