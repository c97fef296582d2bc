package podcidr

import (
	"strings"
	"testing"
)

// W29: a ClusterCIDR that is refused is taken when it is changed as is said.
func TestWhatARefusedRangeIsToldHelps(t *testing.T) {
	for name, c := range map[string]struct {
		is   func(*Spec)
		says string
		do   []func(*Spec)
	}{
		"bits are set": {cut(4, "10.0.0.1/24"), "write 10.0.0.0/24", []func(*Spec){cut(4, "10.0.0.0/24")}},
		"small":        {cut(9, "10.0.0.0/24"), "use fewer host bits, or a larger CIDR", []func(*Spec){cut(8, "10.0.0.0/24"), cut(9, "10.0.0.0/23")}},
	} {
		var s Spec
		c.is(&s)
		if _, errs := Compile(Ref{Name: "r"}, s); len(errs) == 0 || !strings.Contains(errs.ToAggregate().Error(), c.says) {
			t.Errorf("%s: %v", name, errs)
		}
		for _, do := range c.do {
			var s Spec
			do(&s)
			if _, errs := Compile(Ref{Name: "r"}, s); len(errs) > 0 {
				t.Errorf("%s: %v", name, errs)
			}
		}
	}
}
