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

// TestChanges checks what is written to project blocks to Cilium (U70), in which order ranges are withdrawn (U71),
// and that pools of other owners are left alone (U74).
func TestChanges(t *testing.T) {
	leaving := func(d elastic.DesiredPool) elastic.DesiredPool { d.Draining = true; return d }
	drained := func(d elastic.DesiredPool) elastic.DesiredPool { d.AutoAssign = false; return d }
	want := desired(DefaultPool, "10.0.0.1-10.0.0.2")
	for name, tc := range map[string]struct {
		has  []Pool
		want []elastic.DesiredPool
		is   string
	}{
		"nothing":                     {},
		"first":                       {want: []elastic.DesiredPool{want}, is: "create default-pool"},
		"first, leaving":              {want: []elastic.DesiredPool{leaving(want)}},
		"as it is to be":              {has: []Pool{pool(DefaultPool, "10.0.0.1-10.0.0.2")}, want: []elastic.DesiredPool{want}},
		"as it is to be, spelled":     {has: []Pool{pool(DefaultPool, "10.0.0.1-10.0.0.2", func(p *Pool) { p.Spec.AllowFirstLastIPs = "No" })}, want: []elastic.DesiredPool{want}},
		"another range":               {has: []Pool{pool(DefaultPool, "10.0.0.1")}, want: []elastic.DesiredPool{want}, is: "apply default-pool"},
		"by CIDR":                     {has: []Pool{pool(DefaultPool, "", func(p *Pool) { p.Spec.Blocks = []Block{{CIDR: "10.0.0.1/32"}} })}, want: []elastic.DesiredPool{want}, is: "apply default-pool"},
		"disabled":                    {has: []Pool{pool(DefaultPool, "10.0.0.1-10.0.0.2", disabled)}, want: []elastic.DesiredPool{want}, is: "apply default-pool"},
		"to be disabled":              {has: []Pool{pool(DefaultPool, "10.0.0.1-10.0.0.2")}, want: []elastic.DesiredPool{drained(want)}, is: "apply default-pool"},
		"label taken off":             {has: []Pool{pool(DefaultPool, "10.0.0.1-10.0.0.2", func(p *Pool) { p.Labels = nil; p.ManagedFields = ownManagedFields() })}, want: []elastic.DesiredPool{want}, is: "apply default-pool"},
		"somebody else's":             {has: []Pool{pool(DefaultPool, "10.5.0.1", makeForeign)}, want: []elastic.DesiredPool{want}},
		"not wanted":                  {has: []Pool{pool(DefaultPool, "10.0.0.1")}, is: "empty default-pool"},
		"not wanted, label taken off": {has: []Pool{pool(DefaultPool, "10.0.0.1", func(p *Pool) { p.Labels = nil; p.ManagedFields = ownManagedFields() })}, is: "empty default-pool"},
		"not wanted, emptied":         {has: []Pool{pool(DefaultPool, "", changed)}},
		"not wanted, and known":       {has: []Pool{pool(DefaultPool, "")}, is: "delete default-pool"},
		"not wanted, nor ours":        {has: []Pool{pool("theirs", "10.5.0.1", makeForeign)}},
		"one of two":                  {has: []Pool{pool("b", "10.0.0.1"), pool("a", "10.0.0.2")}, want: []elastic.DesiredPool{desired("a", "10.0.0.2")}, is: "empty b"},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := (&observedCluster{pools: tc.has}).PlanChanges(tc.want).(*poolChanges)
			var is []string
			for _, p := range c.deletions {
				is = append(is, "delete "+p.Name)
			}
			for _, s := range c.updates {
				verb := "apply"
				if s.observed == nil {
					verb = "create"
				} else if len(s.desired.Ranges) == 0 {
					verb = "empty"
				}
				is = append(is, verb+" "+s.desired.Name)
			}
			if got := strings.Join(is, ", "); got != tc.is || c.HasPoolChanges() != (tc.is != "") {
				t.Errorf("it is to %s, not to %s", got, tc.is)
			}
		})
	}
}

func ownManagedFields() []metav1.ManagedFieldsEntry {
	return []metav1.ManagedFieldsEntry{{Manager: string(balancer.FieldOwner)}}
}

// TestSpelling checks that a pool is never written as it was at one of the two writes before, which Cilium would not
// acknowledge.
func TestSpelling(t *testing.T) {
	var specs []string
	p := pool(DefaultPool, "10.0.0.1")
	for range 4 {
		s := poolUpdate{desired(DefaultPool, "10.0.0.1"), &p}
		spec := newPoolObject(&s.desired, s.nextFirstLastIPs()).Object["spec"]
		p.Spec.AllowFirstLastIPs = s.nextFirstLastIPs()
		if at := slices.Index(specs, fmt.Sprint(spec)); at >= 0 && at > len(specs)-3 {
			t.Errorf("%v is as at write %d", spec, at)
		}
		specs = append(specs, fmt.Sprint(spec))
	}
}

// TestForeign checks what is reported of pools of other owners (U74) and of conflicts between pools (U77).
func TestForeign(t *testing.T) {
	o := &observedCluster{pools: []Pool{pool(DefaultPool, "10.5.0.1", makeForeign), pool("b", "10.0.0.1", withPoolCondition(conflictCondition, metav1.ConditionTrue, 3))}}
	if says := o.DescribeForeignPool("other", DefaultPool); !strings.Contains(says, "default-pool") || !strings.Contains(says, "helm") {
		t.Errorf("it says %q", says)
	}
	if says := o.DescribeForeignPool("b"); says != "" {
		t.Errorf("of ours it says %q", says)
	}
	if !o.HasProjectedPool("b") || o.HasProjectedPool(DefaultPool) {
		t.Error("it does not know which pools show blocks")
	}
	if why, err := o.DescribeUnplaced(t.Context(), nil, &elastic.Service{}); err != nil || why != "CiliumLoadBalancerIPPool b: x" {
		t.Errorf("%q, %v", why, err)
	}
}
