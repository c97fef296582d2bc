package allocator

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/leases"
)

// observeLease feeds an IPLease to a pool.
func observeLease(p *grants.PoolState, name string, change ...func(*v1alpha1.IPLease)) *grants.Claimant {
	o := &v1alpha1.IPLease{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID("uid-" + name), ResourceVersion: "1", Generation: 1, CreationTimestamp: metav1.NewTime(noon),
	}}
	o.Spec.PoolRef = v1alpha1.PoolReference{Name: testKey.Name}
	for _, f := range change {
		f(o)
	}
	p.ObserveClaimant(leases.ClaimantKind.NewClaimant(o))
	return p.Claimants.ByUID[o.UID]
}

// withLeasedAddress sets an address in the record and in the status of a lease.
func withLeasedAddress(address string) func(*v1alpha1.IPLease) {
	return func(o *v1alpha1.IPLease) {
		o.Annotations, o.Finalizers = map[string]string{v1alpha1.AddressAnnotation: address}, []string{v1alpha1.IPLeaseFinalizer}
		o.Status.Address = address
	}
}

// withLeaseRecord sets the record of a lease, as it comes back without our finalizer.
func withLeaseRecord(address string) func(*v1alpha1.IPLease) {
	return func(o *v1alpha1.IPLease) { o.Annotations = map[string]string{v1alpha1.AddressAnnotation: address} }
}

func leaseFor(address string) func(*v1alpha1.IPLease) {
	return func(o *v1alpha1.IPLease) { o.Spec.Address = address }
}

func showsAddress(address string) func(*v1alpha1.IPLease) {
	return func(o *v1alpha1.IPLease) { o.Status.Address = address }
}

func inNamespace(ns string) func(*v1alpha1.IPLease) {
	return func(o *v1alpha1.IPLease) { o.Namespace = ns }
}

func TestChooseLease(t *testing.T) { // A7, H24
	quota := func(n int32) func(*v1alpha1.NetworkPool) {
		return func(o *v1alpha1.NetworkPool) { o.Spec.Leases = &v1alpha1.Leases{QuotaPerNamespace: ptr.To(n)} }
	}
	ranges := func(all ...string) func(*v1alpha1.NetworkPool) {
		return func(o *v1alpha1.NetworkPool) { o.Spec.Addresses = all }
	}
	withLeases := func(o *v1alpha1.NetworkPool) { o.Spec.Leases = &v1alpha1.Leases{} }
	none := func(o *v1alpha1.NetworkPool) { o.Spec.Leases = nil }
	for name, c := range map[string]struct {
		pool  []func(*v1alpha1.NetworkPool)
		there func(*grants.PoolState)
		ask   []func(*v1alpha1.IPLease)
		want  string // the address, or a part of the refusal
	}{
		"the first":      {want: "10.0.0.1"},
		"a pool of none": {pool: []func(*v1alpha1.NetworkPool){none}, want: "gives no leases: its spec.leases is not set"},
		"of which it has one": {
			pool: []func(*v1alpha1.NetworkPool){none}, ask: []func(*v1alpha1.IPLease){withLeasedAddress("10.0.0.7")}, want: "10.0.0.7",
		},
		"a full quota": {
			pool: []func(*v1alpha1.NetworkPool){quota(1)}, there: func(p *grants.PoolState) { observeLease(p, "y", withLeasedAddress("10.0.0.1")) },
			want: "the leases of namespace ns have as many addresses of NetworkPool ns/pool as its spec.leases.quotaPerNamespace allows: 1;",
		},
		"another namespace's quota": {
			pool: []func(*v1alpha1.NetworkPool){quota(1)}, there: func(p *grants.PoolState) { observeLease(p, "y", withLeasedAddress("10.0.0.1"), inNamespace("other")) }, want: "10.0.0.2",
		},
		"claims and blocks are no leases": {
			pool: []func(*v1alpha1.NetworkPool){quota(1)}, there: func(p *grants.PoolState) {
				observeAllocation(p, "b", 1, withBlock("10.0.0.1/32"))
				observeClaim(p, "c", 0, withRecordedAddress("10.0.0.2"))
			}, want: "10.0.0.3",
		},
		"a quota of none": {pool: []func(*v1alpha1.NetworkPool){quota(0)}, want: "quotaPerNamespace allows: 0"},
		"what it has over the quota": {
			pool: []func(*v1alpha1.NetworkPool){quota(0)}, ask: []func(*v1alpha1.IPLease){withLeasedAddress("10.0.0.7"), showsAddress("")}, want: "10.0.0.7",
		},
		"the next range": {
			pool: []func(*v1alpha1.NetworkPool){ranges("10.0.0.1", "10.0.1.1-10.0.1.2")}, there: func(p *grants.PoolState) { observeLease(p, "y", withLeasedAddress("10.0.0.1")) }, want: "10.0.1.1",
		},
		"a range before it, that is free again": {
			pool: []func(*v1alpha1.NetworkPool){ranges("10.0.0.1", "10.0.1.1-10.0.1.2")}, there: func(p *grants.PoolState) { observeLease(p, "y", withLeasedAddress("10.0.1.1")) }, want: "10.0.0.1",
		},
		"all ranges are full": {
			pool: []func(*v1alpha1.NetworkPool){ranges("10.0.0.1", "10.0.1.1")}, there: func(p *grants.PoolState) {
				observeLease(p, "y", withLeasedAddress("10.0.0.1"))
				observeLease(p, "z", withLeasedAddress("10.0.1.1"))
			}, want: "has no free address",
		},
		"the address it asks for": {ask: []func(*v1alpha1.IPLease){leaseFor("10.0.0.9")}, want: "10.0.0.9"},
		"before its name's": {
			pool: []func(*v1alpha1.NetworkPool){withPreAllocation("x", "10.0.0.25")}, ask: []func(*v1alpha1.IPLease){leaseFor("10.0.0.9")}, want: "10.0.0.9",
		},
		"its name's": {pool: []func(*v1alpha1.NetworkPool){withPreAllocation("x", "10.0.0.25")}, want: "10.0.0.25"},
		"another name's": {
			pool: []func(*v1alpha1.NetworkPool){withPreAllocation("vip", "10.0.0.25")}, ask: []func(*v1alpha1.IPLease){leaseFor("10.0.0.25")},
			want: "the requested address 10.0.0.25 is held by a preAllocation for claims named vip; wait until it is released, or create the lease again with another spec.address",
		},
		"no address":      {ask: []func(*v1alpha1.IPLease){leaseFor("10.0.0.300")}, want: `spec.address "10.0.0.300" is not an IP address`},
		"one elsewhere":   {ask: []func(*v1alpha1.IPLease){leaseFor("10.0.0.77")}, want: "NetworkPool ns/pool does not hand out spec.address 10.0.0.77: it is outside the pool; spec.address is immutable"},
		"one of a family": {ask: []func(*v1alpha1.IPLease){leaseFor("fd00::1")}, want: "NetworkPool ns/pool does not hand out spec.address fd00::1: it is of another address family than the pool"},
		"another's":       {there: func(p *grants.PoolState) { observeLease(p, "y", withLeasedAddress("10.0.0.9")) }, ask: []func(*v1alpha1.IPLease){leaseFor("10.0.0.9")}, want: "is held by IPLease ns/y"},
		"a claim's":       {there: func(p *grants.PoolState) { observeAddress(p, "c", "10.0.0.9", "uid-c") }, ask: []func(*v1alpha1.IPLease){leaseFor("10.0.0.9")}, want: "is held by IPAddress ns/c"},
		"a record that a restore took the finalizer off": {ask: []func(*v1alpha1.IPLease){withLeaseRecord("10.0.0.40")}, want: "10.0.0.40"},
		"such a record beyond the quota": {
			pool: []func(*v1alpha1.NetworkPool){quota(0)}, ask: []func(*v1alpha1.IPLease){withLeaseRecord("10.0.0.40")}, want: "quotaPerNamespace allows: 0",
		},
		"one of what another has": {
			there: func(p *grants.PoolState) { observeLease(p, "y", withLeasedAddress("10.0.0.40")) }, ask: []func(*v1alpha1.IPLease){withLeaseRecord("10.0.0.40")}, want: "10.0.0.41",
		},
		"one of many addresses":      {ask: []func(*v1alpha1.IPLease){withLeaseRecord("10.0.0.40/30")}, want: "10.0.0.1"},
		"its spec.address before it": {ask: []func(*v1alpha1.IPLease){withLeaseRecord("10.0.0.40"), leaseFor("10.0.0.9")}, want: "10.0.0.9"},
		"what its status says":       {ask: []func(*v1alpha1.IPLease){showsAddress("10.0.0.40")}, want: "10.0.0.40"},
		"what its status says, and another has": {
			there: func(p *grants.PoolState) { observeAllocation(p, "b", 4, withBlock("10.0.0.40/30")) }, ask: []func(*v1alpha1.IPLease){showsAddress("10.0.0.40")},
			want: "the status shows 10.0.0.40, which is held by IPAllocation ns/b",
		},
		"what rests for its name": {
			pool: []func(*v1alpha1.NetworkPool){withCooling("10.0.0.9", "x")}, want: "10.0.0.9",
		},
		"a pool of prefixes": {
			pool: []func(*v1alpha1.NetworkPool){func(o *v1alpha1.NetworkPool) { o.Spec.AllocationPrefixLength = ptr.To[int32](28) }},
			ask:  []func(*v1alpha1.IPLease){withLeasedAddress("10.0.0.17"), showsAddress("")}, want: "hands out prefixes of /28, not single addresses",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestPool(t, "10.0.0.1-10.0.0.60", append([]func(*v1alpha1.NetworkPool){withLeases}, c.pool...)...)
			if c.there != nil {
				c.there(p)
			}
			r, refusal := p.Planner.ChooseRange(observeLease(p, "x", c.ask...))
			var got string
			if refusal != nil {
				got = refusal.Message
			} else {
				got = r.From().String()
			}
			if got != c.want && (refusal == nil || !strings.Contains(got, c.want)) {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// TestLeasesOutliveTheManager checks that a manager that takes a pool over has the existing leases, each with its
// address: by its record, or where a move left the record behind, by its status. They count for the quota of their
// namespace, and no other lease gets their address.
func TestLeasesOutliveTheManager(t *testing.T) { // A16, A7
	moved := func(o *v1alpha1.IPLease) { o.Annotations, o.Finalizers, o.Status.Address = nil, nil, "10.0.0.2" }
	listed := newTestPool(t, "10.0.0.1-10.0.0.4") // it decodes
	list := &grants.ListedObjects{Claimants: []*grants.Claimant{
		observeLease(listed, "a", withLeasedAddress("10.0.0.1")), observeLease(listed, "b", moved), observeLease(listed, "c", withLeasedAddress("10.0.0.3"), inNamespace("other"), func(o *v1alpha1.IPLease) { o.UID = "uid-other" }),
	}}
	p := newTestPool(t, "10.0.0.1-10.0.0.4", func(o *v1alpha1.NetworkPool) { o.Spec.Leases = &v1alpha1.Leases{QuotaPerNamespace: ptr.To[int32](2)} })
	p.RebuildLedger(list)
	for uid, want := range map[types.UID]string{"uid-a": "10.0.0.1", "uid-b": "10.0.0.2", "uid-other": "10.0.0.3"} {
		if r, refusal := p.Planner.ChooseRange(p.Claimants.ByUID[uid]); refusal != nil || r.From().String() != want {
			t.Errorf("lease %s gets %v, %v, and had %s", uid, r, refusal, want)
		}
	}
	if r, refusal := p.Planner.ChooseRange(observeLease(p, "more", inNamespace("other"))); refusal != nil || r.From().String() != "10.0.0.4" {
		t.Errorf("a new one gets %v, %v", r, refusal)
	}
}

// TestUnpublishedGrantEndsWithDeletion checks R6: a consumer keeps an address that was published. A grant that was not
// ends with the next commit, whatever keeps the object.
func TestUnpublishedGrantEndsWithDeletion(t *testing.T) {
	deleted := func(o *v1alpha1.IPLease) {
		o.DeletionTimestamp, o.Finalizers = ptr.To(metav1.NewTime(noon)), append(o.Finalizers, v1alpha1.LeaseShownFinalizer)
	}
	for name, c := range map[string]struct {
		changes  []func(*v1alpha1.IPLease)
		granted  bool
		released bool
	}{
		"granted alone":       {changes: []func(*v1alpha1.IPLease){deleted}, granted: true, released: true},
		"granted and on show": {changes: []func(*v1alpha1.IPLease){withLeasedAddress("10.0.0.1"), deleted}, granted: true},
		"on show":             {changes: []func(*v1alpha1.IPLease){withLeasedAddress("10.0.0.1"), deleted}},
		"on record":           {changes: []func(*v1alpha1.IPLease){withLeasedAddress("10.0.0.1"), showsAddress(""), deleted}}, // a move brings no status
		"not on show":         {changes: []func(*v1alpha1.IPLease){withLeasedAddress("10.0.0.1"), deleted, func(o *v1alpha1.IPLease) { o.Finalizers = o.Finalizers[:1] }}, released: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestPool(t, "10.0.0.1-10.0.0.60")
			l := observeLease(p, "x", c.changes...)
			if c.granted {
				p.Grants.ByClaimant[l.Owner.UID] = &grants.Grant{Owner: l.Owner, Range: netipx.IPRangeFrom(netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.1")), Committed: true, CommitConfirmedAt: noon}
				p.Queues.QueueClaimant(l)
			}
			a := New(Options{})
			due, _ := p.ListDueWrites(noon, 8, time.Minute, a.admission.newAdmissionFunc(t.Context(), p, noon), a.admission.newReleaseAdmissionFunc(t.Context(), p))
			if got := slices.Contains(due.ReleaseClaimants, l.Owner.UID); got != c.released {
				t.Errorf("it is released: %v, want %v", got, c.released)
			}
		})
	}
}
