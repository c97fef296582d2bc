package fleet

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"time"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/usage"
)

// MarkupName is the name of a claim that a page must escape.
const MarkupName = `<img src=x onerror="document.title='broken'">`

// BusyFleet returns the pools of a busy management cluster: one pool with entries of every sort, one with 100,000
// claims, one that is full, one of prefixes, one too large for a map, one that two others are carved from, one for
// leases, and an IPv6 pool for machines of the large pool. Each call returns the same.
func BusyFleet() Pools {
	random := rand.New(rand.NewPCG(1, 2))
	return append(append(Pools{newBusyPool(random), newLargePool(random), newExhaustedPool(), newPrefixPool(), newHugePool()}, newCarvedPools()...), newIPv6Pool(), newLeasePool())
}

// defaultNamespace is the namespace of most of the objects.
const defaultNamespace = "default"

func singleRange(a netip.Addr) netipx.IPRange { return netipx.IPRangeFrom(a, a) }

// newBusyPool returns a /20 with entries of every sort that a pool can have.
func newBusyPool(random *rand.Rand) *Pool {
	p := MakePool(defaultNamespace, "datacentre", v1alpha1.NetworkPoolSpec{
		CIDR: "10.40.0.0/20", Gateway: "10.40.0.1", Reserved: []v1alpha1.ReservedRange{{Addresses: "10.40.0.2-10.40.0.31"}, {Addresses: "10.40.15.0/25"}},
	})
	next, end := netip.MustParseAddr("10.40.0.32"), netip.MustParseAddr("10.40.11.40")
	for i := 0; next.Less(end); i++ {
		cluster := fmt.Sprintf("prod-%02d", i/60)
		claim := grants.TakenRange{Namespace: defaultNamespace, Name: fmt.Sprintf("%s-md-0-%05d", cluster, random.IntN(100000)), Cluster: cluster}
		switch n := random.IntN(100); {
		case n < 4:
			last := next
			for range 7 {
				last = last.Next()
			}
			kind, use := "-lb", grants.UseLoadBalancer
			if n == 0 {
				kind, use = "-nodes", grants.UseNodes
			}
			p.AddRangeEntry(netipx.IPRangeFrom(next, last), grants.TakenRange{Use: use, Kind: "IPAllocation", Namespace: defaultNamespace, Name: cluster + kind, Cluster: cluster})
			next = last
		case n < 12: // free
		case n < 14:
			p.AddRangeEntry(singleRange(next), grants.TakenRange{Use: grants.UseCooling, Namespace: defaultNamespace, Name: claim.Name, Until: Noon.Add(time.Minute)})
		default:
			p.AddRangeEntry(singleRange(next), claim)
		}
		next = next.Next()
	}
	p.AddEntry("10.40.12.0/32", grants.TakenRange{Use: grants.UseConflict, Kind: "IPAddressClaim", Namespace: defaultNamespace, Name: "prod-01-cp-0", OtherOwners: []string{"IPAddress default/by-hand"}})
	p.AddEntry("10.40.12.1/32", grants.TakenRange{Use: grants.UseOrphan, Kind: "IPAddress", Namespace: defaultNamespace, Name: "by-hand-2"})
	p.AddEntry("10.40.12.2/32", grants.TakenRange{Namespace: defaultNamespace, Name: MarkupName})
	p.AddEntry("10.40.12.16/28", grants.TakenRange{Use: grants.UsePreAllocated, Name: "bastion"})
	p.AddEntry("10.40.12.64/27", grants.TakenRange{Use: grants.UseHeld, Namespace: defaultNamespace, Name: "moved-away"})
	p.Counts.LargestFree = 637
	return p.addRisingHistory(0.45)
}

// newLargePool returns a /15 in which 100,000 claims have an address.
func newLargePool(random *rand.Rand) *Pool {
	p := MakePool("fleet", "machines", v1alpha1.NetworkPoolSpec{CIDR: "10.64.0.0/15", Gateway: "10.64.0.1"})
	next := netip.MustParseAddr("10.64.0.2")
	for i := range 100_000 {
		cluster := fmt.Sprintf("edge-%04d", i/100)
		p.AddRangeEntry(singleRange(next), grants.TakenRange{Namespace: "fleet", Name: fmt.Sprintf("%s-worker-%05d", cluster, i), Cluster: cluster})
		if next = next.Next(); random.IntN(40) == 0 {
			next = next.Next()
		}
	}
	p.Counts.LargestFree = 28_000
	return p.addRisingHistory(0.7)
}

// newIPv6Pool returns an IPv6 pool for the first machines of the large pool.
func newIPv6Pool() *Pool {
	p := MakePool("fleet", "machines-v6", v1alpha1.NetworkPoolSpec{CIDR: "fd00:64::/112", Gateway: "fe80::1"})
	next := netip.MustParseAddr("fd00:64::1")
	for i := range 250 {
		cluster := fmt.Sprintf("edge-%04d", i/100)
		p.AddRangeEntry(singleRange(next), grants.TakenRange{Namespace: "fleet", Name: fmt.Sprintf("%s-md-%05d-v6", cluster, i), Cluster: cluster})
		next = next.Next()
	}
	return p.addRisingHistory(0.5)
}

func newExhaustedPool() *Pool {
	p := MakePool("team-a", "services", v1alpha1.NetworkPoolSpec{Addresses: []string{"192.0.2.64-192.0.2.127"}})
	p.AddEntry("192.0.2.64/26", grants.TakenRange{Use: grants.UseLoadBalancer, Kind: "IPAllocation", Namespace: "team-a", Name: "default-shop-lb", Cluster: "shop"})
	for i := range 3 {
		p.AddWaiter(grants.WaitingClaimant{
			Kind: "IPAddressClaim", Namespace: "team-a", Name: fmt.Sprintf("shop-md-0-%d", i), Cluster: "shop", Since: Noon.Add(-time.Hour),
			Reason: "PoolExhausted", Message: "no free address: NetworkPool team-a/services has 0 of 64 available",
		})
	}
	p.Counts.LargestFree = 0
	return p.addRisingHistory(0.5)
}

func newPrefixPool() *Pool {
	length := int32(64)
	p := MakePool("", "pod-prefixes", v1alpha1.NetworkPoolSpec{CIDR: "fd00:40::/52", AllocationPrefixLength: &length})
	for i := range 9 {
		p.AddEntry(fmt.Sprintf("fd00:40:0:%x::/64", i), grants.TakenRange{Namespace: defaultNamespace, Name: fmt.Sprintf("pods-%d", i), Cluster: fmt.Sprintf("prod-%02d", i)})
	}
	return p
}

func newHugePool() *Pool {
	p := MakePool("", "v6-hosts", v1alpha1.NetworkPoolSpec{CIDR: "fd00:41::/64"})
	p.AddEntry("fd00:41::1-fd00:41::9", grants.TakenRange{Namespace: defaultNamespace, Name: "hosts"})
	return p.MarkNotReady("Overlap", "GlobalNetworkPool other has fd00:41::/64 too; the younger of the two pools grants nothing")
}

// newCarvedPools returns a pool, and two pools that have blocks of it.
func newCarvedPools() []*Pool {
	site := MakePool("", "site", v1alpha1.NetworkPoolSpec{CIDR: "10.48.0.0/22", AllocateReservedIPAddresses: true})
	team := func(name string, used int, blocks ...string) *Pool {
		p := MakePool(name, "machines", v1alpha1.NetworkPoolSpec{Addresses: blocks, AllocateReservedIPAddresses: true})
		p.ParentKey = site.Key
		for i, block := range blocks {
			site.AddEntry(block, grants.TakenRange{
				Use: grants.UseCarved, Kind: v1alpha1.IPAllocationKind, Namespace: name, Name: fmt.Sprintf("machines-%d", i+1),
			})
			next := netip.MustParsePrefix(block).Addr()
			for n := range min(used, 64) {
				p.AddRangeEntry(singleRange(next), ClaimEntry(name, fmt.Sprintf("md-%d-%02d", i, n)))
				next, used = next.Next(), used-1
			}
		}
		return p.addRisingHistory(0.4)
	}
	const largest = 512
	site.Counts.LargestFree = largest
	return []*Pool{site, team("team-a", 91, "10.48.0.0/26", "10.48.0.64/26"), team("team-b", 12, "10.48.0.128/26")}
}

// addRisingHistory adds samples of rising usage to the pool, from a share of its current usage up to that.
func (p *Pool) addRisingHistory(from float64) *Pool {
	since, until := Pools(nil).TimeSpan()
	now := float64(p.Counts.Allocated)
	const samples = 400
	for i := range samples {
		at := float64(i) / (samples - 1)
		used := now * (from + (1-from)*at + 0.06*math.Sin(14*at)*(1-at))
		p.Samples = append(p.Samples, usage.Sample{
			UnixSeconds: since.Unix() + int64(at*until.Sub(since).Seconds()), Used: int64(used), Total: p.Counts.Total,
		})
	}
	p.Samples[samples-1].Used = p.Counts.Allocated
	return p
}

// newLeasePool returns a pool for leases: one that a host announces, one that is not announced, one without a
// Service, one that is being deleted, one with more ports than the page shows, and one that waits.
func newLeasePool() *Pool {
	quota := int32(2)
	p := MakePool("", "public", v1alpha1.NetworkPoolSpec{CIDR: "203.0.113.0/28", Leases: &v1alpha1.Leases{QuotaPerNamespace: &quota}})
	lease := func(namespace, name string, ports ...string) grants.TakenRange {
		return grants.TakenRange{Use: grants.UseLease, Kind: v1alpha1.IPLeaseKind, Namespace: namespace, Name: name, Ports: ports}
	}
	shop := lease("team-a", "shop", "TCP/80 web", "UDP/53 dns")
	shop.AnnouncedCondition = announcedCondition(metav1.ConditionTrue, v1alpha1.AnnouncedReason, "host edge-1 has the address")
	mail := lease("team-a", "mail", "TCP/25 smtp")
	mail.AnnouncedCondition = announcedCondition(metav1.ConditionFalse, v1alpha1.NoHostReason, "no host that lives has the address; run butler-host-lb on a host that has an address of the network")
	gone := lease("team-b", "old", "TCP/443 web")
	gone.Deleting = true
	var many []string
	for i := range 40 {
		many = append(many, fmt.Sprintf("TCP/%d game-%02d", 7000+i, i))
	}
	p.AddEntry("203.0.113.1", shop).AddEntry("203.0.113.2", mail).AddEntry("203.0.113.3", lease("team-b", MarkupName)).AddEntry("203.0.113.4", gone).
		AddEntry("203.0.113.5", lease("team-c", "games", many...))
	return p.AddWaiter(grants.WaitingClaimant{
		Kind: v1alpha1.IPLeaseKind, Namespace: "team-a", Name: "third", Since: Noon, Reason: v1alpha1.QuotaExceededReason,
		Message: "the leases of namespace team-a have 2 addresses of GlobalNetworkPool public, as many as its spec.leases.quotaPerNamespace allows",
	})
}

func announcedCondition(status metav1.ConditionStatus, reason, message string) *metav1.Condition {
	return &metav1.Condition{Type: v1alpha1.AnnouncedCondition, Status: status, Reason: reason, Message: message}
}
