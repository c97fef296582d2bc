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
	// LeasesManagedByValue is the value of balancer.ManagedByLabel on the IPAddressPools of leases. It differs from
	// balancer.ManagedByValue because a management cluster may also be a workload cluster, to which blocks are
	// projected.
	LeasesManagedByValue = "butler-leases"
	// LeasesAdvertisement is the name of the L2Advertisement that announces them.
	LeasesAdvertisement = "butler-leases"
	// leasePoolPrefix is the prefix of the names of the IPAddressPools of leases.
	leasePoolPrefix = "lease-"
)

// leasedLabels are on the Services that are published: other Services may request the address of a lease from
// MetalLB, and get nothing.
var leasedLabels = map[string]string{v1alpha1.LeasedLabel: "true"}

// LeasePool identifies an IPAddressPool with leases of a namespace: for its Services, and for those of other
// namespaces that a selector matches. Leases with the same selector share a pool, because both addresses of a Service
// must be in one pool.
type LeasePool struct {
	Namespace string
	// NamespaceSelector selects the other namespaces; nil means none.
	NamespaceSelector *metav1.LabelSelector
}

// Name returns the name of the IPAddressPool. It is unambiguous because a namespace has no dot in its name.
func (p LeasePool) Name() string {
	name := leasePoolPrefix + p.Namespace
	if p.NamespaceSelector == nil {
		return name
	}
	text, err := json.Marshal(p.NamespaceSelector)
	if err != nil {
		panic(err) // a selector contains only strings
	}
	sum := sha256.Sum256(text)
	return name + "." + hex.EncodeToString(sum[:4])
}

// NamespaceForLeasePool returns the namespace whose leases an IPAddressPool contains, derived from its name; false if
// the name is not one of a lease pool.
func NamespaceForLeasePool(p *metallbv1beta1.IPAddressPool) (string, bool) {
	rest, ok := strings.CutPrefix(p.Name, leasePoolPrefix)
	namespace, _, _ := strings.Cut(rest, ".")
	return namespace, ok && p.Namespace == Namespace
}

// NewLeasePool returns the LeasePool that an IPAddressPool with leases is for.
func NewLeasePool(p *metallbv1beta1.IPAddressPool) LeasePool {
	namespace, _ := NamespaceForLeasePool(p)
	out := LeasePool{Namespace: namespace}
	if to := p.Spec.AllocateTo; to != nil && len(to.NamespaceSelectors) > 0 {
		out.NamespaceSelector = &to.NamespaceSelectors[0]
	}
	return out
}

// IsLeasePool reports whether an IPAddressPool is one of ours that contains leases.
func IsLeasePool(p *metallbv1beta1.IPAddressPool) bool {
	return p.Labels[balancer.ManagedByLabel] == LeasesManagedByValue
}

// LeaseAddresses returns the addresses of an IPAddressPool with leases, nil for another pool.
func LeaseAddresses(p *metallbv1beta1.IPAddressPool) []netip.Addr {
	if !IsLeasePool(p) {
		return nil
	}
	var out []netip.Addr
	for _, text := range p.Spec.Addresses {
		if r, err := parseRange(text); err == nil && r.From() == r.To() {
			out = append(out, r.From())
		}
	}
	return out
}

// IsApplied reports whether MetalLB's count shows that it has applied an IPAddressPool as it is now. It returns true
// for a pool without a count.
func IsApplied(p *metallbv1beta1.IPAddressPool) bool { return isCounted(p) }

// HasOtherAddresses reports whether an IPAddressPool contains any address that is not in than.
func HasOtherAddresses(p *metallbv1beta1.IPAddressPool, than map[netip.Addr]bool) bool {
	return slices.ContainsFunc(p.Spec.Addresses, func(text string) bool {
		r, err := parseRange(text)
		return err != nil || r.From() != r.To() || !than[r.From()]
	})
}

func formatLeaseRange(a netip.Addr) string { return a.String() + "-" + a.String() }

// ApplyLeasePool writes an IPAddressPool with the addresses want, for the Services of pool only. It writes with the
// resourceVersion of current, the observed pool, nil if there was none; if the pool has changed since, the error is a
// conflict. changed reports whether something was written. waits reports that the change has to wait: MetalLB
// acknowledges by counting, and has not counted an earlier change yet.
func ApplyLeasePool(ctx context.Context, c client.Client, live client.Reader, pool LeasePool, want []netip.Addr, current *metallbv1beta1.IPAddressPool) (changed, waits bool, err error) {
	ranges := make([]string, 0, len(want))
	for _, a := range slices.SortedFunc(slices.Values(want), netip.Addr.Compare) {
		ranges = append(ranges, formatLeaseRange(a))
	}
	switch {
	case current != nil && !IsLeasePool(current) && len(ranges) > 0:
		return false, false, fmt.Errorf("IPAddressPool %s/%s is not one that shows leases, and has the name of one; give it another name, so that the leases of namespace %s can be shown",
			Namespace, current.Name, pool.Namespace)
	case (current == nil || !IsLeasePool(current)) && len(ranges) == 0:
		return false, false, nil
	case current == nil:
		err := c.Create(ctx, pool.toUnstructured(ranges), balancer.FieldOwner)
		if apierrors.IsAlreadyExists(err) {
			err = apierrors.NewConflict(metallbv1beta1.GroupVersion.WithResource("ipaddresspools").GroupResource(), pool.Name(), err)
		}
		if err != nil {
			return false, false, fmt.Errorf("creating IPAddressPool %s/%s: %w", Namespace, pool.Name(), err)
		}
		return true, false, nil
	case len(ranges) == 0:
		err := exact.DeleteWithPreconditions(ctx, c, current)
		if client.IgnoreNotFound(err) != nil {
			return false, false, fmt.Errorf("deleting IPAddressPool %s/%s: %w", Namespace, current.Name, err)
		}
		return true, false, nil
	case pool.matchesPool(current, ranges):
		return false, false, nil
	}
	to, wait, err := nextCountableAddresses(ctx, live, current, ranges)
	if wait || err != nil {
		return false, wait, err // the count of the last change triggers a reconcile
	}
	u := pool.toUnstructured(to)
	u.SetUID(current.UID)
	u.SetResourceVersion(current.ResourceVersion)
	return true, false, balancer.ApplyObject(ctx, c, u)
}

// namespaceSelectors returns the selectors of the other namespaces that the pool is for.
func (p LeasePool) namespaceSelectors() []metav1.LabelSelector {
	if p.NamespaceSelector == nil {
		return nil
	}
	return []metav1.LabelSelector{*p.NamespaceSelector}
}

// matchesPool reports whether an IPAddressPool is in its desired state.
func (p LeasePool) matchesPool(current *metallbv1beta1.IPAddressPool, ranges []string) bool {
	to := current.Spec.AllocateTo
	return slices.Equal(current.Spec.Addresses, ranges) && !ptr.Deref(current.Spec.AutoAssign, true) && !current.Spec.AvoidBuggyIPs && IsLeasePool(current) &&
		to != nil && slices.Equal(to.Namespaces, []string{p.Namespace}) && equality.Semantic.DeepEqual(to.NamespaceSelectors, p.namespaceSelectors()) &&
		equality.Semantic.DeepEqual(to.ServiceSelectors, []metav1.LabelSelector{{MatchLabels: leasedLabels}})
}

// toUnstructured returns the applied content of the IPAddressPool. It always names a namespace: without a selection
// the pool would serve every Service.
func (p LeasePool) toUnstructured(ranges []string) *unstructured.Unstructured {
	to := map[string]any{"namespaces": []any{p.Namespace}, "serviceSelectors": []any{map[string]any{"matchLabels": map[string]any{v1alpha1.LeasedLabel: leasedLabels[v1alpha1.LeasedLabel]}}}}
	if p.NamespaceSelector != nil {
		selector, err := runtime.DefaultUnstructuredConverter.ToUnstructured(p.NamespaceSelector)
		if err != nil {
			panic(err) // a selector contains only strings
		}
		to["namespaceSelectors"] = []any{selector}
	}
	u := newObject("IPAddressPool", p.Name(), map[string]any{"addresses": toAnySlice(ranges), "autoAssign": false, "avoidBuggyIPs": false, "serviceAllocation": to})
	u.SetLabels(map[string]string{balancer.ManagedByLabel: LeasesManagedByValue})
	return u
}

// AdvertiseLeases creates the L2Advertisement for the IPAddressPools of leases, unless an object of that name exists.
func AdvertiseLeases(ctx context.Context, c client.Client) error {
	existing := &metallbv1beta1.L2Advertisement{}
	err := c.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: LeasesAdvertisement}, existing)
	if err == nil || !apierrors.IsNotFound(err) {
		return err
	}
	u := newObject("L2Advertisement", LeasesAdvertisement, map[string]any{
		"ipAddressPoolSelectors": []any{map[string]any{"matchLabels": map[string]any{balancer.ManagedByLabel: LeasesManagedByValue}}},
	})
	u.SetLabels(map[string]string{balancer.ManagedByLabel: LeasesManagedByValue})
	return client.IgnoreAlreadyExists(c.Create(ctx, u, balancer.FieldOwner))
}
