package incluster

import (
	"fmt"
	"net/netip"
	"strings"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

const (
	// GatewayAnnotation of a mirror has Mirror.Gateway.
	GatewayAnnotation = "butler.butlerlabs.dev/in-cluster-gateway"
	// ProblemAnnotation of a mirror gives the reason why the mirror does not have the current spec of its source pool.
	ProblemAnnotation = "butler.butlerlabs.dev/in-cluster-problem"
)

// Mirror is the specification of a pool of ours that serves in the place of a pool of the in-cluster provider.
type Mirror struct {
	Spec v1alpha1.NetworkPoolSpec
	// Gateway is the gateway of IPAddresses where the spec has none: for the in-cluster provider it may be any address,
	// and for a pool of ours it must be in a network of the pool.
	Gateway string
	// Notes list the fields that are expressed differently, with the same meaning.
	Notes []string
}

// MirrorForPool returns the mirror of a pool. It hands out exactly what the in-cluster provider would. AllowOverlap is
// set, as pools of that provider may overlap: it has no concept of networks. It returns an error where the pool cannot
// be mirrored.
func MirrorForPool(k PoolKind, pool *unstructured.Unstructured) (*Mirror, error) {
	var in struct {
		Spec Spec `json:"spec"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(pool.Object, &in); err != nil {
		return nil, fmt.Errorf("this pool is not served: reading its spec: %w", err)
	}
	out, problems := in.Spec.toMirror(k.IsPrefixPool)
	if len(problems) > 0 {
		return nil, fmt.Errorf("this pool is not served: %s", strings.Join(problems, "; "))
	}
	out.Spec.AllowOverlap = true
	return out, nil
}

// toMirror is MirrorForPool for a spec; it returns the problems of the translation.
func (s Spec) toMirror(prefixes bool) (*Mirror, []string) {
	out := &Mirror{}
	if prefixes {
		out.Gateway = s.Gateway
	} else {
		s.excludeReservedEdges()
	}
	var problems []string
	out.Spec, out.Notes, problems = s.ToNetworkPoolSpec(prefixes)
	if far := s; len(problems) > 0 && !prefixes && far.excludeGateway() {
		if spec, notes, others := far.ToNetworkPoolSpec(false); len(others) == 0 {
			return &Mirror{Spec: spec, Gateway: s.Gateway, Notes: notes}, nil
		}
	}
	return out, problems
}

// excludeReservedEdges excludes the addresses that the in-cluster provider reserves unless AllocateReservedIPAddresses
// is set: the first address of the network that contains the lowest address of the pool, and in IPv4 also the last one.
// That provider reserves them in that network alone, however small it is.
func (s *Spec) excludeReservedEdges() {
	declared, _, problems := parseRanges(s.Addresses, "addresses")
	all := declared.Ranges()
	if s.AllocateReservedIPAddresses || len(problems) > 0 || len(all) == 0 {
		return
	}
	network, err := all[0].From().Prefix(int(s.Prefix))
	if err != nil {
		return // the translation reports it
	}
	s.AllocateReservedIPAddresses = true
	edges := []netip.Addr{network.Addr()}
	if network.Addr().Is4() {
		edges = append(edges, netipx.PrefixLastIP(network))
	}
	s.excludeAddresses(declared, edges...)
}

// excludeGateway clears the gateway of a spec and excludes its address. It reports whether there was a gateway of the
// family of the pool.
func (s *Spec) excludeGateway() bool {
	gateway, err := netip.ParseAddr(s.Gateway)
	declared, _, _ := parseRanges(s.Addresses, "addresses")
	if all := declared.Ranges(); err != nil || len(all) == 0 || all[0].From().BitLen() != gateway.BitLen() {
		return false
	}
	s.Gateway = ""
	s.excludeAddresses(declared, gateway.WithZone(""))
	return true
}

// excludeAddresses excludes those addresses that are declared and not excluded yet.
func (s *Spec) excludeAddresses(declared *netipx.IPSet, addresses ...netip.Addr) {
	excluded, _, _ := parseRanges(s.ExcludedAddresses, "excludedAddresses")
	s.ExcludedAddresses = s.ExcludedAddresses[:len(s.ExcludedAddresses):len(s.ExcludedAddresses)]
	for _, a := range addresses {
		if declared.Contains(a) && !excluded.Contains(a) {
			s.ExcludedAddresses = append(s.ExcludedAddresses, a.String())
		}
	}
}
