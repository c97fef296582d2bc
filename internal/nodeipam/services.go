package nodeipam

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"sync"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// defaultServiceCIDR is the ServiceCIDR that the API server creates at its start.
const defaultServiceCIDR = "kubernetes"

// ServiceCIDRPrefixes returns the CIDRs of ServiceCIDRs, first those of the object that the API server creates at its
// start: its first CIDR is of the family that Services get by default. The others are in the order of their names.
func ServiceCIDRPrefixes(all []networkingv1.ServiceCIDR) []netip.Prefix {
	rank := func(s networkingv1.ServiceCIDR) int {
		if s.Name == defaultServiceCIDR {
			return 0
		}
		return 1
	}
	slices.SortFunc(all, func(a, b networkingv1.ServiceCIDR) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Name, b.Name))
	})
	var out []netip.Prefix
	for i := range all {
		out = append(out, ParsePrefixes(all[i].Spec.CIDRs)...)
	}
	return out
}

// ParsePrefixes returns the texts that are CIDRs, parsed and masked.
func ParsePrefixes(texts []string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}

// ServiceCIDRStore stores the ServiceCIDRs of a cluster, and is updated by a feed.
type ServiceCIDRStore struct {
	clusterKey ClusterKey
	mu         sync.Mutex
	byUID      map[types.UID]networkingv1.ServiceCIDR
}

// NewServiceCIDRStore returns an empty store for the ServiceCIDRs of a cluster.
func NewServiceCIDRStore(of ClusterKey) *ServiceCIDRStore {
	return &ServiceCIDRStore{clusterKey: of, byUID: map[types.UID]networkingv1.ServiceCIDR{}}
}

// Prefixes returns the CIDRs of the known ServiceCIDRs, in the order of ServiceCIDRPrefixes.
func (s *ServiceCIDRStore) Prefixes() []netip.Prefix {
	s.mu.Lock()
	defer s.mu.Unlock()
	return ServiceCIDRPrefixes(slices.Collect(maps.Values(s.byUID)))
}

// ObserveObject records a ServiceCIDR as it was seen, and reports whether the cluster has to be reconciled, as its
// CIDRs have changed.
func (s *ServiceCIDRStore) ObserveObject(o client.Object) (ClusterKey, bool) {
	observed, ok := o.(*networkingv1.ServiceCIDR)
	if !ok {
		return s.clusterKey, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, known := s.byUID[observed.UID]
	s.byUID[observed.UID] = *observed
	return s.clusterKey, !known || !slices.Equal(old.Spec.CIDRs, observed.Spec.CIDRs)
}

// ForgetObject records the proof that a ServiceCIDR is gone.
func (s *ServiceCIDRStore) ForgetObject(o client.Object) (ClusterKey, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.byUID[o.GetUID()]
	delete(s.byUID, o.GetUID())
	return s.clusterKey, known
}

// ObjectsNotListed forgets the ServiceCIDRs that are not listed, and returns none: this manager writes no ServiceCIDR,
// so no answer to a write is newer than a list, and a list proves that they are gone.
func (s *ServiceCIDRStore) ObjectsNotListed(_ client.Object, listed map[types.UID]struct{}) []client.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.byUID, func(uid types.UID, _ networkingv1.ServiceCIDR) bool {
		_, ok := listed[uid]
		return !ok
	})
	return nil
}
