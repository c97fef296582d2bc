package tenancy

import (
	"strings"
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// TestRoleForAllocation checks that the role of an allocation without the label follows from its name (B73), and that a
// pinned block is never growth (B49).
func TestRoleForAllocation(t *testing.T) {
	prod, long := cluster("team", "prod"), cluster(longNamespace, longName)
	tests := map[string]struct {
		reason  string
		name    string
		label   string
		cluster v1alpha1.ClusterReference
		pinned  bool
		want    string
	}{
		"Initial":       {reason: "the exact name is the first block", name: "team-prod-lb", want: "initial"},
		"Growth":        {reason: "a number behind it is growth", name: "team-prod-lb-1", want: "growth"},
		"Zero":          {reason: "any number", name: "team-prod-lb-0", want: "growth"},
		"Large":         {reason: "any number of digits", name: "team-prod-lb-1234", want: "growth"},
		"OtherCluster":  {reason: "a number behind a foreign name is not ours to release", name: "team-stage-lb-1", want: "initial"},
		"NumberedName":  {reason: "a Cluster may be named like growth", name: "team-prod-lb-1", cluster: cluster("team", "prod-lb-1"), want: "initial"},
		"NumberedFirst": {reason: "its first block is initial", name: "team-prod-lb-1-lb", cluster: cluster("team", "prod-lb-1"), want: "initial"},
		"Zeros":         {reason: "no controller writes a number like this", name: "team-prod-lb-01", want: "initial"},
		"Sign":          {reason: "nor like this", name: "team-prod-lb-+1", want: "initial"},
		"Word":          {reason: "unrecognised", name: "team-prod-lb-spare", want: "initial"},
		"Bare":          {reason: "unrecognised", name: "spare", want: "initial"},
		"Dash":          {reason: "a number is missing", name: "team-prod-lb-", want: "initial"},
		"Overflow":      {reason: "no number of ours", name: "team-prod-lb-" + strings.Repeat("9", 30), want: "initial"},
		"Pinned":        {reason: "pinned is never taken back, whatever its name", name: "team-prod-lb-1", pinned: true, want: "initial"},
		"Labelled":      {reason: "what is said already stays", name: "team-prod-lb", label: "growth", want: "growth"},
		"LabelledFirst": {reason: "in both directions", name: "team-prod-lb-1", label: "initial", want: "initial"},
		"Foreign":       {reason: "even if it is no word of ours", name: "team-prod-lb", label: "spare", want: "spare"},
		"Cut":           {reason: "names that were cut are recognised", name: GrowthBlockName(long, 12), cluster: long, want: "growth"},
		"CutFirst":      {reason: "the first one too", name: InitialBlockName(long), cluster: long, want: "initial"},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			a := &v1alpha1.IPAllocation{Spec: v1alpha1.IPAllocationSpec{TenantClusterRef: prod}}
			if c.cluster.Name != "" {
				a.Spec.TenantClusterRef = c.cluster
			}
			if c.label != "" {
				a.Labels = map[string]string{v1alpha1.AllocationRoleLabel: c.label}
			}
			if c.pinned {
				a.Spec.PinnedRange = &v1alpha1.PinnedRange{StartAddress: "10.0.0.1", EndAddress: "10.0.0.1"}
			}
			a.Name = c.name
			if got := RoleForAllocation(a); got != c.want {
				t.Errorf("%s: got %s", c.reason, got)
			}
		})
	}
}
