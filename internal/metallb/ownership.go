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

// isWritable reports whether an object is ours to write. An object of another owner is not, unless it was handed over
// (ADR 30).
func isWritable(o client.Object) bool { return balancer.IsManaged(o) || balancer.IsHandedOver(o) }

// foreignObjectMessage describes an object of another owner that has the name of ours, and what to do about it.
func foreignObjectMessage(kind string, o client.Object, taken string) string {
	return fmt.Sprintf("%s %s/%s in the Cluster was created by another owner (%s) and is not changed; give it another name, "+
		"or hand it over with kubectl annotate %s -n %s %s %s=true in the Cluster: %s",
		kind, Namespace, o.GetName(), balancer.DescribeManagers(o), strings.ToLower(kind), Namespace, o.GetName(), v1alpha1.HandOverAnnotation, taken)
}

// ForeignPool describes an IPAddressPool of another owner that has one of these names, and what to do; empty if there
// is none.
func (o *ObservedCluster) ForeignPool(names ...string) string {
	for _, name := range names {
		if p := o.findPool(name); p != nil && !isWritable(p) {
			return foreignObjectMessage("IPAddressPool", p, "the blocks of the Cluster then replace its addresses")
		}
	}
	return ""
}

// DescribeForeignAdvertisement describes an L2Advertisement of another owner that has the name of ours and does not
// announce the pools of blocks; empty if there is none.
func (o *ObservedCluster) DescribeForeignAdvertisement(shown []elastic.DesiredPool) string {
	if a := o.advertisement; a == nil || len(shown) == 0 || advertisesPools(a, shown) || isWritable(a) {
		return ""
	}
	return foreignObjectMessage("L2Advertisement", o.advertisement, "it then announces the blocks of the Cluster")
}

// advertisesPools reports whether an L2Advertisement announces the pools of blocks: by our label, as ours does, or,
// if it belongs to another owner, because it selects all pools or names these.
func advertisesPools(a *metallbv1beta1.L2Advertisement, shown []elastic.DesiredPool) bool {
	switch {
	case a.DeletionTimestamp != nil:
		return false
	case slices.ContainsFunc(a.Spec.IPAddressPoolSelectors, func(s metav1.LabelSelector) bool {
		return s.MatchLabels[balancer.ManagedByLabel] == balancer.ManagedByValue
	}):
		return true
	case balancer.IsManaged(a):
		return false
	case len(a.Spec.IPAddressPools)+len(a.Spec.IPAddressPoolSelectors) == 0:
		return true
	}
	return !slices.ContainsFunc(shown, func(d elastic.DesiredPool) bool { return !slices.Contains(a.Spec.IPAddressPools, d.Name) })
}
