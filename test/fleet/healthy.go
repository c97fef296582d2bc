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

// Healthy is a site where all is well: a network of machines that teams carve pools from, public addresses that
// tenants lease, another network, and prefixes. It is the same at each call.
func Healthy() Pools {
	random := rand.New(rand.NewPCG(3, 5))
	out := Pools{datacentre(random)}
	for _, t := range teams {
		out = append(out, t.pool(random, out[0].Key))
	}
	return append(out, leased(random), stores(random), podPrefixes(random))
}

// platform is where the platform team keeps its objects.
const platform = "platform"

// team has a pool, of blocks that are carved from the network of machines.
type team struct {
	name   string
	blocks []string
	used   int
}

func (t *team) namespace() string { return "team-" + t.name }

var (
	payments = team{"payments", []string{"10.40.10.0/25", "10.40.10.128/25"}, 171}
	search   = team{"search", []string{"10.40.11.0/25"}, 88}
	data     = team{"data", []string{"10.40.12.0/25", "10.40.12.128/25", "10.40.13.0/25"}, 246}
	teams    = []*team{&payments, &search, &data}
)

// datacentre is a /20 with machines, ranges for load balancers and nodes, and the blocks of the teams.
func datacentre(random *rand.Rand) *Pool {
	p := MakePool("", "datacentre", v1alpha1.NetworkPoolSpec{
		CIDR: "10.40.0.0/20", Gateway: "10.40.0.1", Reserved: []v1alpha1.ReservedRange{{CIDR: "10.40.0.2-10.40.0.31"}, {CIDR: "10.40.15.192/26"}},
	})
	clusters := []string{"checkout-prod", "payments-prod", "search-prod", "data-prod", "checkout-staging", "build-farm"}
	next := netip.MustParseAddr("10.40.0.32")
	for i, name := range clusters {
		block(p, &next, 32, grants.Entry{Use: grants.UseLoadBalancer, Kind: v1alpha1.IPAllocationKind, Namespace: platform, Name: name + "-lb", Cluster: name, Since: before(random)})
		if i%2 == 0 {
			block(p, &next, 64, grants.Entry{Use: grants.UseNodes, Kind: v1alpha1.IPAllocationKind, Namespace: platform, Name: name + "-nodes", Cluster: name, Since: before(random)})
		}
		machines(p, random, &next, 190+random.IntN(90), name)
	}
	for _, t := range teams {
		for i, b := range t.blocks {
			p.Take(b, grants.Entry{Use: grants.UseCarved, Kind: v1alpha1.IPAllocationKind, Namespace: t.namespace(), Name: fmt.Sprintf("%s-%d", t.name, i+1), Since: before(random)})
		}
	}
	p.Counts.LargestFree = 640
	return p.day(random, 0.78)
}

// block takes a range of so many addresses from an address on.
func block(p *Pool, next *netip.Addr, n int, e grants.Entry) {
	for (int(next.As4()[3]) % n) != 0 {
		*next = next.Next()
	}
	prefix := netip.PrefixFrom(*next, 32-int(math.Log2(float64(n))))
	p.Take(prefix.String(), e)
	for range n {
		*next = next.Next()
	}
}

// machines takes single addresses for a Cluster, with gaps where machines have gone and addresses rest.
func machines(p *Pool, random *rand.Rand, next *netip.Addr, n int, cluster string) {
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
			p.TakeRange(single(*next), grants.Entry{Use: grants.UseResting, Namespace: platform, Name: name, Until: Noon.Add(10 * time.Minute)})
		default:
			p.TakeRange(single(*next), grants.Entry{Namespace: platform, Name: name, Cluster: cluster, Since: before(random)})
		}
		*next = next.Next()
	}
}

func (t *team) pool(random *rand.Rand, parent pools.Key) *Pool {
	p := MakePool(t.namespace(), t.name, v1alpha1.NetworkPoolSpec{Addresses: t.blocks, AllocateReservedIPAddresses: true})
	p.Parent = parent
	next := netip.MustParsePrefix(t.blocks[0]).Addr()
	machines(p, random, &next, t.used, t.name+"-prod")
	p.Counts.LargestFree = p.Counts.Available
	return p.day(random, 0.7)
}

// leased are public addresses that tenants lease for their Services, shown by hosts.
func leased(random *rand.Rand) *Pool {
	quota := int32(4)
	p := MakePool("", "public", v1alpha1.NetworkPoolSpec{CIDR: "203.0.113.0/27", Gateway: "203.0.113.1", Leases: &v1alpha1.Leases{QuotaPerNamespace: &quota}})
	next := netip.MustParseAddr("203.0.113.2")
	for i, l := range []struct {
		namespace, name string
		ports           []string
	}{
		{payments.namespace(), "api", []string{"TCP/443 gateway"}},
		{payments.namespace(), "webhooks", []string{"TCP/443 webhooks"}},
		{search.namespace(), "site", []string{"TCP/80 web", "TCP/443 web"}},
		{data.namespace(), "ingest", []string{"TCP/443 ingest", "UDP/514 syslog"}},
		{data.namespace(), "metrics", []string{"TCP/9090 metrics"}},
		{"tenant-acme", "shop", []string{"TCP/80 shop", "TCP/443 shop"}},
		{"tenant-acme", "mail", []string{"TCP/25 smtp", "TCP/587 smtp"}},
		{"tenant-globex", "dns", []string{"TCP/53 dns", "UDP/53 dns"}},
		{"tenant-globex", "www", nil},
	} {
		e := grants.Entry{Use: grants.UseLease, Kind: v1alpha1.IPLeaseKind, Namespace: l.namespace, Name: l.name, Ports: l.ports, Since: before(random)}
		if l.ports != nil {
			e.Announced = announced("True", v1alpha1.AnnouncedReason, fmt.Sprintf("host edge-%d has the address", 1+i%3))
		}
		p.TakeRange(single(next), e)
		next = next.Next()
	}
	p.Counts.LargestFree = p.Counts.Available
	return p.day(random, 0.8)
}

// stores is the network of another kind of machines.
func stores(random *rand.Rand) *Pool {
	p := MakePool("retail", "stores", v1alpha1.NetworkPoolSpec{CIDR: "10.64.0.0/18", Gateway: "10.64.0.1"})
	next := netip.MustParseAddr("10.64.0.2")
	for i := range 45 {
		machines(p, random, &next, 120, fmt.Sprintf("store-%03d", 100+i))
	}
	p.Counts.LargestFree = 8192
	return p.day(random, 0.9)
}

// podPrefixes gives each Cluster a prefix for its Pods.
func podPrefixes(random *rand.Rand) *Pool {
	length := int32(64)
	p := MakePool("", "pods-v6", v1alpha1.NetworkPoolSpec{CIDR: "fd00:40::/56", AllocationPrefixLength: &length})
	for i := range 51 {
		p.Take(fmt.Sprintf("fd00:40:0:%x::/64", i), grants.Entry{Namespace: "retail", Name: fmt.Sprintf("store-%03d-pods", 100+i), Cluster: fmt.Sprintf("store-%03d", 100+i), Since: before(random)})
	}
	p.Counts.LargestFree = p.Counts.Available
	return p.day(random, 0.9)
}

// day gives the pool a past in which Clusters scale with their load: less at night, by a share of what it has now, and most
// some hours ago.
func (p *Pool) day(random *rand.Rand, night float64) *Pool {
	const peak, trough, top = 1.07, 0.4, 0.85 // the highest load, and when the lowest and the highest are
	since, until := Pools(nil).Span()
	now, noise := float64(p.Counts.Allocated), 0.0
	minutes := int(until.Sub(since).Minutes())
	for i := 0; i <= minutes; i += 3 {
		at := float64(i) / float64(minutes)
		noise = 0.97*noise + (random.Float64()-0.5)*0.01
		load := night + (peak-night)*(1-math.Cos(math.Pi*(at-trough)/(top-trough)))/2
		used := min(int64(now*(load+noise*(1-at))), p.Counts.Total)
		if n := len(p.Samples); n == 0 || p.Samples[n-1].Used != used {
			p.Samples = append(p.Samples, usage.Sample{At: since.Unix() + int64(60*i), Used: used, Total: p.Counts.Total})
		}
	}
	p.Samples[len(p.Samples)-1].Used = p.Counts.Allocated
	return p
}

// before is a time in the last three months.
func before(random *rand.Rand) time.Time {
	return Noon.Add(-time.Duration(1+random.IntN(90*24)) * time.Hour)
}
