package metallb

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestSeemsCounted checks that the count that MetalLB has reported for an IPAddressPool acknowledges the next change
// only if the numbers differ.
func TestSeemsCounted(t *testing.T) {
	const a, b, c = "10.0.0.1-10.0.0.1", "10.0.0.2-10.0.0.2", "10.0.0.3-10.0.0.3"
	for name, tc := range map[string]struct {
		addresses, to []string
		counts        int64
		takes, seem   bool
	}{
		"one of two goes, both are counted":          {[]string{a, b}, []string{b}, 2, true, false},
		"one of two goes, the other was not counted": {[]string{a, b}, []string{b}, 1, true, true},
		"another instead":                            {[]string{a}, []string{b}, 1, true, true},
		"one more":                                   {[]string{a}, []string{a, b}, 1, false, false},
		"nothing was ever counted":                   {[]string{a, b}, []string{b}, 0, true, false},
		"two of three go, one was counted":           {[]string{a, b, c}, []string{c}, 1, true, true},
	} {
		p := &metallbv1beta1.IPAddressPool{Spec: metallbv1beta1.IPAddressPoolSpec{Addresses: tc.addresses}}
		p.Status.AssignedIPv4 = tc.counts
		if takes, seems := removesAddresses(p, tc.to), matchesReportedCount(p, tc.to); takes != tc.takes || seems != tc.seem {
			t.Errorf("%s: takes away %v, seems counted %v", name, takes, seems)
		}
	}
}

// TestForeignLeasePool checks that an IPAddressPool of another owner with the name of ours is left as it is. Nothing
// is written, so there is no client.
func TestForeignLeasePool(t *testing.T) {
	office := LeasePool{Namespace: "office"}
	p := &metallbv1beta1.IPAddressPool{Spec: metallbv1beta1.IPAddressPoolSpec{Addresses: []string{"10.0.0.1-10.0.0.9"}}}
	p.Namespace, p.Name = Namespace, office.Name()
	if changed, _, err := ApplyLeasePool(t.Context(), nil, nil, office, nil, p); changed || err != nil {
		t.Errorf("without leases: %v %v", changed, err)
	}
	changed, _, err := ApplyLeasePool(t.Context(), nil, nil, office, []netip.Addr{netip.MustParseAddr("10.1.0.1")}, p)
	if changed || err == nil || !strings.Contains(err.Error(), "give it another name") {
		t.Errorf("with a lease: %v %v", changed, err)
	}
	// W29: under another name it does not conflict, and no pool is observed under ours.
	p.Name = "another"
	c := tenant(t, true, p)
	if changed, _, err := ApplyLeasePool(t.Context(), c, c, office, []netip.Addr{netip.MustParseAddr("10.1.0.1")}, nil); !changed || err != nil {
		t.Errorf("with another name: %v %v", changed, err)
	}
}

// TestLeasePool checks that the leases of a namespace that select other namespaces are in an IPAddressPool of their
// own with that selector.
func TestLeasePool(t *testing.T) {
	a := []netip.Addr{netip.MustParseAddr("10.1.0.1")}
	selects := func(value string) LeasePool {
		return LeasePool{Namespace: "team", NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"is": value}}}
	}
	names := map[string]bool{}
	for _, pool := range []LeasePool{{Namespace: "team"}, selects("a"), selects("b"), {Namespace: "team", NamespaceSelector: &metav1.LabelSelector{}}} {
		names[pool.Name()] = true
		c := tenant(t, true)
		if changed, _, err := ApplyLeasePool(t.Context(), c, c, pool, a, nil); !changed || err != nil {
			t.Fatalf("%v: %v %v", pool, changed, err)
		}
		got := &metallbv1beta1.IPAddressPool{}
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: Namespace, Name: pool.Name()}, got); err != nil {
			t.Fatal(err)
		}
		if namespace, ok := NamespaceForLeasePool(got); namespace != "team" || !ok || !IsLeasePool(got) || !slices.Equal(LeaseAddresses(got), a) || HasOtherAddresses(got, map[netip.Addr]bool{a[0]: true}) || !HasOtherAddresses(got, nil) {
			t.Errorf("%s is of %s", got.Name, namespace)
		}
		if to := got.Spec.AllocateTo; len(to.Namespaces) != 1 || to.Namespaces[0] != "team" || (len(to.NamespaceSelectors) == 1) != (pool.NamespaceSelector != nil) {
			t.Errorf("%s is for %+v", got.Name, to)
		}
		if parsed := NewLeasePool(got); parsed.Name() != pool.Name() {
			t.Errorf("%s is read as %s", pool.Name(), parsed.Name())
		}
		if changed, _, err := ApplyLeasePool(t.Context(), c, c, pool, a, got); changed || err != nil {
			t.Errorf("%s is shown again: %v %v", got.Name, changed, err)
		}
	}
	if len(names) != 4 {
		t.Errorf("they have the names %v", names)
	}
}

// TestNextCountableAddresses checks that no entry of an IPAddressPool is removed while the earlier count would pass for
// the count of what is left.
func TestNextCountableAddresses(t *testing.T) {
	const a, b = "10.0.0.1-10.0.0.1", "10.0.0.2-10.0.0.2"
	refusing := &metallbv1beta1.ConfigurationState{}
	refusing.Namespace, refusing.Name = Namespace, "controller"
	meta.SetStatusCondition(&refusing.Status.Conditions, metav1.Condition{Type: "poolReconcilerValid", Status: metav1.ConditionFalse, Reason: "x", Message: "pools overlap"})
	for name, tc := range map[string]struct {
		addresses, want []string
		counts          int64
		live            []client.Object
		to              string
		wait            bool
	}{
		"one more":                        {[]string{a}, []string{a, b}, 1, nil, a + b, false},
		"one goes":                        {[]string{a, b}, []string{b}, 2, nil, b, false},
		"one goes, before one is counted": {[]string{a, b}, []string{b}, 1, nil, b, true},
		"one goes, which is refused":      {[]string{a, b}, []string{b}, 1, []client.Object{refusing}, b, false},
		"another instead":                 {[]string{a}, []string{b}, 1, nil, a + b, false},
	} {
		p := &metallbv1beta1.IPAddressPool{Spec: metallbv1beta1.IPAddressPoolSpec{Addresses: tc.addresses}}
		p.Status.AssignedIPv4 = tc.counts
		to, wait, err := nextCountableAddresses(t.Context(), tenant(t, true, tc.live...), p, tc.want)
		if err != nil || wait != tc.wait || strings.Join(to, "") != tc.to {
			t.Errorf("%s: %v, wait %v, %v", name, to, wait, err)
		}
	}
}
