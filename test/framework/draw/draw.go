// Package draw makes specs from bytes, for fuzzing. The specs are almost valid, so that they get past the first check
// of a parser.
package draw

import (
	"fmt"
	"net/netip"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Source is a sequence of bytes to draw from. Any bytes make a spec; after the last byte, every draw returns its
// first choice.
type Source struct{ bytes []byte }

// NewSource returns a Source of the given bytes.
func NewSource(b []byte) *Source { return &Source{b} }

// Int draws a number in [0, n).
func (d *Source) Int(n int) int {
	if len(d.bytes) == 0 {
		return 0
	}
	b := d.bytes[0]
	d.bytes = d.bytes[1:]
	return int(b) % n
}

// oneOf draws one of its arguments.
func oneOf[T any](d *Source, of ...T) T { return of[d.Int(len(of))] }

// maybeNil draws nil, or a pointer to a drawn value.
func maybeNil[T any](d *Source, draw func() T) *T {
	if d.Int(2) == 0 {
		return nil
	}
	v := draw()
	return &v
}

// oddTexts are texts that are not addresses, or are addresses in another form than expected.
var oddTexts = []string{
	"", " ", "x", "-", "/", "10.0.0", "10.0.0.256", "010.0.0.1", "10.0.0.1 ", "10.0.0.1/", "10.0.0.1/33", "10.0.0.0/024", "10.0.0.9-10.0.0.1", "10.0.0.1-", "-10.0.0.1",
	"10.0.0.1-10.0.0.2-10.0.0.3", "10.0.0.0/24-10.0.1.0/24", "10.0.0.1-fd00::1", "fd00::9-fd00::1", "::ffff:10.0.0.1", "::ffff:10.0.0.0/120", "fe80::1%eth0", "fe80::%eth0/64",
	"FD00::A", "fd00:0::a", "fd00::/129", "fd00::1/64", "१०.०.०.१", "10.0.0.1\n", "1e1.0.0.1", "0x0a.0.0.1", "10.0.0.1/-1", "::/0-1", ":::", "fd00::0.0.0.9",
}

// Address draws an address.
func (d *Source) Address() string {
	switch d.Int(8) {
	case 0, 1, 2:
		return fmt.Sprintf("10.0.%d.%d", d.Int(3), d.Int(256))
	case 3, 4:
		return fmt.Sprintf("fd00::%x", 1+d.Int(255))
	case 5:
		return oneOf(d, "0.0.0.0", "255.255.255.255", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "127.0.0.1", "::1", "fd00:0:0:1::1", "fe80::1")
	case 6:
		return oneOf(d, oddTexts...)
	}
	return "10.0.0.1"
}

// Prefix draws a CIDR.
func (d *Source) Prefix() string {
	text := d.Address()
	a, err := netip.ParseAddr(text)
	if err != nil || d.Int(8) == 7 {
		return text + "/" + fmt.Sprint(d.Int(140))
	}
	p, err := a.Prefix(d.Int(a.BitLen() + 1))
	if err != nil {
		return text
	}
	return p.String()
}

// Range draws a CIDR, a range or a single address.
func (d *Source) Range() string {
	switch d.Int(3) {
	case 0:
		return d.Prefix()
	case 1:
		a, b := d.Address(), d.Address()
		if x, err := netip.ParseAddr(a); err == nil && d.Int(8) != 7 {
			if y, err := netip.ParseAddr(b); err == nil && y.Less(x) {
				a, b = b, a
			}
		}
		return a + "-" + b
	}
	return d.Address()
}

// PoolSpec draws the spec of a pool.
func (d *Source) PoolSpec() *v1alpha1.NetworkPoolSpec {
	s := &v1alpha1.NetworkPoolSpec{}
	if d.Int(4) != 3 {
		s.CIDR = d.Prefix()
	}
	for range d.Int(4) {
		s.Addresses = append(s.Addresses, d.Range())
	}
	for range d.Int(3) {
		n := v1alpha1.Subnet{CIDR: d.Prefix()}
		if d.Int(2) == 1 {
			n.Gateway = d.Address()
		}
		s.Subnets = append(s.Subnets, n)
	}
	s.Prefix = maybeNil(d, func() int32 { return int32(d.Int(140)) - 2 })
	if d.Int(2) == 1 {
		s.Gateway = d.Address()
	}
	for range d.Int(3) {
		s.Reserved = append(s.Reserved, v1alpha1.ReservedRange{Addresses: d.Range()})
	}
	s.TenantAllocation = maybeNil(d, func() v1alpha1.TenantAllocation {
		return v1alpha1.TenantAllocation{Start: d.Address(), End: d.Address(), Defaults: maybeNil(d, func() v1alpha1.AllocationDefaults {
			return v1alpha1.AllocationDefaults{NodesPerTenant: d.drawCount(), LBPoolPerTenant: d.drawCount()}
		})}
	})
	for i := range d.Int(3) {
		if s.PreAllocations == nil {
			s.PreAllocations = v1alpha1.PreAllocations{}
		}
		s.PreAllocations[oneOf(d, "a", "b", "", "A name", "\x00", "ü")+fmt.Sprint(i)] = d.Address()
	}
	s.Network = oneOf(d, "", "rack-7", "Rack 7", "-", "a.b")
	s.AllowOverlap, s.AllocateReservedIPAddresses = d.Int(2) == 1, d.Int(2) == 1
	s.AllocationPrefixLength = maybeNil(d, func() int32 { return int32(d.Int(140)) - 2 })
	s.AddressReuseGracePeriodSeconds = maybeNil(d, func() int64 { return oneOf[int64](d, 0, 60, -1, 2592000, 2592001, 1<<63-1, -1<<63) })
	for i := range s.Subnets {
		if d.Int(3) == 2 {
			s.Subnets[i].FailureDomains = []string{oneOf(d, "zone-a", "zone-b", "", "\x00"), oneOf(d, "zone-a", "zone-c")}
		}
	}
	s.AllocationOrder = oneOf(d, "", v1alpha1.BestFitOrder, v1alpha1.LeastRecentlyUsedOrder, "Random")
	return s
}

// AllocationSpec draws the spec of an IPAllocation.
func (d *Source) AllocationSpec() v1alpha1.IPAllocationSpec {
	return v1alpha1.IPAllocationSpec{
		PoolRef: d.drawPoolRef(), TenantClusterRef: v1alpha1.ClusterReference{Namespace: "ns", Name: oneOf(d, "c", "", "A name")},
		Type:  oneOf(d, v1alpha1.LoadBalancerAllocation, v1alpha1.NodesAllocation, v1alpha1.PodsAllocation, "", "services"),
		Count: maybeNil(d, d.drawCount),
		PinnedRange: maybeNil(d, func() v1alpha1.PinnedRange {
			return v1alpha1.PinnedRange{StartAddress: d.Address(), EndAddress: d.Address()}
		}),
	}
}

// ProviderNetwork draws the network of a ProviderConfig.
func (d *Source) ProviderNetwork() *v1alpha1.ProviderNetwork {
	n := &v1alpha1.ProviderNetwork{Mode: oneOf(d, v1alpha1.IPAMMode, v1alpha1.CloudMode, "", "none"), Subnet: d.Prefix()}
	for range d.Int(4) {
		n.PoolRefs = append(n.PoolRefs, v1alpha1.ProviderPoolReference{PoolReference: d.drawPoolRef(), Priority: d.drawCount()})
	}
	if d.Int(2) == 1 {
		n.Gateway = d.Address()
	}
	for range d.Int(3) {
		n.DNSServers = append(n.DNSServers, d.Address())
	}
	n.LoadBalancer = maybeNil(d, func() v1alpha1.LoadBalancerPool {
		return v1alpha1.LoadBalancerPool{
			AllocationMode: oneOf(d, v1alpha1.ElasticAllocation, v1alpha1.StaticAllocation, "", "x"), Projection: oneOf(d, "", v1alpha1.PoolPerAllocationProjection, "x"),
			DefaultPoolSize: maybeNil(d, d.drawCount), InitialPoolSize: maybeNil(d, d.drawCount), GrowthIncrement: maybeNil(d, d.drawCount),
		}
	})
	n.QuotaPerTenant = maybeNil(d, func() v1alpha1.TenantQuota {
		return v1alpha1.TenantQuota{MaxNodeIPs: maybeNil(d, d.drawCount), MaxLoadBalancerIPs: maybeNil(d, d.drawCount)}
	})
	return n
}

func (d *Source) drawCount() int32 { return oneOf[int32](d, 1, 0, 8, -1, 1<<31-1, -1<<31, 65536, 2) }

func (d *Source) drawPoolRef() v1alpha1.PoolReference {
	return v1alpha1.PoolReference{Kind: oneOf(d, "", v1alpha1.NetworkPoolKind, v1alpha1.GlobalNetworkPoolKind, "InClusterIPPool"), Name: oneOf(d, "p", "q", "", "A name")}
}
