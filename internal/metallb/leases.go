package metallb

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
)

const (
	// LeasesValue is what balancer.ManagedLabel is on the IPAddressPools that show leases. It is not balancer.ManagedValue: a management
	// cluster may be a workload cluster too, which is shown blocks.
	LeasesValue = "butler-leases"
	// LeasesAdvertisement is the L2Advertisement that announces them.
	LeasesAdvertisement = "butler-leases"
	// leasePoolPrefix begins the name of the IPAddressPools of the leases of a namespace.
	leasePoolPrefix = "lease-"
)

// leased is on the Services that are published: others may ask MetalLB for the address of a lease, and get nothing.
var leased = map[string]string{v1alpha1.LeasedLabel: "true"}

// LeasePool is an IPAddressPool that shows leases of a namespace: to its Services, and to those of the other namespaces that
// a selector takes. Leases with one selector are in one pool: both addresses of a Service have to be.
type LeasePool struct {
	Namespace string
	// Others selects them; nil: none.
	Others *metav1.LabelSelector
}

// Name is that of the IPAddressPool. A namespace has no dot in its name.
func (p LeasePool) Name() string {
	name := leasePoolPrefix + p.Namespace
	if p.Others == nil {
		return name
	}
	text, err := json.Marshal(p.Others)
	if err != nil {
		panic(err) // it is strings
	}
	sum := sha256.Sum256(text)
	return name + "." + hex.EncodeToString(sum[:4])
}

// NamespaceOfLeasePool is the namespace whose leases an IPAddressPool shows, by its name; false: it is called otherwise.
func NamespaceOfLeasePool(p *metallbv1beta1.IPAddressPool) (string, bool) {
	rest, is := strings.CutPrefix(p.Name, leasePoolPrefix)
	namespace, _, _ := strings.Cut(rest, ".")
	return namespace, is && p.Namespace == Namespace
}

// LeasePoolOf is what an IPAddressPool that shows leases is for.
func LeasePoolOf(p *metallbv1beta1.IPAddressPool) LeasePool {
	namespace, _ := NamespaceOfLeasePool(p)
	out := LeasePool{Namespace: namespace}
	if to := p.Spec.AllocateTo; to != nil && len(to.NamespaceSelectors) > 0 {
		out.Others = &to.NamespaceSelectors[0]
	}
	return out
}

// ShowsLeases reports whether an IPAddressPool is one of ours that shows leases.
func ShowsLeases(p *metallbv1beta1.IPAddressPool) bool {
	return p.Labels[balancer.ManagedLabel] == LeasesValue
}

// LeasesIn are the addresses of an IPAddressPool that shows leases.
func LeasesIn(p *metallbv1beta1.IPAddressPool) []netip.Addr {
	if !ShowsLeases(p) {
		return nil
	}
	var out []netip.Addr
	for _, text := range p.Spec.Addresses {
		if r, err := rangeOf(text); err == nil && r.From() == r.To() {
			out = append(out, r.From())
		}
	}
	return out
}

// Took reports whether MetalLB says that it has taken an IPAddressPool as it is now, or says nothing of any.
func Took(p *metallbv1beta1.IPAddressPool) bool { return counted(p) }

// HasOthers reports whether an IPAddressPool has more than these addresses, or others.
func HasOthers(p *metallbv1beta1.IPAddressPool, than map[netip.Addr]bool) bool {
	return slices.ContainsFunc(p.Spec.Addresses, func(text string) bool {
		r, err := rangeOf(text)
		return err != nil || r.From() != r.To() || !than[r.From()]
	})
}

func leaseRange(a netip.Addr) string { return a.String() + "-" + a.String() }

// ShowLeases brings an IPAddressPool to have these addresses, and no Services have them but those that it is for. It is
// written as it was observed, or not at all: the error is a conflict then; nil: there was none. It reports whether something
// was written; or that the change waits: MetalLB acknowledges by counting, and an earlier one is not counted yet.
func ShowLeases(ctx context.Context, c client.Client, live client.Reader, pool LeasePool, want []netip.Addr, was *metallbv1beta1.IPAddressPool) (changed, waits bool, err error) {
	ranges := make([]string, 0, len(want))
	for _, a := range slices.SortedFunc(slices.Values(want), netip.Addr.Compare) {
		ranges = append(ranges, leaseRange(a))
	}
	switch {
	case was != nil && !ShowsLeases(was) && len(ranges) > 0:
		return false, false, fmt.Errorf("IPAddressPool %s/%s is not one that shows leases, and has the name of one; give it another name, so that the leases of namespace %s can be shown",
			Namespace, was.Name, pool.Namespace)
	case (was == nil || !ShowsLeases(was)) && len(ranges) == 0:
		return false, false, nil
	case was == nil:
		err := c.Create(ctx, pool.object(ranges), balancer.FieldOwner)
		if apierrors.IsAlreadyExists(err) {
			err = apierrors.NewConflict(metallbv1beta1.GroupVersion.WithResource("ipaddresspools").GroupResource(), pool.Name(), err)
		}
		if err != nil {
			return false, false, fmt.Errorf("creating IPAddressPool %s/%s: %w", Namespace, pool.Name(), err)
		}
		return true, false, nil
	case len(ranges) == 0:
		err := exact.Delete(ctx, c, was)
		if client.IgnoreNotFound(err) != nil {
			return false, false, fmt.Errorf("deleting IPAddressPool %s/%s: %w", Namespace, was.Name, err)
		}
		return true, false, nil
	case pool.is(was, ranges):
		return false, false, nil
	}
	to, wait, err := next(ctx, live, was, ranges)
	if wait || err != nil {
		return false, wait, err // the count of the last change wakes us
	}
	u := pool.object(to)
	u.SetUID(was.UID)
	u.SetResourceVersion(was.ResourceVersion)
	return true, false, balancer.Apply(ctx, c, u)
}

// selectors are those of the namespaces whose Services the pool is for besides.
func (p LeasePool) selectors() []metav1.LabelSelector {
	if p.Others == nil {
		return nil
	}
	return []metav1.LabelSelector{*p.Others}
}

// is reports whether an IPAddressPool is as it is to be.
func (p LeasePool) is(was *metallbv1beta1.IPAddressPool, ranges []string) bool {
	to := was.Spec.AllocateTo
	return slices.Equal(was.Spec.Addresses, ranges) && !ptr.Deref(was.Spec.AutoAssign, true) && !was.Spec.AvoidBuggyIPs && ShowsLeases(was) &&
		to != nil && slices.Equal(to.Namespaces, []string{p.Namespace}) && equality.Semantic.DeepEqual(to.NamespaceSelectors, p.selectors()) &&
		equality.Semantic.DeepEqual(to.ServiceSelectors, []metav1.LabelSelector{{MatchLabels: leased}})
}

// object is what is said of the IPAddressPool. It names a namespace always: nothing selected would mean everybody.
func (p LeasePool) object(ranges []string) *unstructured.Unstructured {
	to := map[string]any{"namespaces": []any{p.Namespace}, "serviceSelectors": []any{map[string]any{"matchLabels": map[string]any{v1alpha1.LeasedLabel: leased[v1alpha1.LeasedLabel]}}}}
	if p.Others != nil {
		selector, err := runtime.DefaultUnstructuredConverter.ToUnstructured(p.Others)
		if err != nil {
			panic(err) // it is strings
		}
		to["namespaceSelectors"] = []any{selector}
	}
	u := object("IPAddressPool", p.Name(), map[string]any{"addresses": list(ranges), "autoAssign": false, "avoidBuggyIPs": false, "serviceAllocation": to})
	u.SetLabels(map[string]string{balancer.ManagedLabel: LeasesValue})
	return u
}

// AdvertiseLeases has MetalLB announce the IPAddressPools that show leases, unless somebody does already.
func AdvertiseLeases(ctx context.Context, c client.Client) error {
	is := &metallbv1beta1.L2Advertisement{}
	err := c.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: LeasesAdvertisement}, is)
	if err == nil || !apierrors.IsNotFound(err) {
		return err
	}
	u := object("L2Advertisement", LeasesAdvertisement, map[string]any{
		"ipAddressPoolSelectors": []any{map[string]any{"matchLabels": map[string]any{balancer.ManagedLabel: LeasesValue}}},
	})
	u.SetLabels(map[string]string{balancer.ManagedLabel: LeasesValue})
	return client.IgnoreAlreadyExists(c.Create(ctx, u, balancer.FieldOwner))
}
