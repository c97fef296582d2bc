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

func TestListOwnersOfRange(t *testing.T) {
	p := fleet.MakePool("ns", "p", v1alpha1.NetworkPoolSpec{CIDR: "10.0.0.0/16"})
	p.AddEntry("10.0.0.1", grants.TakenRange{Namespace: "ns", Name: "a", Cluster: "c"})
	p.AddEntry("10.0.0.4/30", grants.TakenRange{Use: grants.UseNodes, Kind: "IPAllocation", Name: "b", OtherOwners: []string{"x"}})
	for i := range 300 {
		p.AddEntry(fmt.Sprintf("10.0.%d.%d", 1+i/250, i%250), fleet.ClaimEntry("ns", "n"))
	}
	h := serve(fleet.Pools{p})
	got := getJSON[ownerList](t, h, "owners", poolQuery(p, "first", "10.0.0.0", "last", "10.0.0.255"))
	want := ownerList{Owners: []ownerRow{
		{Range: "10.0.0.1", FirstAddress: "10.0.0.1", Use: "claim", Kind: "IPAddressClaim", Namespace: "ns", Name: "a", Cluster: "c", Since: fleet.Noon.Unix()},
		{Range: "10.0.0.4/30", FirstAddress: "10.0.0.4", Use: "nodes", Kind: "IPAllocation", Name: "b", Since: fleet.Noon.Unix(), SharedWith: []string{"x"}},
	}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if got := getJSON[ownerList](t, h, "owners", poolQuery(p, "first", "10.0.0.0", "last", "10.0.255.255")); len(got.Owners) != maxOwners || !got.More {
		t.Errorf("of many, %d are listed, more: %t", len(got.Owners), got.More)
	}
	if got := getJSON[ownerList](t, h, "owners", poolQuery(p, "first", "10.0.9.0", "last", "10.0.9.9")); len(got.Owners) != 0 || got.Owners == nil {
		t.Errorf("of free addresses: %+v", got)
	}
}

// TestLeasesOfPool checks that the leases of a pool are listed with their owners, their condition Announced and a
// limited number of ports, followed by the leases that wait, and that other claimants of the pool are left out.
func TestLeasesOfPool(t *testing.T) {
	made := fleet.BusyFleet()
	public := made[len(made)-1]
	public.AddEntry("203.0.113.9", fleet.ClaimEntry("team-a", "machine")).AddWaiter(grants.WaitingClaimant{Kind: "IPAddressClaim", Namespace: "team-a", Name: "late"})
	h := serve(made)
	got := getJSON[ownerList](t, h, "leases", poolQuery(public))
	var lines []string
	for _, o := range got.Owners {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s/%s %d+%d %s %s %t", o.Range, o.Namespace, o.Name, len(o.Ports), o.MorePorts, o.Announced, o.Reason, o.Deleting)))
	}
	want := []string{
		"203.0.113.1 team-a/shop 2+0 True Announced false",
		"203.0.113.2 team-a/mail 1+0 False NoHost false",
		"203.0.113.3 team-b/" + fleet.MarkupName + " 0+0   false",
		"203.0.113.4 team-b/old 1+0   true",
		"203.0.113.5 team-c/games 8+32   false",
		"team-a/third 0+0  QuotaExceeded false",
	}
	if d := cmp.Diff(want, lines); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if got := getJSON[ownerList](t, h, "leases", poolQuery(made[1])); len(got.Owners) != 0 || got.Owners == nil {
		t.Errorf("of a pool without leases: %+v", got)
	}
	if p := newPoolRow(public.PoolView, false); !p.GivesLeases || p.Leases != 6 || p.LeaseQuota == nil || *p.LeaseQuota != 2 {
		t.Errorf("the list of pools says %+v", p)
	}
	for i := range 300 {
		public.AddEntry(fmt.Sprintf("203.0.114.%d", i%256), grants.TakenRange{Use: grants.UseLease, Kind: "IPLease", Name: "l"})
	}
	if got := getJSON[ownerList](t, h, "leases", poolQuery(public)); len(got.Owners) != maxOwners || !got.More {
		t.Errorf("of many, %d are listed, more: %t", len(got.Owners), got.More)
	}
}
