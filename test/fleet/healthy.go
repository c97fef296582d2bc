package fleet

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/usage"
)

// HealthyFleet returns the pools of a site without any problem: a network of machines that teams carve pools from,
// public addresses that tenants lease, another network, and prefixes. Each call returns the same.
func HealthyFleet() Pools {
	random := rand.New(rand.NewPCG(3, 5))
	out := Pools{newDatacentrePool(random)}
	for _, t := range teams {
		out = append(out, t.newPool(random, out[0].Key))
	}
	return append(out, newPublicPool(random), newStoresPool(random), newPodPrefixPool(random))
}

// platformNamespace is the namespace of the platform team.
const platformNamespace = "platform"

// team has a pool of blocks that are carved from the network of machines.
type team struct {
	name      string
	blocks    []string
	usedCount int
}

func (t *team) namespace() string { return "team-" + t.name }

var (
	paymentsTeam = team{"payments", []string{"10.40.10.0/25", "10.40.10.128/25"}, 171}
	searchTeam   = team{"search", []string{"10.40.11.0/25"}, 88}
	dataTeam     = team{"data", []string{"10.40.12.0/25", "10.40.12.128/25", "10.40.13.0/25"}, 246}
	teams        = []*team{&paymentsTeam, &searchTeam, &dataTeam}
)

// newDatacentrePool returns a /20 with machines, ranges for load balancers and nodes, and the blocks of the teams.
func newDatacentrePool(random *rand.Rand) *Pool {
	p := MakePool("", "datacentre", v1alpha1.NetworkPoolSpec{
		CIDR: "10.40.0.0/20", Gateway: "10.40.0.1", Reserved: []v1alpha1.ReservedRange{{CIDR: "10.40.0.2-10.40.0.31"}, {CIDR: "10.40.15.192/26"}},
	})
	clusters := []string{"checkout-prod", "payments-prod", "search-prod", "data-prod", "checkout-staging", "build-farm"}
	next := netip.MustParseAddr("10.40.0.32")
	for i, name := range clusters {
		addBlock(p, &next, 32, grants.TakenRange{Use: grants.UseLoadBalancer, Kind: v1alpha1.IPAllocationKind, Namespace: platformNamespace, Name: name + "-lb", Cluster: name, Since: randomPastTime(random)})
		if i%2 == 0 {
			addBlock(p, &next, 64, grants.TakenRange{Use: grants.UseNodes, Kind: v1alpha1.IPAllocationKind, Namespace: platformNamespace, Name: name + "-nodes", Cluster: name, Since: randomPastTime(random)})
		}
		addMachines(p, random, &next, 190+random.IntN(90), name)
	}
	for _, t := range teams {
		for i, b := range t.blocks {
			p.AddEntry(b, grants.TakenRange{Use: grants.UseCarved, Kind: v1alpha1.IPAllocationKind, Namespace: t.namespace(), Name: fmt.Sprintf("%s-%d", t.name, i+1), Since: randomPastTime(random)})
		}
	}
	p.Counts.LargestFree = 640
	return p.addDailyHistory(random, 0.78)
}

// addBlock adds an entry of n addresses, from the first aligned address at or after next.
func addBlock(p *Pool, next *netip.Addr, n int, e grants.TakenRange) {
	for (int(next.As4()[3]) % n) != 0 {
		*next = next.Next()
	}
	prefix := netip.PrefixFrom(*next, 32-int(math.Log2(float64(n))))
	p.AddEntry(prefix.String(), e)
	for range n {
		*next = next.Next()
	}
}

// addMachines adds single addresses for a Cluster, with gaps where machines are gone and addresses cool down.
func addMachines(p *Pool, random *rand.Rand, next *netip.Addr, n int, cluster string) {
	const letters = "bcdfghjklmnpqrstvwxz2456789"
	suffix := func() string {
		out := make([]byte, 5)
		for i := range out {
			out[i] = letters[random.IntN(len(letters))]
		}
		return string(out)
	}
	for range n {
		name := fmt.Sprintf("%s-md-0-%s-%s", cluster, suffix(), suffix())
		switch k := random.IntN(60); {
		case k < 3:
		case k == 3:
			p.AddRangeEntry(singleRange(*next), grants.TakenRange{Use: grants.UseCooling, Namespace: platformNamespace, Name: name, Until: Noon.Add(10 * time.Minute)})
		default:
			p.AddRangeEntry(singleRange(*next), grants.TakenRange{Namespace: platformNamespace, Name: name, Cluster: cluster, Since: randomPastTime(random)})
		}
		*next = next.Next()
	}
}

func (t *team) newPool(random *rand.Rand, parent pools.Key) *Pool {
	p := MakePool(t.namespace(), t.name, v1alpha1.NetworkPoolSpec{Addresses: t.blocks, AllocateReservedIPAddresses: true})
	p.ParentKey = parent
	next := netip.MustParsePrefix(t.blocks[0]).Addr()
	addMachines(p, random, &next, t.usedCount, t.name+"-prod")
	p.Counts.LargestFree = p.Counts.Available
	return p.addDailyHistory(random, 0.7)
}

// newPublicPool returns a pool of public addresses that tenants lease for their Services, and that hosts announce.
func newPublicPool(random *rand.Rand) *Pool {
	quota := int32(4)
	p := MakePool("", "public", v1alpha1.NetworkPoolSpec{CIDR: "203.0.113.0/27", Gateway: "203.0.113.1", Leases: &v1alpha1.Leases{QuotaPerNamespace: &quota}})
	next := netip.MustParseAddr("203.0.113.2")
	for i, l := range []struct {
		namespace, name string
		ports           []string
	}{
		{paymentsTeam.namespace(), "api", []string{"TCP/443 gateway"}},
		{paymentsTeam.namespace(), "webhooks", []string{"TCP/443 webhooks"}},
		{searchTeam.namespace(), "site", []string{"TCP/80 web", "TCP/443 web"}},
		{dataTeam.namespace(), "ingest", []string{"TCP/443 ingest", "UDP/514 syslog"}},
		{dataTeam.namespace(), "metrics", []string{"TCP/9090 metrics"}},
		{"tenant-acme", "shop", []string{"TCP/80 shop", "TCP/443 shop"}},
		{"tenant-acme", "mail", []string{"TCP/25 smtp", "TCP/587 smtp"}},
		{"tenant-globex", "dns", []string{"TCP/53 dns", "UDP/53 dns"}},
		{"tenant-globex", "www", nil},
	} {
		e := grants.TakenRange{Use: grants.UseLease, Kind: v1alpha1.IPLeaseKind, Namespace: l.namespace, Name: l.name, Ports: l.ports, Since: randomPastTime(random)}
		if l.ports != nil {
			e.AnnouncedCondition = announcedCondition("True", v1alpha1.AnnouncedReason, fmt.Sprintf("host edge-%d has the address", 1+i%3))
		}
		p.AddRangeEntry(singleRange(next), e)
		next = next.Next()
	}
	p.Counts.LargestFree = p.Counts.Available
	return p.addDailyHistory(random, 0.8)
}

// newStoresPool returns a network of another kind of machines.
func newStoresPool(random *rand.Rand) *Pool {
	p := MakePool("retail", "stores", v1alpha1.NetworkPoolSpec{CIDR: "10.64.0.0/18", Gateway: "10.64.0.1"})
	next := netip.MustParseAddr("10.64.0.2")
	for i := range 45 {
		addMachines(p, random, &next, 120, fmt.Sprintf("store-%03d", 100+i))
	}
	p.Counts.LargestFree = 8192
	return p.addDailyHistory(random, 0.9)
}

// newPodPrefixPool returns a pool that gives each Cluster a prefix for its Pods.
func newPodPrefixPool(random *rand.Rand) *Pool {
	length := int32(64)
	p := MakePool("", "pods-v6", v1alpha1.NetworkPoolSpec{CIDR: "fd00:40::/56", AllocationPrefixLength: &length})
	for i := range 51 {
		p.AddEntry(fmt.Sprintf("fd00:40:0:%x::/64", i), grants.TakenRange{Namespace: "retail", Name: fmt.Sprintf("store-%03d-pods", 100+i), Cluster: fmt.Sprintf("store-%03d", 100+i), Since: randomPastTime(random)})
	}
	p.Counts.LargestFree = p.Counts.Available
	return p.addDailyHistory(random, 0.9)
}

// addDailyHistory adds samples of Clusters that scale with their load: at night the usage falls to the given share of
// the current usage, and it was highest some hours ago.
func (p *Pool) addDailyHistory(random *rand.Rand, night float64) *Pool {
	const peak, trough, top = 1.07, 0.4, 0.85 // the highest load, and the times of the lowest and the highest load
	since, until := Pools(nil).TimeSpan()
	now, noise := float64(p.Counts.Allocated), 0.0
	minutes := int(until.Sub(since).Minutes())
	for i := 0; i <= minutes; i += 3 {
		at := float64(i) / float64(minutes)
		noise = 0.97*noise + (random.Float64()-0.5)*0.01
		load := night + (peak-night)*(1-math.Cos(math.Pi*(at-trough)/(top-trough)))/2
		used := min(int64(now*(load+noise*(1-at))), p.Counts.Total)
		if n := len(p.Samples); n == 0 || p.Samples[n-1].Used != used {
			p.Samples = append(p.Samples, usage.Sample{UnixSeconds: since.Unix() + int64(60*i), Used: used, Total: p.Counts.Total})
		}
	}
	p.Samples[len(p.Samples)-1].Used = p.Counts.Allocated
	return p
}

// randomPastTime returns a time in the last three months.
func randomPastTime(random *rand.Rand) time.Time {
	return Noon.Add(-time.Duration(1+random.IntN(90*24)) * time.Hour)
}
