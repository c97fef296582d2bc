package metallb

import (
	"testing"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
)

// What MetalLB has counted of an IPAddressPool says something of the next change only where the numbers differ.
func TestSeemsCounted(t *testing.T) {
	const a, b, c = "10.0.0.1-10.0.0.1", "10.0.0.2-10.0.0.2", "10.0.0.3-10.0.0.3"
	for name, tc := range map[string]struct {
		has, to     []string
		counts      int64
		takes, seem bool
	}{
		"one of two goes, both are counted":          {[]string{a, b}, []string{b}, 2, true, false},
		"one of two goes, the other was not counted": {[]string{a, b}, []string{b}, 1, true, true},
		"another instead":                            {[]string{a}, []string{b}, 1, true, true},
		"one more":                                   {[]string{a}, []string{a, b}, 1, false, false},
		"nothing was ever counted":                   {[]string{a, b}, []string{b}, 0, true, false},
		"two of three go, one was counted":           {[]string{a, b, c}, []string{c}, 1, true, true},
	} {
		p := &metallbv1beta1.IPAddressPool{Spec: metallbv1beta1.IPAddressPoolSpec{Addresses: tc.has}}
		p.Status.AssignedIPv4 = tc.counts
		if takes, seems := takesAway(p, tc.to), seemsCounted(p, tc.to); takes != tc.takes || seems != tc.seem {
			t.Errorf("%s: takes away %v, seems counted %v", name, takes, seems)
		}
	}
}
