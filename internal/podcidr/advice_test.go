package podcidr

import (
	"strings"
	"testing"
)

// TestRefusedRangeErrorsNameStepsThatHelp checks W29: a ClusterCIDR that is refused is accepted once it is changed as
// the error message suggests.
func TestRefusedRangeErrorsNameStepsThatHelp(t *testing.T) {
	for name, c := range map[string]struct {
		change    func(*RangeSpec)
		wantError string
		do        []func(*RangeSpec)
	}{
		"bits are set": {withCIDRs(4, "10.0.0.1/24"), "write 10.0.0.0/24", []func(*RangeSpec){withCIDRs(4, "10.0.0.0/24")}},
		"small":        {withCIDRs(9, "10.0.0.0/24"), "use fewer host bits, or a larger CIDR", []func(*RangeSpec){withCIDRs(8, "10.0.0.0/24"), withCIDRs(9, "10.0.0.0/23")}},
	} {
		var s RangeSpec
		c.change(&s)
		if _, errs := CompileRange(Ref{Name: "r"}, s); len(errs) == 0 || !strings.Contains(errs.ToAggregate().Error(), c.wantError) {
			t.Errorf("%s: %v", name, errs)
		}
		for _, do := range c.do {
			var s RangeSpec
			do(&s)
			if _, errs := CompileRange(Ref{Name: "r"}, s); len(errs) > 0 {
				t.Errorf("%s: %v", name, errs)
			}
		}
	}
}
