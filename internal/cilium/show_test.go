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

// TestPlanChanges checks what is written to project blocks to Cilium (U70), in which order ranges are withdrawn (U71),
// and that pools of other owners are left alone (U74).
func TestPlanChanges(t *testing.T) {
	leaving := func(d elastic.DesiredPool) elastic.DesiredPool { d.Draining = true; return d }
	drained := func(d elastic.DesiredPool) elastic.DesiredPool { d.AutoAssign = false; return d }
	want := desired(DefaultPool, "10.0.0.1-10.0.0.2")
	for name, tc := range map[string]struct {
		current    []Pool
		want       []elastic.DesiredPool
		wantChange string
	}{
		"nothing":                     {},
		"first":                       {want: []elastic.DesiredPool{want}, wantChange: "create default-pool"},
		"first, leaving":              {want: []elastic.DesiredPool{leaving(want)}},
		"as it is to be":              {current: []Pool{pool(DefaultPool, "10.0.0.1-10.0.0.2")}, want: []elastic.DesiredPool{want}},
		"as it is to be, spelled":     {current: []Pool{pool(DefaultPool, "10.0.0.1-10.0.0.2", func(p *Pool) { p.Spec.AllowFirstLastIPs = "No" })}, want: []elastic.DesiredPool{want}},
		"another range":               {current: []Pool{pool(DefaultPool, "10.0.0.1")}, want: []elastic.DesiredPool{want}, wantChange: "apply default-pool"},
		"by CIDR":                     {current: []Pool{pool(DefaultPool, "", func(p *Pool) { p.Spec.Blocks = []Block{{CIDR: "10.0.0.1/32"}} })}, want: []elastic.DesiredPool{want}, wantChange: "apply default-pool"},
		"disabled":                    {current: []Pool{pool(DefaultPool, "10.0.0.1-10.0.0.2", disabled)}, want: []elastic.DesiredPool{want}, wantChange: "apply default-pool"},
		"to be disabled":              {current: []Pool{pool(DefaultPool, "10.0.0.1-10.0.0.2")}, want: []elastic.DesiredPool{drained(want)}, wantChange: "apply default-pool"},
		"label taken off":             {current: []Pool{pool(DefaultPool, "10.0.0.1-10.0.0.2", func(p *Pool) { p.Labels = nil; p.ManagedFields = ownManagedFields() })}, want: []elastic.DesiredPool{want}, wantChange: "apply default-pool"},
		"foreign":                     {current: []Pool{pool(DefaultPool, "10.5.0.1", makeForeign)}, want: []elastic.DesiredPool{want}},
		"not wanted":                  {current: []Pool{pool(DefaultPool, "10.0.0.1")}, wantChange: "empty default-pool"},
		"not wanted, label taken off": {current: []Pool{pool(DefaultPool, "10.0.0.1", func(p *Pool) { p.Labels = nil; p.ManagedFields = ownManagedFields() })}, wantChange: "empty default-pool"},
		"not wanted, emptied":         {current: []Pool{pool(DefaultPool, "", changed)}},
		"not wanted, and known":       {current: []Pool{pool(DefaultPool, "")}, wantChange: "delete default-pool"},
		"not wanted, nor ours":        {current: []Pool{pool("theirs", "10.5.0.1", makeForeign)}},
		"one of two":                  {current: []Pool{pool("b", "10.0.0.1"), pool("a", "10.0.0.2")}, want: []elastic.DesiredPool{desired("a", "10.0.0.2")}, wantChange: "empty b"},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := (&observedCluster{pools: tc.current}).PlanChanges(tc.want).(*poolChanges)
			var changes []string
			for _, p := range c.deletions {
				changes = append(changes, "delete "+p.Name)
			}
			for _, s := range c.updates {
				verb := "apply"
				if s.observed == nil {
					verb = "create"
				} else if len(s.desired.Ranges) == 0 {
					verb = "empty"
				}
				changes = append(changes, verb+" "+s.desired.Name)
			}
			if got := strings.Join(changes, ", "); got != tc.wantChange || c.HasPoolChanges() != (tc.wantChange != "") {
				t.Errorf("it is to %s, not to %s", got, tc.wantChange)
			}
		})
	}
}

func ownManagedFields() []metav1.ManagedFieldsEntry {
	return []metav1.ManagedFieldsEntry{{Manager: string(balancer.FieldOwner)}}
}

// TestConsecutiveWritesDiffer checks that a pool is never written as it was at one of the two writes before, which
// Cilium would not acknowledge.
func TestConsecutiveWritesDiffer(t *testing.T) {
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

// TestDescribeForeignPool checks what is reported of pools of other owners (U74) and of conflicts between pools (U77).
func TestDescribeForeignPool(t *testing.T) {
	o := &observedCluster{pools: []Pool{pool(DefaultPool, "10.5.0.1", makeForeign), pool("b", "10.0.0.1", withPoolCondition(conflictCondition, metav1.ConditionTrue, 3))}}
	if message := o.DescribeForeignPool("other", DefaultPool); !strings.Contains(message, "default-pool") || !strings.Contains(message, "helm") {
		t.Errorf("it says %q", message)
	}
	if message := o.DescribeForeignPool("b"); message != "" {
		t.Errorf("of ours it says %q", message)
	}
	if !o.HasProjectedPool("b") || o.HasProjectedPool(DefaultPool) {
		t.Error("it does not know which pools show blocks")
	}
	if why, err := o.DescribeUnplaced(t.Context(), nil, &elastic.Service{}); err != nil || why != "CiliumLoadBalancerIPPool b: x" {
		t.Errorf("%q, %v", why, err)
	}
}
