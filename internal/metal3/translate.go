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

// translation is a spec of ours that is made from an IPPool, with its notes and problems.
type translation struct {
	spec            v1alpha1.NetworkPoolSpec
	notes, problems []string
}

// network has the prefix length and the gateway of the addresses of one range.
type network struct {
	prefix  int32
	gateway v1alpha1.Address
}

// poolRange is one range of the pool.
type poolRange struct {
	fieldPath string
	netipx.IPRange
	network
}

// ToNetworkPoolSpec translates the spec of an IPPool to one of ours. Notes list what is not translated, or has another
// meaning here; problems list the obstacles. With any problem the result must not be used.
func ToNetworkPoolSpec(pool *unstructured.Unstructured) (out v1alpha1.NetworkPoolSpec, notes, problems []string) {
	t := &translation{}
	s, ok := t.parseSpec(pool)
	if !ok {
		return t.spec, t.notes, t.problems
	}
	var parts []poolRange
	if len(s.Pools) == 0 {
		t.addProblemf("it has no pools")
	}
	for i := range s.Pools {
		if p, ok := t.parseRange(s, i); ok {
			parts = append(parts, p)
		}
	}
	for _, p := range parts {
		t.spec.Addresses = append(t.spec.Addresses, poolutil.ShowRange(p.IPRange))
	}
	t.setNetworks(parts)
	t.setPreAllocations(s)
	t.noteUnsupported(s)
	if len(t.problems) == 0 {
		_, errs := poolspec.Compile(&t.spec)
		for _, err := range errs {
			t.addProblemf("this provider cannot serve this spec: %v", err)
		}
	}
	return t.spec, t.notes, t.problems
}

// parseSpec decodes a spec. Unknown fields are a problem: a field of a later version may change what is handed out.
func (t *translation) parseSpec(pool *unstructured.Unstructured) (*m3ipamv1.IPPoolSpec, bool) {
	spec, _, err := unstructured.NestedMap(pool.Object, "spec")
	if err != nil {
		t.addProblemf("%v", err)
		return nil, false
	}
	if order := spec[strategyField]; order != nil {
		delete(spec, strategyField)
		if order != sequentialStrategy {
			t.addNotef("%s %v is not taken over: addresses are given in their order", strategyField, order)
		}
	}
	out := &m3ipamv1.IPPoolSpec{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(spec, out, true); err != nil {
		t.addProblemf("this import knows the fields of Metal3's IPAM v1.13, and not all of this spec: %v", err)
		return nil, false
	}
	return out, true
}

// strategyField is the field for the order in which Metal3's IPAM assigns addresses, in versions after v1.13;
// sequentialStrategy is its default.
const (
	strategyField      = "allocationStrategy"
	sequentialStrategy = "sequential"
)

func (t *translation) addProblemf(format string, args ...any) {
	t.problems = append(t.problems, fmt.Sprintf(format, args...))
}

func (t *translation) addNotef(format string, args ...any) {
	t.notes = append(t.notes, fmt.Sprintf(format, args...))
}

// parseRange parses a range as Metal3's IPAM counts through it: from start as far as end and subnet allow, or, without
// start, from the address after the one in subnet, whatever end is.
func (t *translation) parseRange(s *m3ipamv1.IPPoolSpec, i int) (poolRange, bool) {
	in, field := s.Pools[i], fmt.Sprintf("spec.pools[%d]", i)
	var first, last netip.Addr
	var subnet netip.Prefix
	if in.Subnet != nil {
		var err error
		if subnet, err = netip.ParsePrefix(string(*in.Subnet)); err != nil {
			t.addProblemf("%s.subnet: %v", field, err)
			return poolRange{}, false
		}
		first, last = subnet.Addr().Next(), netipx.PrefixLastIP(subnet)
	}
	if in.Start != nil {
		first = t.parseAddress(field+".start", *in.Start)
	}
	if in.End != nil && in.Start != nil {
		if end := t.parseAddress(field+".end", *in.End); !last.IsValid() || end.Less(last) {
			last = end
		}
	}
	switch {
	case !first.IsValid():
		t.addProblemf("%s has neither start nor subnet", field)
	case !last.IsValid():
		t.addProblemf("%s has neither end nor subnet, so it has no last address", field)
	case subnet.IsValid() && !subnet.Contains(first):
		t.addProblemf("%s has no address: %s, where it begins, is not in its subnet", field, first)
	case first.BitLen() != last.BitLen() || last.Less(first):
		t.addProblemf("%s has no address: it goes from %s to %s", field, first, last)
	default:
		p := poolRange{fieldPath: field, IPRange: netipx.IPRangeFrom(first, last)}
		p.prefix = t.prefixLength(s, in, field)
		if gateway := ptr.Deref(in.Gateway, ptr.Deref(s.Gateway, "")); gateway != "" {
			p.gateway = t.parseAddress(field+".gateway", gateway).String()
		}
		return p, true
	}
	return poolRange{}, false
}

// prefixLength returns the prefix length for addresses of a range; 0 where none is known.
func (t *translation) prefixLength(s *m3ipamv1.IPPoolSpec, in m3ipamv1.Pool, field string) int32 {
	if length := cmp.Or(in.Prefix, s.Prefix); length != 0 || in.Subnet == nil {
		return int32(min(length, 1+netip.IPv6Unspecified().BitLen())) // Compile refuses what is too long
	}
	length := netip.MustParsePrefix(string(*in.Subnet)).Bits() // parseRange has validated it
	t.addNotef("%s has no prefix: its new addresses get that of its subnet, %d", field, length)
	return int32(length)
}

func (t *translation) parseAddress(field string, text m3ipamv1.IPAddressStr) netip.Addr {
	ip, err := netip.ParseAddr(string(text))
	if err != nil {
		t.addProblemf("%s: %v", field, err)
	}
	return ip.Unmap()
}

// setNetworks sets the prefix and the gateway of addresses: once where all ranges agree, else in a subnet for each
// network.
func (t *translation) setNetworks(parts []poolRange) {
	if len(parts) == 0 {
		return
	}
	if !slices.ContainsFunc(parts, func(p poolRange) bool { return p.network != parts[0].network }) {
		if t.spec.Gateway = parts[0].gateway; parts[0].prefix != 0 {
			t.spec.Prefix = ptr.To(parts[0].prefix)
		}
		return
	}
	gateways := map[v1alpha1.Prefix]poolRange{}
	for _, p := range parts {
		if p.prefix == 0 {
			t.addProblemf("%s has no prefix, and others have: the network of its addresses is not known", p.fieldPath)
			continue
		}
		subnet, err := p.From().Prefix(int(p.prefix))
		if err != nil || !subnet.Contains(p.To()) {
			t.addProblemf("%s is in more than one network of the length %d, which other ranges do not have", p.fieldPath, p.prefix)
			continue
		}
		cidr := subnet.String()
		if other, known := gateways[cidr]; known && other.gateway != p.gateway {
			t.addProblemf("%s and %s have different gateways in %s: a pool of this provider has one in each network", other.fieldPath, p.fieldPath, cidr)
		} else if !known {
			t.spec.Subnets = append(t.spec.Subnets, v1alpha1.Subnet{CIDR: cidr, Gateway: p.gateway})
		}
		gateways[cidr] = p
	}
}

func (t *translation) setPreAllocations(s *m3ipamv1.IPPoolSpec) {
	for _, name := range slices.Sorted(maps.Keys(s.PreAllocations)) {
		if t.spec.PreAllocations == nil {
			t.spec.PreAllocations = v1alpha1.PreAllocations{}
			t.addNotef("preAllocations are for claims of the same names here; CAPM3 names the claims of another Metal3DataTemplate differently")
		}
		t.spec.PreAllocations[name] = t.parseAddress(fmt.Sprintf("spec.preAllocations[%s]", name), s.PreAllocations[name]).String()
	}
}

// noteUnsupported adds a note for each field that has no counterpart.
func (t *translation) noteUnsupported(s *m3ipamv1.IPPoolSpec) {
	if len(s.DNSServers) > 0 || slices.ContainsFunc(s.Pools, func(p m3ipamv1.Pool) bool { return len(p.DNSServers) > 0 }) {
		t.addNotef("dnsServers are not taken over: write them into networkData.services.dns of the new Metal3DataTemplates")
	}
	if s.ClusterName != nil {
		t.addNotef("clusterName is not taken over: the new pool stays when Cluster %s is deleted", *s.ClusterName)
	}
}
