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

// LetGo tells what a workload cluster still does with a range that was taken away from it; nothing, if it has
// let go of it. It reads live, and an error is no answer.
//
// No IPAddressPool may show the range, and MetalLB must have taken that: its configuration is valid, and of
// each pool that shows blocks, or leases, it counts as many addresses as the pool has now. That is the only acknowledgement
// there is: the ConfigurationState changes once a second at most, with a time that says nothing. No Service may
// have an address of the range. What MetalLB was about to write at that moment is not seen: who gives a range
// away asks twice, some time apart.
func LetGo(ctx context.Context, live client.Reader, r netipx.IPRange) (why string, err error) {
	pools := &metallbv1beta1.IPAddressPoolList{}
	err = live.List(ctx, pools, client.InNamespace(Namespace))
	if err != nil && !balancer.Missing(err) {
		return "", fmt.Errorf("listing the IPAddressPools: %w", err)
	}
	installed := err == nil
	for i := range pools.Items {
		p := &pools.Items[i]
		if _, unread := PoolOf(p, nil); unread != nil {
			return unread.Error(), nil //nolint:nilerr // not a failure: such a pool may have any address
		}
		if overlaps(p, r) {
			return stillHas(p, r), nil
		}
	}
	if why, err = balancer.User(ctx, live, r); why != "" || err != nil {
		return why, err
	}
	if !installed {
		return "", nil
	}
	for i := range pools.Items {
		if p := &pools.Items[i]; (p.Name == DefaultPool || managed(p) || p.Labels[balancer.ManagedLabel] == LeasesValue) && !counted(p) {
			return fmt.Sprintf("MetalLB has not applied the change of IPAddressPool %s yet", p.Name), nil
		}
	}
	return Refusal(ctx, live)
}

// stillHas says of an IPAddressPool that it has a range, and what to do where that stays so: with avoidBuggyIPs MetalLB may count as
// many addresses without the range, so no count would acknowledge that it was taken away (next).
func stillHas(p *metallbv1beta1.IPAddressPool, r netipx.IPRange) string {
	says := fmt.Sprintf("IPAddressPool %s still has %s", p.Name, poolutil.FormatRange(r))
	left := slices.DeleteFunc(slices.Clone(p.Spec.Addresses), func(text string) bool {
		has, err := rangeOf(text)
		return err == nil && has.Overlaps(r)
	})
	if !managed(p) || !p.Spec.AvoidBuggyIPs || len(left) == 0 || !counted(p) {
		return says
	}
	if _, waits := without(p, left); !waits {
		return says
	}
	return says + ", and with avoidBuggyIPs MetalLB counts as many addresses without it, so nothing would show that MetalLB has taken the change; " +
		"set avoidBuggyIPs of that IPAddressPool to false until the block is released"
}

// Refusal says why MetalLB keeps an older configuration than the one it has been given; nothing, if it does not.
// It reads live.
func Refusal(ctx context.Context, live client.Reader) (why string, err error) {
	state := &metallbv1beta1.ConfigurationState{}
	err = live.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: "controller"}, state)
	switch {
	case balancer.Missing(err): // before 0.16
		return "", nil
	case err != nil:
		return "", fmt.Errorf("reading what MetalLB makes of its configuration: %w", err)
	}
	// The result follows the condition some milliseconds later.
	if is := meta.FindStatusCondition(state.Status.Conditions, "poolReconcilerValid"); is != nil && is.Status != metav1.ConditionTrue {
		return "MetalLB refuses its configuration, and keeps an older one: " + is.Message, nil
	}
	return "", nil
}

// Empty tells what keeps an IPAddressPool that serves no new Services from being taken away: nothing, if no
// Service has an address of its range any more. It reads live.
func Empty(ctx context.Context, live client.Reader, pool string, r netipx.IPRange) (why string, err error) {
	p := &metallbv1beta1.IPAddressPool{}
	err = live.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: pool}, p)
	switch {
	case balancer.Missing(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("reading IPAddressPool %s: %w", pool, err)
	case ptr.Deref(p.Spec.AutoAssign, true):
		return fmt.Sprintf("IPAddressPool %s still serves new Services", pool), nil
	}
	return balancer.User(ctx, live, r)
}
