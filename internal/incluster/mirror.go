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
	// GatewayAnnotation of a mirror has the Gateway of a Mirror.
	GatewayAnnotation = "butler.butlerlabs.dev/in-cluster-gateway"
	// ProblemAnnotation of a mirror says why it does not have the spec that its pool has now.
	ProblemAnnotation = "butler.butlerlabs.dev/in-cluster-problem"
)

// Mirror is what a pool of ours hands out in the place of a pool of the in-cluster provider.
type Mirror struct {
	Spec v1alpha1.NetworkPoolSpec
	// Gateway is what IPAddresses name as their gateway where the spec names none: for the in-cluster provider it may
	// be anywhere, and a pool of ours has none but in the networks of its addresses.
	Gateway string
	// Notes are what is written differently and means the same.
	Notes []string
}

// MirrorOfPool returns the mirror of a pool. It hands out what the in-cluster provider would, and nothing else. Pools
// of that may overlap: it knows of no networks.
func MirrorOfPool(k Kind, pool *unstructured.Unstructured) (*Mirror, error) {
	var in struct {
		Spec Spec `json:"spec"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(pool.Object, &in); err != nil {
		return nil, fmt.Errorf("this pool is not served: reading its spec: %w", err)
	}
	out, problems := in.Spec.mirror(k.Prefixes)
	if len(problems) > 0 {
		return nil, fmt.Errorf("this pool is not served: %s", strings.Join(problems, "; "))
	}
	out.Spec.AllowOverlap = true
	return out, nil
}

// mirror is MirrorOfPool for a spec.
func (s Spec) mirror(prefixes bool) (*Mirror, []string) {
	out := &Mirror{}
	if prefixes {
		out.Gateway = s.Gateway
	} else {
		s.keepEdges()
	}
	var problems []string
	out.Spec, out.Notes, problems = s.Translate(prefixes)
	if far := s; len(problems) > 0 && !prefixes && far.leaveGateway() {
		if spec, notes, others := far.Translate(false); len(others) == 0 {
			return &Mirror{Spec: spec, Gateway: s.Gateway, Notes: notes}, nil
		}
	}
	return out, problems
}

// keepEdges excludes what the in-cluster provider keeps where a spec does not say that it may be handed out: the first
// address of the network in which the lowest address of the pool is, and the last one in IPv4. It knows no other
// network, and none that is too small for that.
func (s *Spec) keepEdges() {
	declared, _, problems := ranges(s.Addresses, "addresses")
	all := declared.Ranges()
	if s.AllocateReservedIPAddresses || len(problems) > 0 || len(all) == 0 {
		return
	}
	network, err := all[0].From().Prefix(int(s.Prefix))
	if err != nil {
		return // the translation says so
	}
	s.AllocateReservedIPAddresses = true
	edges := []netip.Addr{network.Addr()}
	if network.Addr().Is4() {
		edges = append(edges, netipx.PrefixLastIP(network))
	}
	s.exclude(declared, edges...)
}

// leaveGateway takes the gateway out of a spec, and out of what is handed out. It reports whether there is one of the
// family of the pool.
func (s *Spec) leaveGateway() bool {
	gateway, err := netip.ParseAddr(s.Gateway)
	declared, _, _ := ranges(s.Addresses, "addresses")
	if all := declared.Ranges(); err != nil || len(all) == 0 || all[0].From().BitLen() != gateway.BitLen() {
		return false
	}
	s.Gateway = ""
	s.exclude(declared, gateway.WithZone(""))
	return true
}

// exclude excludes those of some addresses that are among the declared ones, unless they are already.
func (s *Spec) exclude(declared *netipx.IPSet, addresses ...netip.Addr) {
	excluded, _, _ := ranges(s.ExcludedAddresses, "excludedAddresses")
	s.ExcludedAddresses = s.ExcludedAddresses[:len(s.ExcludedAddresses):len(s.ExcludedAddresses)]
	for _, a := range addresses {
		if declared.Contains(a) && !excluded.Contains(a) {
			s.ExcludedAddresses = append(s.ExcludedAddresses, a.String())
		}
	}
}
