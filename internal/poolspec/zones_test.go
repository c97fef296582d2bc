package poolspec

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

func inDomains(cidr string, domains ...string) v1alpha1.Subnet {
	return v1alpha1.Subnet{CIDR: cidr, FailureDomains: domains}
}

// TestZonesForFailureDomain checks which subnets serve a failure domain, and which addresses each has (U53): of nested
// subnets the smallest counts, even if it serves no failure domain.
func TestZonesForFailureDomain(t *testing.T) {
	s := spec{CIDR: "10.0.0.0/8", Subnets: []v1alpha1.Subnet{
		inDomains("10.1.0.0/16", "a", "b"), inDomains("10.2.0.0/16"), inDomains("10.1.2.0/24", "b"), inDomains("10.1.3.0/24"), inDomains("10.3.0.0/16", "c", "c"),
	}}
	l, errs := Compile(&s)
	if len(errs) > 0 || !l.HasZones() {
		t.Fatal(errs)
	}
	if diff := cmp.Diff([]string{"a", "b", "c"}, l.FailureDomains()); diff != "" {
		t.Error(diff)
	}
	for domain, want := range map[string][]int{"": {0}, "a": {1}, "b": {1, 2}, "c": {3}, "d": nil} {
		got, subnets := l.ZonesForFailureDomain(domain)
		if diff := cmp.Diff(want, got); diff != "" || (domain == "b" && (len(subnets) != 2 || subnets[1] != netip.MustParsePrefix("10.1.2.0/24"))) {
			t.Errorf("%q: %s %v", domain, diff, subnets)
		}
	}
	var got [][]string
	for _, ranges := range l.ZoneRanges() {
		var texts []string
		for _, r := range ranges {
			texts = append(texts, poolutil.FormatRange(r))
		}
		got = append(got, texts)
	}
	if diff := cmp.Diff([][]string{{"10.1.0.0/23", "10.1.4.0-10.1.255.255"}, {"10.1.2.0/24"}, {"10.3.0.0/16"}}, got); diff != "" {
		t.Error(diff)
	}
	plain, _ := Compile(&spec{CIDR: "10.0.0.0/8", Subnets: []v1alpha1.Subnet{{CIDR: "10.1.0.0/16"}}})
	if plain.HasZones() || len(plain.FailureDomains()) > 0 {
		t.Error("zones without failure domains")
	}
}

// TestZonesOfPrefixes checks that a subnet that serves failure domains holds at least one unit of a claim (U59), and
// that a smaller subnet inside a unit does not split a zone.
func TestZonesOfPrefixes(t *testing.T) {
	s := spec{CIDR: "10.0.0.0/16", AllocationPrefixLength: ptr.To[int32](28), Subnets: []v1alpha1.Subnet{inDomains("10.0.1.0/24", "a"), inDomains("10.0.1.16/29")}}
	l, errs := Compile(&s)
	if len(errs) > 0 || len(l.ZoneRanges()[0]) != 1 {
		t.Fatal(errs)
	}
	s.Subnets[1].FailureDomains = []string{"b"}
	if _, errs = Compile(&s); len(errs) != 1 || errs[0].Field != "spec.subnets[1].failureDomains" || !strings.Contains(errs[0].Detail, "smaller than the prefix that each claim gets (allocationPrefixLength 28)") {
		t.Error(errs)
	}
}
