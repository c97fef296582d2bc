package metallb

import (
	"fmt"
	"slices"
	"strings"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// mayWrite reports whether an object is ours to write: nobody else's is, unless it was handed over (ADR 30).
func mayWrite(o client.Object) bool { return balancer.Made(o) || balancer.HandedOver(o) }

// foreign says of an object in whose place ours is to be what to do about it.
func foreign(kind string, o client.Object, taken string) string {
	return fmt.Sprintf("%s %s/%s in the Cluster was made by somebody else (%s), and is left as it is; give it another name, "+
		"or hand it over with kubectl annotate %s -n %s %s %s=true in the Cluster: %s",
		kind, Namespace, o.GetName(), balancer.Maker(o), strings.ToLower(kind), Namespace, o.GetName(), v1alpha1.HandOverAnnotation, taken)
}

// ForeignPool says which IPAddressPool of somebody else has one of these names, and what to do; empty: none has.
func (o *Observed) ForeignPool(names ...string) string {
	for _, name := range names {
		if p := o.find(name); p != nil && !mayWrite(p) {
			return foreign("IPAddressPool", p, "the blocks of the Cluster then replace its addresses")
		}
	}
	return ""
}

// ForeignAdvertisement says that somebody else's L2Advertisement has the name of ours, and does not announce the pools that
// show the blocks; empty: it is not so.
func (o *Observed) ForeignAdvertisement(shown []elastic.Desired) string {
	if a := o.advertisement; a == nil || len(shown) == 0 || advertises(a, shown) || mayWrite(a) {
		return ""
	}
	return foreign("L2Advertisement", o.advertisement, "it then announces the blocks of the Cluster")
}

// advertises reports whether an L2Advertisement announces the pools that show blocks: by our label, as ours does, or, if it
// is somebody else's, because it is for all pools, or names them.
func advertises(a *metallbv1beta1.L2Advertisement, shown []elastic.Desired) bool {
	switch {
	case a.DeletionTimestamp != nil:
		return false
	case slices.ContainsFunc(a.Spec.IPAddressPoolSelectors, func(s metav1.LabelSelector) bool {
		return s.MatchLabels[balancer.ManagedLabel] == balancer.ManagedValue
	}):
		return true
	case balancer.Made(a):
		return false
	case len(a.Spec.IPAddressPools)+len(a.Spec.IPAddressPoolSelectors) == 0:
		return true
	}
	return !slices.ContainsFunc(shown, func(d elastic.Desired) bool { return !slices.Contains(a.Spec.IPAddressPools, d.Name) })
}
