// Package grantstest builds pools, claimants and blocks for the tests of package grants, and of the packages that
// read and write for it.
package grantstest

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/blocks"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/leases"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// Noon is the time at which tests begin.
var Noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// PoolKey is the key of the pool that NewPool returns.
var PoolKey = pools.Key{Kind: v1alpha1.NetworkPoolKind, Namespace: "ns", Name: "pool"}

// ClaimantKinds are the kinds of claimants that the allocator gives each pool.
var ClaimantKinds = []grants.ClaimantKind{claims.ClaimantKind, blocks.ClaimantKind, leases.ClaimantKind}

// BlockKind is the kind whose objects may be blocks of carved pools.
var BlockKind = blocks.ClaimantKind.(grants.BlockKind)

// NewPool returns the state of a pool that has these addresses, taken over by "me".
func NewPool(t *testing.T, addresses string, change ...func(*v1alpha1.NetworkPool)) *grants.PoolState {
	t.Helper()
	bits := int32(24)
	obj := &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pool", UID: "pool-uid", ResourceVersion: "10", Generation: 1}}
	obj.Spec = v1alpha1.NetworkPoolSpec{Addresses: []string{addresses}, Prefix: &bits}
	obj.Status.Allocator, obj.Status.ObservedGeneration = &v1alpha1.AllocatorStatus{Holder: "me", Term: 3}, 1
	for _, f := range change {
		f(obj)
	}
	p := grants.NewPoolState(PoolKey, ClaimantKinds, grants.NewQuota(func(pools.Key) {}))
	p.Term.Holder, p.Term.TakeoverChecked, p.Term.Number = true, true, 3
	p.SetBasePool(obj)
	p.LoadCoolingAndHeld(obj.PoolStatus())
	return p
}

// WithSpec changes the spec of a pool, as a user who follows a message does.
func WithSpec(f func(*v1alpha1.NetworkPoolSpec)) func(*grants.PoolState) {
	return func(p *grants.PoolState) {
		edited := p.Base.Pool.DeepCopyObject().(*v1alpha1.NetworkPool)
		f(&edited.Spec)
		edited.Generation++
		edited.Status.ObservedGeneration = edited.Generation
		p.SetBasePool(edited)
		p.Space.CompileLayout()
	}
}

// DeleteNamed deletes the claimants of these names, their grants and their IPAddresses.
func DeleteNamed(names ...string) func(*grants.PoolState) {
	return func(p *grants.PoolState) {
		for _, name := range names {
			p.ForgetClaimant(types.UID("uid-" + name))
			p.Queues.DropGrant(types.UID("uid-" + name))
			p.ForgetAddress(types.UID("address-"+name), types.NamespacedName{Namespace: "ns", Name: name})
		}
	}
}

// MirrorKey is the key of the pool that NewMirrorPool returns.
var MirrorKey = pools.Key{Kind: v1alpha1.NetworkPoolKind, Namespace: "ns", Name: "p.in-cluster"}

// MirroredPoolRef is the reference of claims that name the mirrored pool.
var MirroredPoolRef = ipamv1.IPPoolReference{APIGroup: incluster.GroupVersion.Group, Kind: incluster.IPPoolKind, Name: "p"}

// NewMirrorPool returns the state of a pool that mirrors InClusterIPPool p.
func NewMirrorPool(t *testing.T, addresses string, change ...func(*v1alpha1.NetworkPool)) *grants.PoolState {
	t.Helper()
	p := NewPool(t, addresses, append(change, func(o *v1alpha1.NetworkPool) {
		o.Name = MirrorKey.Name
		incluster.SealSpec(o)
	})...)
	p.Base.Key = MirrorKey
	return p
}

// WithReleaseOrder makes a pool hand out first what was released longest ago.
func WithReleaseOrder(o *v1alpha1.NetworkPool) {
	o.Spec.AllocationOrder = v1alpha1.LeastRecentlyUsedOrder
}

// ReleaseInOrder adds claims with these addresses, and releases them in this order.
func ReleaseInOrder(p *grants.PoolState, addresses ...string) {
	for _, a := range addresses {
		ObserveClaim(p, "had-"+a, 0, WithRecordedAddress(a))
	}
	for _, a := range addresses {
		p.ForgetClaimant(types.UID("uid-had-" + a))
	}
}

// WithPreAllocation sets an address aside for the claims of a name.
func WithPreAllocation(name, address string) func(*v1alpha1.NetworkPool) {
	return func(o *v1alpha1.NetworkPool) { o.Spec.PreAllocations = map[string]string{name: address} }
}

// WithCooling puts an address on record that cools for the claim of a name for an hour.
func WithCooling(address, name string) func(*v1alpha1.NetworkPool) {
	return func(o *v1alpha1.NetworkPool) {
		o.Status.Cooling = append(o.Status.Cooling, v1alpha1.CoolingGroup{
			Until: metav1.NewTime(Noon.Add(time.Hour)), Addresses: address + " ns/" + name,
		})
	}
}

// AdmitAll admits each claimant.
func AdmitAll(*grants.Claimant) grants.AdmissionResult { return grants.AdmissionResult{} }

// AddressText formats a range that is an address, or a prefix.
func AddressText(r netipx.IPRange) string {
	if r.From() == r.To() {
		return r.From().String()
	}
	p, _ := r.Prefix()
	return p.String()
}

// WithReady sets the condition Ready of a pool, with the time of its transition.
func WithReady(status metav1.ConditionStatus, reason string, since time.Time) func(*v1alpha1.NetworkPool) {
	return func(o *v1alpha1.NetworkPool) {
		o.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ReadyCondition, Status: status, Reason: reason, LastTransitionTime: metav1.NewTime(since)}}
	}
}

// WithClosed makes a pool closed since an hour ago.
func WithClosed(reason string) func(*v1alpha1.NetworkPool) {
	return WithReady(metav1.ConditionFalse, reason, Noon.Add(-time.Hour))
}

// NewPoolWithClaims returns a pool with n claims that have an address.
func NewPoolWithClaims(tb testing.TB, n int) *grants.PoolState {
	tb.Helper()
	obj := &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pool", UID: "pool-uid", ResourceVersion: "10", Generation: 1}}
	obj.Spec = v1alpha1.NetworkPoolSpec{CIDR: "10.0.0.0/15"}
	p := grants.NewPoolState(PoolKey, ClaimantKinds, grants.NewQuota(func(pools.Key) {}))
	p.Term.Holder = true
	p.SetBasePool(obj)
	ip := netip.MustParseAddr("10.0.0.1")
	for i := range n {
		name := fmt.Sprintf("claim-%d", i)
		p.ObserveClaimant(claims.NewClaimant(&ipamv1.IPAddressClaim{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: name, UID: types.UID("uid-" + name), ResourceVersion: "1", CreationTimestamp: metav1.NewTime(Noon),
				Annotations: map[string]string{v1alpha1.AddressAnnotation: ip.String()}, Finalizers: []string{v1alpha1.ClaimFinalizer},
			},
			Spec: ipamv1.IPAddressClaimSpec{PoolRef: PoolKey.PoolReference(), ClusterName: "cluster"},
		}))
		ip = ip.Next()
	}
	return p
}

// WithZones gives a pool two addresses outside of failure domains, four for failure domain a, and two for b and a.
func WithZones(o *v1alpha1.NetworkPool) {
	o.Spec.Addresses = []string{"10.0.0.1-10.0.0.2", "10.1.0.1-10.1.0.4", "10.2.0.1-10.2.0.2"}
	o.Spec.Subnets = []v1alpha1.Subnet{
		{CIDR: "10.0.0.0/24"}, {CIDR: "10.1.0.0/24", FailureDomains: []string{"a"}}, {CIDR: "10.2.0.0/24", FailureDomains: []string{"b", "a"}},
	}
}

// ErrUnreadable is the error of a lookup of a Machine.
var ErrUnreadable = errors.New("it cannot be read")
