package metallb

import (
	"fmt"
	"strings"
	"testing"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
)

func ipPool(addresses ...string) *metallbv1beta1.IPAddressPool {
	return &metallbv1beta1.IPAddressPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: DefaultPool, Labels: map[string]string{balancer.ManagedByLabel: balancer.ManagedByValue}},
		Spec:       metallbv1beta1.IPAddressPoolSpec{Addresses: addresses},
	}
}

func TestNewPool(t *testing.T) {
	p := ipPool("10.0.0.9-10.0.0.11", "10.1.0.7/24", "fd00::1-fd00::2")
	p.Spec.AutoAssign, p.Spec.AvoidBuggyIPs = ptr.To(false), true
	got, err := NewPool(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprint(got.Ranges, got.AutoAssign, got.AvoidBuggyIPs, got.Restriction); text != "[10.0.0.9-10.0.0.11 10.1.0.0-10.1.0.255 fd00::1-fd00::2] false true <nil>" {
		t.Errorf("got %s", text)
	}
	p.Spec.Addresses = append(p.Spec.Addresses, "10.0.0.9-10.0.0.8", "nonsense")
	if got, err = NewPool(p, nil); err == nil || !strings.Contains(err.Error(), "10.0.0.9-10.0.0.8, nonsense") || len(got.Ranges) != 3 {
		t.Errorf("got %v and %d ranges", err, len(got.Ranges))
	}
}

func TestNewPoolRestrictions(t *testing.T) {
	label := func(k, v string) metav1.LabelSelector {
		return metav1.LabelSelector{MatchLabels: map[string]string{k: v}}
	}
	namespaces := map[string]map[string]string{"blue": {"team": "b"}, "red": {"team": "r"}}
	tests := map[string]struct {
		reason     string
		to         metallbv1beta1.ServiceAllocation
		namespaces string
		matches    string // of app=x and app=y
	}{
		"Empty":       {reason: "a restriction that says nothing takes every Service", namespaces: "[]", matches: "true, true"},
		"Priority":    {reason: "nor does a priority restrict", to: metallbv1beta1.ServiceAllocation{Priority: 3}, namespaces: "[]", matches: "true, true"},
		"Named":       {reason: "namespaces by name", to: metallbv1beta1.ServiceAllocation{Namespaces: []string{"green"}}, namespaces: "[green]"},
		"Selected":    {reason: "and by label", to: metallbv1beta1.ServiceAllocation{Namespaces: []string{"green"}, NamespaceSelectors: []metav1.LabelSelector{label("team", "b")}}, namespaces: "[green blue]"},
		"NoNamespace": {reason: "selectors that select nothing", to: metallbv1beta1.ServiceAllocation{NamespaceSelectors: []metav1.LabelSelector{label("team", "z")}}, namespaces: "[]"},
		"Selectors":   {reason: "Services by label", to: metallbv1beta1.ServiceAllocation{ServiceSelectors: []metav1.LabelSelector{label("app", "x")}}, namespaces: "[]", matches: "true, false"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := ipPool("10.0.0.1-10.0.0.1")
			p.Spec.AllocateTo = &tc.to
			got, err := NewPool(p, namespaces)
			if err != nil {
				t.Fatal(err)
			}
			matches := ""
			if s := got.Restriction.Selectors; len(s) > 0 {
				matches = fmt.Sprintf("%v, %v", s[0](map[string]string{"app": "x"}), s[0](map[string]string{"app": "y"}))
			}
			if text := fmt.Sprint(got.Restriction.Namespaces); text != tc.namespaces || matches != tc.matches || got.Restriction.Priority != tc.to.Priority {
				t.Errorf("%s: got %s, %q", tc.reason, text, matches)
			}
		})
	}
	wrong := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Nearly"}}}
	for _, to := range []metallbv1beta1.ServiceAllocation{{NamespaceSelectors: []metav1.LabelSelector{wrong}}, {ServiceSelectors: []metav1.LabelSelector{wrong}}} {
		p := ipPool()
		p.Spec.AllocateTo = &to
		if _, err := NewPool(p, namespaces); err == nil || !strings.Contains(err.Error(), "Selectors") {
			t.Errorf("got %v", err)
		}
	}
}

// TestNextAddresses checks that the removal of an entry is acknowledged before any entry is added (ADR 7).
func TestNextAddresses(t *testing.T) {
	counting := func(n int64, addresses ...string) *metallbv1beta1.IPAddressPool {
		p := ipPool(addresses...)
		p.Status.AssignedIPv4, p.Status.AvailableIPv4 = 1, n-1
		return p
	}
	a, b, c := "10.0.0.1-10.0.0.2", "10.0.0.4-10.0.0.4", "10.0.0.8-10.0.0.9"
	tests := map[string]struct {
		reason  string
		current *metallbv1beta1.IPAddressPool
		want    []string
		step    string
	}{
		"Add":      {reason: "nothing was taken away", current: counting(3, a, b), want: []string{a, b, c}, step: a + b + c},
		"Take":     {reason: "nothing is added", current: counting(3, a, b), want: []string{a}, step: a},
		"Exchange": {reason: "first the one, then the other", current: counting(3, a, b), want: []string{a, c}, step: a},
		"Waits":    {reason: "what was taken away is not counted yet", current: counting(3, a), want: []string{a, c}, step: a},
		"Counted":  {reason: "now it is", current: counting(2, a), want: []string{a, c}, step: a + c},
		"All":      {reason: "a pool cannot be empty", current: counting(1, b), want: []string{c}, step: c},
		"Silent":   {reason: "a release that does not count", current: ipPool(a), want: []string{a, c}, step: a + c},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := strings.Join(nextAddresses(tc.current, tc.want), ""); got != tc.step {
				t.Errorf("%s: got %s, want %s", tc.reason, got, tc.step)
			}
		})
	}
}

// TestNextWithAvoidBuggyIPs checks a pool with avoidBuggyIPs, for which MetalLB may count as many addresses
// after a removal, because it subtracts an address that is a network of its own twice. No entry is removed before the
// last change is counted, and a single entry is removed if the count shows that.
func TestNextWithAvoidBuggyIPs(t *testing.T) {
	a, b, bad := "10.0.0.1-10.0.0.2", "10.0.0.4-10.0.0.4", "10.0.0.255-10.0.0.255"
	pair := "10.0.0.255-10.0.1.1" // counts as -1, -1 and 2 of 2
	tests := map[string]struct {
		reason    string
		addresses []string
		counted   int64
		want      []string
		next      string
		wait      bool
	}{
		"Take":      {reason: "the count shows it", addresses: []string{a, b}, counted: 3, want: []string{a}, next: a},
		"Uncounted": {reason: "the last change may count as many", addresses: []string{a, b}, counted: 2, want: []string{a}, wait: true},
		"Useless":   {reason: "there is one more then", addresses: []string{a, bad}, counted: 1, want: []string{a}, next: a},
		"Both":      {reason: "together they count as nothing", addresses: []string{a, b, bad}, counted: 2, want: []string{a}, next: a + bad},
		"Nothing":   {reason: "alone it counts as nothing, and has an address that counts", addresses: []string{a, pair}, counted: 2, want: []string{a}, wait: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := ipPool(tc.addresses...)
			p.Spec.AvoidBuggyIPs, p.Status.AvailableIPv4 = true, tc.counted
			got, wait, err := nextCountableAddresses(t.Context(), tenant(t, true), p, tc.want)
			if err != nil || wait != tc.wait || (!wait && strings.Join(got, "") != tc.next) {
				t.Errorf("%s: got %v, waits=%t, %v", tc.reason, got, wait, err)
			}
		})
	}
}

// TestCountOfNone checks that a count of 0 is a count if MetalLB has written it.
func TestCountOfNone(t *testing.T) {
	p := ipPool("10.0.0.1-10.0.0.1", "10.0.0.255-10.0.0.255")
	p.Spec.AvoidBuggyIPs = true
	p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "controller", Subresource: "status"}}
	if !isCounted(p) {
		t.Error("one address, and one that is subtracted twice")
	}
	p.Spec.Addresses = p.Spec.Addresses[1:]
	if isCounted(p) {
		t.Error("MetalLB works with one more")
	}
}

func TestIsCounted(t *testing.T) {
	p := ipPool("10.0.0.1-10.0.0.4", "fd00::1-fd00::2")
	p.Status = metallbv1beta1.IPAddressPoolStatus{AssignedIPv4: 1, AvailableIPv4: 3, AvailableIPv6: 2}
	if !isCounted(p) {
		t.Error("it has four and two")
	}
	p.Status.AvailableIPv6 = 1
	if isCounted(p) {
		t.Error("each family counts")
	}
	p.Spec.Addresses = []string{"nonsense"}
	if isCounted(p) {
		t.Error("what cannot be read was not taken")
	}
}
