package metal3

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	m3ipamv1 "github.com/metal3-io/ip-address-manager/api/v1alpha1"
	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// translation is a spec of ours that is made from an IPPool's, and what is to be said of it.
type translation struct {
	out             v1alpha1.NetworkPoolSpec
	notes, problems []string
}

// network is what the addresses of one range get along.
type network struct {
	prefix  int32
	gateway v1alpha1.Address
}

// part is one range of the pool.
type part struct {
	field string
	netipx.IPRange
	network
}

// Translate writes the spec of an IPPool as one of ours. Notes are what is not taken over, or means something else here;
// problems what stands in the way: with any of them the result is not to be used.
func Translate(pool *unstructured.Unstructured) (out v1alpha1.NetworkPoolSpec, notes, problems []string) {
	t := &translation{}
	s, ok := t.read(pool)
	if !ok {
		return t.out, t.notes, t.problems
	}
	var parts []part
	if len(s.Pools) == 0 {
		t.problemf("it has no pools")
	}
	for i := range s.Pools {
		if p, ok := t.part(s, i); ok {
			parts = append(parts, p)
		}
	}
	for _, p := range parts {
		t.out.Addresses = append(t.out.Addresses, poolutil.ShowRange(p.IPRange))
	}
	t.networks(parts)
	t.preAllocations(s)
	t.aside(s)
	if len(t.problems) == 0 {
		_, errs := poolspec.Compile(&t.out)
		for _, err := range errs {
			t.problemf("this provider cannot serve this spec: %v", err)
		}
	}
	return t.out, t.notes, t.problems
}

// read reads a spec, and nothing that is not known: a field of a later version may be about what is handed out.
func (t *translation) read(pool *unstructured.Unstructured) (*m3ipamv1.IPPoolSpec, bool) {
	spec, _, err := unstructured.NestedMap(pool.Object, "spec")
	if err != nil {
		t.problemf("%v", err)
		return nil, false
	}
	if order := spec[strategy]; order != nil {
		delete(spec, strategy)
		if order != inOrder {
			t.notef("%s %v is not taken over: addresses are given in their order", strategy, order)
		}
	}
	out := &m3ipamv1.IPPoolSpec{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(spec, out, true); err != nil {
		t.problemf("this import knows the fields of Metal3's IPAM v1.13, and not all of this spec: %v", err)
		return nil, false
	}
	return out, true
}

// The order in which Metal3's IPAM gives addresses, a field of versions after v1.13, and its default.
const (
	strategy = "allocationStrategy"
	inOrder  = "sequential"
)

func (t *translation) problemf(format string, args ...any) {
	t.problems = append(t.problems, fmt.Sprintf(format, args...))
}

func (t *translation) notef(format string, args ...any) {
	t.notes = append(t.notes, fmt.Sprintf(format, args...))
}

// part reads a range as Metal3's IPAM counts through it: from start as far as end and subnet allow, or, without start,
// from the address after the one that subnet is written with, whatever end says.
func (t *translation) part(s *m3ipamv1.IPPoolSpec, i int) (part, bool) {
	in, field := s.Pools[i], fmt.Sprintf("spec.pools[%d]", i)
	var first, last netip.Addr
	var subnet netip.Prefix
	if in.Subnet != nil {
		var err error
		if subnet, err = netip.ParsePrefix(string(*in.Subnet)); err != nil {
			t.problemf("%s.subnet: %v", field, err)
			return part{}, false
		}
		first, last = subnet.Addr().Next(), netipx.PrefixLastIP(subnet)
	}
	if in.Start != nil {
		first = t.address(field+".start", *in.Start)
	}
	if in.End != nil && in.Start != nil {
		if end := t.address(field+".end", *in.End); !last.IsValid() || end.Less(last) {
			last = end
		}
	}
	switch {
	case !first.IsValid():
		t.problemf("%s has neither start nor subnet", field)
	case !last.IsValid():
		t.problemf("%s has neither end nor subnet, so it has no last address", field)
	case subnet.IsValid() && !subnet.Contains(first):
		t.problemf("%s has no address: %s, where it begins, is not in its subnet", field, first)
	case first.BitLen() != last.BitLen() || last.Less(first):
		t.problemf("%s has no address: it goes from %s to %s", field, first, last)
	default:
		p := part{field: field, IPRange: netipx.IPRangeFrom(first, last)}
		p.prefix = t.prefix(s, in, field)
		if gateway := ptr.Deref(in.Gateway, ptr.Deref(s.Gateway, "")); gateway != "" {
			p.gateway = t.address(field+".gateway", gateway).String()
		}
		return p, true
	}
	return part{}, false
}

// prefix is the length that addresses of a range get; 0: none is known.
func (t *translation) prefix(s *m3ipamv1.IPPoolSpec, in m3ipamv1.Pool, field string) int32 {
	if length := cmp.Or(in.Prefix, s.Prefix); length != 0 || in.Subnet == nil {
		return int32(min(length, 1+netip.IPv6Unspecified().BitLen())) // Compile refuses what is too long
	}
	length := netip.MustParsePrefix(string(*in.Subnet)).Bits() // it has been parsed
	t.notef("%s has no prefix: its new addresses get that of its subnet, %d", field, length)
	return int32(length)
}

func (t *translation) address(field string, text m3ipamv1.IPAddressStr) netip.Addr {
	ip, err := netip.ParseAddr(string(text))
	if err != nil {
		t.problemf("%s: %v", field, err)
	}
	return ip.Unmap()
}

// networks says which prefix and gateway addresses get: once where all ranges agree, else for the network of each.
func (t *translation) networks(parts []part) {
	if len(parts) == 0 {
		return
	}
	if !slices.ContainsFunc(parts, func(p part) bool { return p.network != parts[0].network }) {
		if t.out.Gateway = parts[0].gateway; parts[0].prefix != 0 {
			t.out.Prefix = ptr.To(parts[0].prefix)
		}
		return
	}
	gateways := map[v1alpha1.Prefix]part{}
	for _, p := range parts {
		if p.prefix == 0 {
			t.problemf("%s has no prefix, and others have: the network of its addresses is not known", p.field)
			continue
		}
		subnet, err := p.From().Prefix(int(p.prefix))
		if err != nil || !subnet.Contains(p.To()) {
			t.problemf("%s is in more than one network of the length %d, which other ranges do not have", p.field, p.prefix)
			continue
		}
		cidr := subnet.String()
		if other, known := gateways[cidr]; known && other.gateway != p.gateway {
			t.problemf("%s and %s have different gateways in %s: a pool of this provider has one in each network", other.field, p.field, cidr)
		} else if !known {
			t.out.Subnets = append(t.out.Subnets, v1alpha1.Subnet{CIDR: cidr, Gateway: p.gateway})
		}
		gateways[cidr] = p
	}
}

func (t *translation) preAllocations(s *m3ipamv1.IPPoolSpec) {
	for _, name := range slices.Sorted(maps.Keys(s.PreAllocations)) {
		if t.out.PreAllocations == nil {
			t.out.PreAllocations = v1alpha1.PreAllocations{}
			t.notef("preAllocations are for claims of the same names here; CAPM3 names the claims of another Metal3DataTemplate differently")
		}
		t.out.PreAllocations[name] = t.address(fmt.Sprintf("spec.preAllocations[%s]", name), s.PreAllocations[name]).String()
	}
}

// aside is what has no counterpart.
func (t *translation) aside(s *m3ipamv1.IPPoolSpec) {
	if len(s.DNSServers) > 0 || slices.ContainsFunc(s.Pools, func(p m3ipamv1.Pool) bool { return len(p.DNSServers) > 0 }) {
		t.notef("dnsServers are not taken over: write them into networkData.services.dns of the new Metal3DataTemplates")
	}
	if s.ClusterName != nil {
		t.notef("clusterName is not taken over: the new pool stays when Cluster %s is deleted", *s.ClusterName)
	}
}
