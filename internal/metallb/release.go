package metallb

import (
	"context"
	"fmt"
	"slices"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// CheckReleased returns how a workload cluster still uses a range that was withdrawn from it, empty if the cluster
// has released it. It reads live, and an error proves nothing.
//
// No IPAddressPool may contain the range, and MetalLB must have applied that: its configuration is valid, and for
// each pool with blocks or leases its count equals the number of addresses that the pool has now. No other
// acknowledgement exists: the ConfigurationState changes at most once a second, and its time carries no information.
// No Service may have an address of the range. CheckReleased does not see what MetalLB was about to write at that
// moment: before a range is given to another Cluster, the caller must check twice, some time apart.
func CheckReleased(ctx context.Context, live client.Reader, r netipx.IPRange) (why string, err error) {
	pools := &metallbv1beta1.IPAddressPoolList{}
	err = live.List(ctx, pools, client.InNamespace(Namespace))
	if err != nil && !balancer.IsMissing(err) {
		return "", fmt.Errorf("listing the IPAddressPools: %w", err)
	}
	installed := err == nil
	for i := range pools.Items {
		p := &pools.Items[i]
		if _, unread := NewPool(p, nil); unread != nil {
			return unread.Error(), nil //nolint:nilerr // not a failure: such a pool may have any address
		}
		if overlapsRange(p, r) {
			return describeRemainingRange(p, r), nil
		}
	}
	if why, err = balancer.FindRangeUser(ctx, live, r); why != "" || err != nil {
		return why, err
	}
	if !installed {
		return "", nil
	}
	for i := range pools.Items {
		if p := &pools.Items[i]; (p.Name == DefaultPool || isProjectedPool(p) || p.Labels[balancer.ManagedByLabel] == LeasesManagedByValue) && !isCounted(p) {
			return fmt.Sprintf("MetalLB has not applied the change of IPAddressPool %s yet", p.Name), nil
		}
	}
	return DescribeRefusal(ctx, live)
}

// describeRemainingRange describes an IPAddressPool that contains a range, and what to do if it stays so: with
// avoidBuggyIPs MetalLB may count as many addresses without the range, so that no count would acknowledge its removal
// (see nextCountableRemoval).
func describeRemainingRange(p *metallbv1beta1.IPAddressPool, r netipx.IPRange) string {
	message := fmt.Sprintf("IPAddressPool %s still has %s", p.Name, poolutil.FormatRange(r))
	left := slices.DeleteFunc(slices.Clone(p.Spec.Addresses), func(text string) bool {
		other, err := parseRange(text)
		return err == nil && other.Overlaps(r)
	})
	if !isProjectedPool(p) || !p.Spec.AvoidBuggyIPs || len(left) == 0 || !isCounted(p) {
		return message
	}
	if _, waits := nextCountableRemoval(p, left); !waits {
		return message
	}
	return message + ", and with avoidBuggyIPs MetalLB counts as many addresses without it, so nothing would show that MetalLB has taken the change; " +
		"set avoidBuggyIPs of that IPAddressPool to false until the block is released"
}

// DescribeRefusal states why MetalLB keeps an older configuration instead of the current one, empty if it does not.
// It reads live.
func DescribeRefusal(ctx context.Context, live client.Reader) (why string, err error) {
	state := &metallbv1beta1.ConfigurationState{}
	err = live.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: "controller"}, state)
	switch {
	case balancer.IsMissing(err): // before 0.16
		return "", nil
	case err != nil:
		return "", fmt.Errorf("reading what MetalLB makes of its configuration: %w", err)
	}
	// The status result is updated some milliseconds after the condition.
	if condition := meta.FindStatusCondition(state.Status.Conditions, "poolReconcilerValid"); condition != nil && condition.Status != metav1.ConditionTrue {
		return "MetalLB refuses its configuration, and keeps an older one: " + condition.Message, nil
	}
	return "", nil
}

// CheckPoolEmpty returns what keeps an IPAddressPool that serves no new Services from being withdrawn, empty if no
// Service has an address of its range any more. It reads live.
func CheckPoolEmpty(ctx context.Context, live client.Reader, pool string, r netipx.IPRange) (why string, err error) {
	p := &metallbv1beta1.IPAddressPool{}
	err = live.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: pool}, p)
	switch {
	case balancer.IsMissing(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("reading IPAddressPool %s: %w", pool, err)
	case ptr.Deref(p.Spec.AutoAssign, true):
		return fmt.Sprintf("IPAddressPool %s still serves new Services", pool), nil
	}
	return balancer.FindRangeUser(ctx, live, r)
}
