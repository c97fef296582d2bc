package page

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/fleet"
)

func TestOwners(t *testing.T) {
	p := fleet.MakePool("ns", "p", v1alpha1.NetworkPoolSpec{CIDR: "10.0.0.0/16"})
	p.Take("10.0.0.1", grants.Entry{Namespace: "ns", Name: "a", Cluster: "c"})
	p.Take("10.0.0.4/30", grants.Entry{Use: grants.UseNodes, Kind: "IPAllocation", Name: "b", Others: []string{"x"}})
	for i := range 300 {
		p.Take(fmt.Sprintf("10.0.%d.%d", 1+i/250, i%250), fleet.Claim("ns", "n"))
	}
	h := serve(fleet.Pools{p})
	got := told[list](t, h, "owners", of(p, "first", "10.0.0.0", "last", "10.0.0.255"))
	want := list{Owners: []owner{
		{Range: "10.0.0.1", First: "10.0.0.1", Use: "claim", Kind: "IPAddressClaim", Namespace: "ns", Name: "a", Cluster: "c", Since: fleet.Noon.Unix()},
		{Range: "10.0.0.4/30", First: "10.0.0.4", Use: "nodes", Kind: "IPAllocation", Name: "b", Since: fleet.Noon.Unix(), Others: []string{"x"}},
	}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if got := told[list](t, h, "owners", of(p, "first", "10.0.0.0", "last", "10.0.255.255")); len(got.Owners) != maxOwners || !got.More {
		t.Errorf("of many, %d are told, more: %t", len(got.Owners), got.More)
	}
	if got := told[list](t, h, "owners", of(p, "first", "10.0.9.0", "last", "10.0.9.9")); len(got.Owners) != 0 || got.Owners == nil {
		t.Errorf("of free addresses: %+v", got)
	}
}

// The leases of a pool are told with who has them, what shows them, and a bounded number of their ports; then those that
// wait. Whatever else has addresses of the pool is left out.
func TestLeasesOfPool(t *testing.T) {
	made := fleet.Fleet()
	public := made[len(made)-1]
	public.Take("203.0.113.9", fleet.Claim("team-a", "machine")).Wait(grants.Waiter{Kind: "IPAddressClaim", Namespace: "team-a", Name: "late"})
	h := serve(made)
	got := told[list](t, h, "leases", of(public))
	var lines []string
	for _, o := range got.Owners {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s/%s %d+%d %s %s %t", o.Range, o.Namespace, o.Name, len(o.Ports), o.MorePorts, o.Announced, o.Reason, o.Deleting)))
	}
	want := []string{
		"203.0.113.1 team-a/shop 2+0 True Announced false",
		"203.0.113.2 team-a/mail 1+0 False NoHost false",
		"203.0.113.3 team-b/" + fleet.Markup + " 0+0   false",
		"203.0.113.4 team-b/old 1+0   true",
		"203.0.113.5 team-c/games 8+32   false",
		"team-a/third 0+0  QuotaExceeded false",
	}
	if d := cmp.Diff(want, lines); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if got := told[list](t, h, "leases", of(made[1])); len(got.Owners) != 0 || got.Owners == nil {
		t.Errorf("of a pool without leases: %+v", got)
	}
	if p := lineOf(public.View, false); !p.GivesLeases || p.Leases != 6 || p.LeaseQuota == nil || *p.LeaseQuota != 2 {
		t.Errorf("the list of pools says %+v", p)
	}
	for i := range 300 {
		public.Take(fmt.Sprintf("203.0.114.%d", i%256), grants.Entry{Use: grants.UseLease, Kind: "IPLease", Name: "l"})
	}
	if got := told[list](t, h, "leases", of(public)); len(got.Owners) != maxOwners || !got.More {
		t.Errorf("of many, %d are told, more: %t", len(got.Owners), got.More)
	}
}
