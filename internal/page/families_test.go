package page

import (
	"fmt"
	"strings"
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/fleet"
)

// TestRelatedPoolsOfBothFamilies checks that pools of both IP families are related where the machines of a Cluster have
// addresses of both.
func TestRelatedPoolsOfBothFamilies(t *testing.T) { // U81
	length := int32(120)
	newPool := func(name, cidr string, prefixes bool, clusters ...string) *fleet.Pool {
		spec := v1alpha1.NetworkPoolSpec{CIDR: cidr}
		if prefixes {
			spec.AllocationPrefixLength = &length
		}
		p := fleet.MakePool("ns", name, spec)
		network, _, _ := strings.Cut(cidr, "0/")
		for i, cluster := range clusters {
			namespace, name, _ := strings.Cut(cluster, "/")
			e := grants.TakenRange{Namespace: namespace, Name: fmt.Sprintf("m-%d", i), Cluster: name}
			if prefixes {
				p.AddEntry(fmt.Sprintf("%s%d00/120", network, i+1), e)
			} else {
				p.AddEntry(fmt.Sprintf("%s%d", network, i+1), e)
			}
		}
		return p
	}
	four := newPool("four", "10.0.0.0/24", false, "ns/", "ns/a", "ns/b")
	pools := fleet.Pools{
		four, newPool("six", "fd00:1::0/112", false, "ns/c", "ns/b"), newPool("other-four", "10.0.1.0/24", false, "ns/a"),
		newPool("others", "fd00:2::0/112", false, "other/a"), newPool("unused", "fd00:3::0/112", false, "ns/"),
		newPool("prefixes", "fd00:4::0/112", true, "ns/a"), newPool("empty", "fd00:5::0/112", false), newPool("alone", "10.0.2.0/24", false),
	}
	h := serve(pools)
	for name, want := range map[string]string{
		"four": "NetworkPool/ns/six", "six": "NetworkPool/ns/four", "other-four": "", "others": "", "unused": "", "prefixes": "", "empty": "", "alone": "",
	} {
		for _, p := range pools {
			if p.Key.Name != name {
				continue
			}
			got := getJSON[struct{ Pools []string }](t, h, "families", poolQuery(p))
			if got.Pools == nil || strings.Join(got.Pools, " ") != want {
				t.Errorf("beside %s are %v, not %s", name, got.Pools, want)
			}
		}
	}
}
