package metallb

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// LeasesValue is what ManagedLabel is on the IPAddressPools that show leases. It is not ManagedValue: a management
	// cluster may be a workload cluster too, which is shown blocks.
	LeasesValue = "butler-leases"
	// LeasesAdvertisement is the L2Advertisement that announces them.
	LeasesAdvertisement = "butler-leases"
	// leasePoolPrefix begins the name of the IPAddressPool of the leases of a namespace.
	leasePoolPrefix = "lease-"
)

// LeasePoolName is the name of the IPAddressPool that shows the leases of a namespace.
func LeasePoolName(namespace string) string { return leasePoolPrefix + namespace }

// NamespaceOfLeasePool is the namespace whose leases an IPAddressPool shows; false: it shows none, whatever it is called.
func NamespaceOfLeasePool(p *metallbv1beta1.IPAddressPool) (string, bool) {
	namespace, is := strings.CutPrefix(p.Name, leasePoolPrefix)
	return namespace, is && p.Namespace == Namespace && ShowsLeases(p)
}

// ShowsLeases reports whether an IPAddressPool is one of ours that shows leases.
func ShowsLeases(p *metallbv1beta1.IPAddressPool) bool { return p.Labels[ManagedLabel] == LeasesValue }

// HasAddress reports whether an IPAddressPool that shows leases has an address.
func HasAddress(p *metallbv1beta1.IPAddressPool, a netip.Addr) bool {
	return p != nil && ShowsLeases(p) && slices.Contains(p.Spec.Addresses, leaseRange(a))
}

// HasOthers reports whether an IPAddressPool has more than these addresses, or others.
func HasOthers(p *metallbv1beta1.IPAddressPool, than []netip.Addr) bool {
	return slices.ContainsFunc(p.Spec.Addresses, func(text string) bool {
		return !slices.ContainsFunc(than, func(a netip.Addr) bool { return leaseRange(a) == text })
	})
}

func leaseRange(a netip.Addr) string { return a.String() + "-" + a.String() }

// ShowLeases brings the IPAddressPool of a namespace to have these addresses, and no Service of another namespace have
// them. It is written as it was observed, or not at all: the error is a conflict then; nil: there was none. It reports
// whether something was written: MetalLB acknowledges by counting, so a change may have to wait until an earlier one is
// counted.
func ShowLeases(ctx context.Context, c client.Client, live client.Reader, namespace string, want []netip.Addr, was *metallbv1beta1.IPAddressPool) (changed bool, err error) {
	ranges := make([]string, 0, len(want))
	for _, a := range slices.SortedFunc(slices.Values(want), netip.Addr.Compare) {
		ranges = append(ranges, leaseRange(a))
	}
	switch {
	case was != nil && !ShowsLeases(was) && len(ranges) > 0:
		return false, fmt.Errorf("IPAddressPool %s/%s is not one that shows leases, and has the name of one; give it another name, so that the leases of namespace %s can be shown",
			Namespace, was.Name, namespace)
	case (was == nil || !ShowsLeases(was)) && len(ranges) == 0:
		return false, nil
	case was == nil:
		err := c.Create(ctx, leasePool(namespace, ranges), FieldOwner)
		if apierrors.IsAlreadyExists(err) {
			err = apierrors.NewConflict(metallbv1beta1.GroupVersion.WithResource("ipaddresspools").GroupResource(), LeasePoolName(namespace), err)
		}
		if err != nil {
			return false, fmt.Errorf("creating IPAddressPool %s/%s: %w", Namespace, LeasePoolName(namespace), err)
		}
		return true, nil
	case len(ranges) == 0:
		err := c.Delete(ctx, was, client.Preconditions{UID: &was.UID, ResourceVersion: &was.ResourceVersion})
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("deleting IPAddressPool %s/%s: %w", Namespace, was.Name, err)
		}
		return true, nil
	case showsLeases(was, namespace, ranges):
		return false, nil
	}
	to, wait, err := next(ctx, live, was, ranges)
	if wait || err != nil {
		return false, err // the count of the last change wakes us
	}
	u := leasePool(namespace, to)
	u.SetUID(was.UID)
	u.SetResourceVersion(was.ResourceVersion)
	return true, apply(ctx, c, u)
}

// showsLeases reports whether an IPAddressPool is as it is to be.
func showsLeases(p *metallbv1beta1.IPAddressPool, namespace string, ranges []string) bool {
	to := p.Spec.AllocateTo
	return slices.Equal(p.Spec.Addresses, ranges) && !ptr.Deref(p.Spec.AutoAssign, true) && !p.Spec.AvoidBuggyIPs && ShowsLeases(p) &&
		to != nil && slices.Equal(to.Namespaces, []string{namespace})
}

func leasePool(namespace string, ranges []string) *unstructured.Unstructured {
	u := object("IPAddressPool", LeasePoolName(namespace), map[string]any{
		"addresses": list(ranges), "autoAssign": false, "avoidBuggyIPs": false,
		"serviceAllocation": map[string]any{"namespaces": []any{namespace}},
	})
	u.SetLabels(map[string]string{ManagedLabel: LeasesValue})
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
		"ipAddressPoolSelectors": []any{map[string]any{"matchLabels": map[string]any{ManagedLabel: LeasesValue}}},
	})
	u.SetLabels(map[string]string{ManagedLabel: LeasesValue})
	return client.IgnoreAlreadyExists(c.Create(ctx, u, FieldOwner))
}
