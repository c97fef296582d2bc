package tenancy

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

func cluster(namespace, name string) v1alpha1.ClusterReference {
	return v1alpha1.ClusterReference{Namespace: namespace, Name: name}
}

var (
	longNamespace = strings.Repeat("n", 63)
	longName      = strings.Repeat("a", 253)
)

// TestBlockNames checks the names of grown blocks (B41) and of first blocks (B42).
func TestBlockNames(t *testing.T) {
	tests := map[string]struct {
		reason       string
		cluster      v1alpha1.ClusterReference
		want, growth string
	}{
		"Butlers": {reason: "as Butler names them", cluster: cluster("team-platform", "prod-cluster"),
			want: "team-platform-prod-cluster-lb", growth: "team-platform-prod-cluster-lb-7"},
		"Longest": {reason: "253 characters are not cut", cluster: cluster("ns", strings.Repeat("a", 247)),
			want: "ns-" + strings.Repeat("a", 247) + "-lb", growth: "ns-" + strings.Repeat("a", 234) + "-9d0adc86c9-lb-7"},
		"Dots": {reason: "no cut behind a dot", cluster: cluster("ns", strings.Repeat("a", 235)+"...b.."+strings.Repeat("c", 12)),
			want: "", growth: ""},
		"Both": {reason: "the longest there are", cluster: cluster(longNamespace, longName)},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			got, growth := InitialBlockName(c.cluster), GrowthBlockName(c.cluster, 7)
			for _, n := range []string{got, growth} {
				if len(n) > 253 || len(validation.IsDNS1123Subdomain(n)) > 0 {
					t.Errorf("%s: %q is no name: %v", c.reason, n, validation.IsDNS1123Subdomain(n))
				}
			}
			if !strings.HasSuffix(got, "-lb") || !strings.HasSuffix(growth, "-lb-7") {
				t.Errorf("%s: the ending was cut: %s, %s", c.reason, got, growth)
			}
			if c.want != "" && (got != c.want || growth != c.growth) {
				t.Errorf("%s: got %s and %s", c.reason, got, growth)
			}
		})
	}
}

func TestNamesThatAreCutDiffer(t *testing.T) {
	a, b := cluster(longNamespace, longName), cluster(longNamespace, longName[1:]+"b")
	if InitialBlockName(a) == InitialBlockName(b) || GrowthBlockName(a, 1) == GrowthBlockName(b, 1) || GrowthBlockName(a, 1) == GrowthBlockName(a, 2) {
		t.Error("two names became one")
	}
}

// TestOwnsAllocation checks that the spec decides which of two Clusters with the same block name owns an allocation.
func TestOwnsAllocation(t *testing.T) {
	a, b := cluster("a-b", "c"), cluster("a", "b-c")
	if InitialBlockName(a) != InitialBlockName(b) {
		t.Fatal("these names are expected to collide")
	}
	allocation := &v1alpha1.IPAllocation{Spec: v1alpha1.IPAllocationSpec{TenantClusterRef: a}}
	allocation.Name, allocation.Labels = InitialBlockName(b), ClusterLabels(b)
	if !OwnsAllocation(a, allocation) || OwnsAllocation(b, allocation) {
		t.Error("an allocation is not the one's that its spec names")
	}
}

// TestLabelsForBlock checks that team, tenant, pool, type and role are labels of every block (B72).
func TestLabelsForBlock(t *testing.T) {
	got := LabelsForBlock(BlockIdentity{
		Cluster: cluster("team-platform", "prod-cluster"), Pool: v1alpha1.PoolReference{Name: "lab-pool"},
		Type: v1alpha1.LoadBalancerAllocation, Role: v1alpha1.InitialRole, ProviderConfig: "harvester-lab",
	})
	for key, want := range map[string]string{
		"butler.butlerlabs.dev/team": "team-platform", "butler.butlerlabs.dev/tenant": "prod-cluster", "butler.butlerlabs.dev/network-pool": "lab-pool",
		"butler.butlerlabs.dev/allocation-type": "loadbalancer", "butler.butlerlabs.dev/allocation-role": "initial",
		"butler.butlerlabs.dev/provider-config": "harvester-lab", "cluster.x-k8s.io/cluster-name": "prod-cluster",
	} {
		if got[key] != want {
			t.Errorf("%s is %q, want %q", key, got[key], want)
		}
	}
	if len(got) != 7 {
		t.Errorf("got %d labels: %v", len(got), got)
	}
}

func TestLabelsAreValid(t *testing.T) {
	dotted := strings.Repeat("a", 50) + "." + strings.Repeat(".", 40) + "b"
	for _, name := range []string{"short", strings.Repeat("a", 63), strings.Repeat("a", 64), longName, dotted} {
		labels := LabelsForBlock(BlockIdentity{Cluster: cluster(longNamespace, name), Pool: v1alpha1.PoolReference{Name: name}, ProviderConfig: name})
		for key, value := range labels {
			if errs := validation.IsValidLabelValue(value); len(errs) > 0 {
				t.Errorf("%s: %q: %v", key, value, errs)
			}
		}
		for key, value := range ClusterLabels(cluster(longNamespace, name)) {
			if labels[key] != value {
				t.Errorf("%s: blocks have %q, selected is %q", key, labels[key], value)
			}
		}
	}
	if a, b := text.ShortenText(longName, maxLabelLength), text.ShortenText(longName+"b", maxLabelLength); a == b || a != text.ShortenText(longName, maxLabelLength) {
		t.Errorf("%q and %q", a, b)
	}
}

func TestNameTakenDecision(t *testing.T) {
	a := &v1alpha1.IPAllocation{}
	a.Namespace, a.Name, a.Spec.TenantClusterRef = "ns", "a-b-c-lb", v1alpha1.ClusterReference{Namespace: "a", Name: "b-c"}
	want := "this Cluster needs the name IPAllocation ns/a-b-c-lb, which belongs to Cluster a/b-c; create one of the two Clusters under another name"
	if d := NameTakenDecision(a); d.Message != want || d.Reason != v1alpha1.NetworkNotReadyReason || d.Action == ActionDone {
		t.Errorf("%+v", d)
	}
}
