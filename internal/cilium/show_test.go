package cilium

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// U70, U71, U74: what is written so that Cilium is shown blocks.
func TestChanges(t *testing.T) {
	leaving := func(d elastic.Desired) elastic.Desired { d.Leaving = true; return d }
	drained := func(d elastic.Desired) elastic.Desired { d.AutoAssign = false; return d }
	want := desired(DefaultPool, "10.0.0.1-10.0.0.2")
	for name, tc := range map[string]struct {
		has  []Pool
		want []elastic.Desired
		is   string
	}{
		"nothing":                     {},
		"first":                       {want: []elastic.Desired{want}, is: "create default-pool"},
		"first, leaving":              {want: []elastic.Desired{leaving(want)}},
		"as it is to be":              {has: []Pool{pool(DefaultPool, "10.0.0.1-10.0.0.2")}, want: []elastic.Desired{want}},
		"as it is to be, spelled":     {has: []Pool{pool(DefaultPool, "10.0.0.1-10.0.0.2", func(p *Pool) { p.Spec.AllowFirstLastIPs = "No" })}, want: []elastic.Desired{want}},
		"another range":               {has: []Pool{pool(DefaultPool, "10.0.0.1")}, want: []elastic.Desired{want}, is: "apply default-pool"},
		"by CIDR":                     {has: []Pool{pool(DefaultPool, "", func(p *Pool) { p.Spec.Blocks = []Block{{CIDR: "10.0.0.1/32"}} })}, want: []elastic.Desired{want}, is: "apply default-pool"},
		"disabled":                    {has: []Pool{pool(DefaultPool, "10.0.0.1-10.0.0.2", disabled)}, want: []elastic.Desired{want}, is: "apply default-pool"},
		"to be disabled":              {has: []Pool{pool(DefaultPool, "10.0.0.1-10.0.0.2")}, want: []elastic.Desired{drained(want)}, is: "apply default-pool"},
		"label taken off":             {has: []Pool{pool(DefaultPool, "10.0.0.1-10.0.0.2", func(p *Pool) { p.Labels = nil; p.ManagedFields = ours() })}, want: []elastic.Desired{want}, is: "apply default-pool"},
		"somebody else's":             {has: []Pool{pool(DefaultPool, "10.5.0.1", foreign)}, want: []elastic.Desired{want}},
		"not wanted":                  {has: []Pool{pool(DefaultPool, "10.0.0.1")}, is: "empty default-pool"},
		"not wanted, label taken off": {has: []Pool{pool(DefaultPool, "10.0.0.1", func(p *Pool) { p.Labels = nil; p.ManagedFields = ours() })}, is: "empty default-pool"},
		"not wanted, emptied":         {has: []Pool{pool(DefaultPool, "", changed)}},
		"not wanted, and known":       {has: []Pool{pool(DefaultPool, "")}, is: "delete default-pool"},
		"not wanted, nor ours":        {has: []Pool{pool("theirs", "10.5.0.1", foreign)}},
		"one of two":                  {has: []Pool{pool("b", "10.0.0.1"), pool("a", "10.0.0.2")}, want: []elastic.Desired{desired("a", "10.0.0.2")}, is: "empty b"},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := (&observed{pools: tc.has}).Changes(tc.want).(*changes)
			var is []string
			for _, p := range c.remove {
				is = append(is, "delete "+p.Name)
			}
			for _, s := range c.set {
				verb := "apply"
				if s.was == nil {
					verb = "create"
				} else if len(s.to.Ranges) == 0 {
					verb = "empty"
				}
				is = append(is, verb+" "+s.to.Name)
			}
			if got := strings.Join(is, ", "); got != tc.is || c.OfPools() != (tc.is != "") {
				t.Errorf("it is to %s, not to %s", got, tc.is)
			}
		})
	}
}

func ours() []metav1.ManagedFieldsEntry {
	return []metav1.ManagedFieldsEntry{{Manager: string(balancer.FieldOwner)}}
}

// A pool is never written as it was at one of the two writes before: Cilium would not say that it has seen it.
func TestSpelling(t *testing.T) {
	var specs []string
	p := pool(DefaultPool, "10.0.0.1")
	for range 4 {
		s := setting{desired(DefaultPool, "10.0.0.1"), &p}
		spec := object(&s.to, s.spelling()).Object["spec"]
		p.Spec.AllowFirstLastIPs = s.spelling()
		if at := slices.Index(specs, fmt.Sprint(spec)); at >= 0 && at > len(specs)-3 {
			t.Errorf("%v is as at write %d", spec, at)
		}
		specs = append(specs, fmt.Sprint(spec))
	}
}

// U74, U77: what is said of pools.
func TestForeign(t *testing.T) {
	o := &observed{pools: []Pool{pool(DefaultPool, "10.5.0.1", foreign), pool("b", "10.0.0.1", says(conflictCondition, metav1.ConditionTrue, 3))}}
	if says := o.Foreign("other", DefaultPool); !strings.Contains(says, "default-pool") || !strings.Contains(says, "helm") {
		t.Errorf("it says %q", says)
	}
	if says := o.Foreign("b"); says != "" {
		t.Errorf("of ours it says %q", says)
	}
	if !o.Shows("b") || o.Shows(DefaultPool) {
		t.Error("it does not know which pools show blocks")
	}
	if why, err := o.Unplaced(t.Context(), nil, &elastic.Service{}); err != nil || why != "CiliumLoadBalancerIPPool b: x" {
		t.Errorf("%q, %v", why, err)
	}
}
