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

// firstServices is the ServiceCIDR that the API server makes at its start.
const firstServices = "kubernetes"

// ServicesOf are the CIDRs of ServiceCIDRs, those of the object that the API server makes at its start first: it names
// first what Services get by default. The others are in the order of their names.
func ServicesOf(all []networkingv1.ServiceCIDR) []netip.Prefix {
	rank := func(s networkingv1.ServiceCIDR) int {
		if s.Name == firstServices {
			return 0
		}
		return 1
	}
	slices.SortFunc(all, func(a, b networkingv1.ServiceCIDR) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Name, b.Name))
	})
	var out []netip.Prefix
	for i := range all {
		out = append(out, Prefixes(all[i].Spec.CIDRs)...)
	}
	return out
}

// Prefixes are those of the texts that are CIDRs.
func Prefixes(texts []string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}

// Services is the memory of a feed of the ServiceCIDRs of a site.
type Services struct {
	of    Key
	mu    sync.Mutex
	byUID map[types.UID]networkingv1.ServiceCIDR
}

// NewServices returns the memory of the ServiceCIDRs of a site, which knows none.
func NewServices(of Key) *Services {
	return &Services{of: of, byUID: map[types.UID]networkingv1.ServiceCIDR{}}
}

// Prefixes are the CIDRs of the ServiceCIDRs that are known, in the order of ServicesOf.
func (s *Services) Prefixes() []netip.Prefix {
	s.mu.Lock()
	defer s.mu.Unlock()
	return ServicesOf(slices.Collect(maps.Values(s.byUID)))
}

// Observe takes a ServiceCIDR as it was seen. The site is looked at if its CIDRs are others.
func (s *Services) Observe(o client.Object) (Key, bool) {
	is, ok := o.(*networkingv1.ServiceCIDR)
	if !ok {
		return s.of, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	was, known := s.byUID[is.UID]
	s.byUID[is.UID] = *is
	return s.of, !known || !slices.Equal(was.Spec.CIDRs, is.Spec.CIDRs)
}

// Forget takes the proof that a ServiceCIDR is gone.
func (s *Services) Forget(o client.Object) (Key, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.byUID[o.GetUID()]
	delete(s.byUID, o.GetUID())
	return s.of, known
}

// Beyond forgets the ServiceCIDRs that are not listed: this manager writes none, so no answer to a write is newer than a list,
// and a list proves that they are gone.
func (s *Services) Beyond(_ client.Object, listed map[types.UID]struct{}) []client.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.byUID, func(uid types.UID, _ networkingv1.ServiceCIDR) bool {
		_, is := listed[uid]
		return !is
	})
	return nil
}
