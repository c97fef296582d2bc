package allocator

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go4.org/netipx"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

var (
	noon    = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	testKey = pools.Key{Kind: v1alpha1.NetworkPoolKind, Namespace: "ns", Name: "pool"}
)

// newTestPool returns the state of a pool that has these addresses, taken over by "me".
func newTestPool(t *testing.T, addresses string, change ...func(*v1alpha1.NetworkPool)) *grants.PoolState {
	t.Helper()
	bits := int32(24)
	obj := &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pool", UID: "pool-uid", ResourceVersion: "10", Generation: 1}}
	obj.Spec = v1alpha1.NetworkPoolSpec{Addresses: []string{addresses}, Prefix: &bits}
	obj.Status.Allocator, obj.Status.ObservedGeneration = &v1alpha1.AllocatorStatus{Holder: "me", Term: 3}, 1
	for _, f := range change {
		f(obj)
	}
	p := grants.NewPoolState(testKey, claimantKinds, grants.NewQuota(func(pools.Key) {}))
	p.Term.Holder, p.Term.TakeoverChecked, p.Term.Number = true, true, 3
	p.SetBasePool(obj)
	p.LoadCoolingAndHeld(obj.PoolStatus())
	return p
}

// observeClaim feeds a pool a claim that was created so many seconds after noon.
func observeClaim(p *grants.PoolState, name string, second int, change ...func(*ipamv1.IPAddressClaim)) *grants.Claimant {
	c := newClaim(name, second, change...)
	p.ObserveClaimant(claims.NewClaimant(c))
	return p.Claimants.ByUID[c.UID]
}

// newClaim returns a claim that was created so many seconds after noon.
func newClaim(name string, second int, change ...func(*ipamv1.IPAddressClaim)) *ipamv1.IPAddressClaim {
	c := &ipamv1.IPAddressClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID("uid-" + name), ResourceVersion: "1",
		CreationTimestamp: metav1.NewTime(noon.Add(time.Duration(second) * time.Second)), Annotations: map[string]string{},
	}}
	c.Spec.PoolRef = testKey.PoolReference()
	for _, f := range change {
		f(c)
	}
	return c
}

func withRecordedAddress(address string) func(*ipamv1.IPAddressClaim) {
	return func(c *ipamv1.IPAddressClaim) {
		c.Annotations[v1alpha1.AddressAnnotation], c.Finalizers = address, []string{v1alpha1.ClaimFinalizer}
	}
}

func withRequestedAddress(address string) func(*ipamv1.IPAddressClaim) {
	return func(c *ipamv1.IPAddressClaim) { c.Annotations[v1alpha1.RequestedAddressAnnotation] = address }
}

// observeAddress feeds a pool an IPAddress of a claim UID.
func observeAddress(p *grants.PoolState, name, address string, claimUID types.UID) {
	a := &ipamv1.IPAddress{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID("address-" + name), ResourceVersion: "1", Finalizers: []string{v1alpha1.AddressFinalizer},
		OwnerReferences: []metav1.OwnerReference{{Kind: claims.IPAddressClaimKind, Name: name, UID: claimUID}},
	}}
	a.Spec = ipamv1.IPAddressSpec{ClaimRef: ipamv1.IPAddressClaimReference{Name: name}, PoolRef: testKey.PoolReference(), Address: address}
	p.ObserveAddress(claims.NewAddress(a))
}

func withPreAllocation(name, address string) func(*v1alpha1.NetworkPool) {
	return func(o *v1alpha1.NetworkPool) { o.Spec.PreAllocations = map[string]string{name: address} }
}

func withCooling(address, name string) func(*v1alpha1.NetworkPool) {
	return func(o *v1alpha1.NetworkPool) {
		o.Status.Cooling = append(o.Status.Cooling, v1alpha1.CoolingGroup{
			Until: metav1.NewTime(noon.Add(time.Hour)), Addresses: address + " ns/" + name,
		})
	}
}

func admitAll(*grants.Claimant) grants.AdmissionResult { return grants.AdmissionResult{} }

func TestPlanGrants(t *testing.T) {
	const full = ipamv1.IPAddressClaimReadyPoolExhaustedReason
	const failed = ipamv1.IPAddressClaimReadyAllocationFailedReason
	tests := map[string]struct {
		addresses string
		pool      []func(*v1alpha1.NetworkPool)
		claims    func(*grants.PoolState)
		room      int
		admission grants.AdmissionFunc
		want      map[string]string // the address of each claim, or the reason of its refusal
		reason    string
	}{
		"oldest first": {
			addresses: "10.0.0.1-10.0.0.2",
			claims: func(p *grants.PoolState) {
				observeClaim(p, "young", 2)
				observeClaim(p, "b", 1)
				observeClaim(p, "a", 1)
			},
			want:   map[string]string{"a": "10.0.0.1", "b": "10.0.0.2", "young": full},
			reason: "by creation time, then by name; the youngest gets nothing",
		},
		"room": {
			addresses: "10.0.0.1-10.0.0.9", room: 1,
			claims: func(p *grants.PoolState) { observeClaim(p, "b", 2); observeClaim(p, "a", 1) },
			want:   map[string]string{"a": "10.0.0.1"},
			reason: "no more than fit into a commit",
		},
		"one failure": {
			addresses: "10.0.0.1-10.0.0.2",
			claims: func(p *grants.PoolState) {
				observeClaim(p, "bad", 1, withRequestedAddress("nonsense"))
				observeClaim(p, "outside", 2, withRequestedAddress("10.0.9.9"))
				observeClaim(p, "good", 3)
			},
			want:   map[string]string{"bad": failed, "outside": failed, "good": "10.0.0.1"},
			reason: "metal3 #988: one bad claim must not block the others",
		},
		"busy, backing off": {
			addresses: "10.0.0.1-10.0.0.9",
			claims: func(p *grants.PoolState) {
				observeClaim(p, "busy", 1).Busy = true
				observeClaim(p, "later", 1).RetryAt = noon.Add(time.Second)
				observeClaim(p, "good", 2)
			},
			want:   map[string]string{"good": "10.0.0.1"},
			reason: "who has to wait is passed over in silence",
		},
		"reported before": {
			addresses: "10.0.0.1-10.0.0.1",
			claims: func(p *grants.PoolState) {
				observeClaim(p, "bad", 1, withRequestedAddress("nonsense")).Status = &grants.PublishedStatus{Refusal: grants.Refusal{Reason: failed, Message: `the requested address "nonsense" is not an IP address; correct the annotation butler.butlerlabs.dev/requested-address`}}
			},
			want: map[string]string{}, reason: "nothing is said twice",
		},
		"admission": {
			addresses: "10.0.0.1-10.0.0.9",
			claims: func(p *grants.PoolState) {
				observeClaim(p, "paused", 1)
				observeClaim(p, "refused", 2)
				observeClaim(p, "good", 3)
			},
			admission: func(c *grants.Claimant) grants.AdmissionResult {
				if c.Owner.Name == "refused" {
					return grants.AdmissionResult{Refusal: grants.AllocationFailed("not here")}
				}
				return grants.AdmissionResult{Wait: c.Owner.Name == "paused"}
			},
			want: map[string]string{"refused": failed, "good": "10.0.0.1"}, reason: "who is not admitted gets no address",
		},
		"pins": {
			addresses: "10.0.0.1-10.0.0.2", pool: []func(*v1alpha1.NetworkPool){withPreAllocation("vip", "10.0.0.1")},
			claims: func(p *grants.PoolState) {
				observeClaim(p, "a", 1)
				observeClaim(p, "thief", 2, withRequestedAddress("10.0.0.1"))
				observeClaim(p, "vip", 3)
			},
			want:   map[string]string{"a": "10.0.0.2", "thief": failed, "vip": "10.0.0.1"},
			reason: "no other claim gets a pinned address, even by request",
		},
		"pinned to what is held": {
			addresses: "10.0.0.1-10.0.0.3", pool: []func(*v1alpha1.NetworkPool){withPreAllocation("vip", "10.0.0.1")},
			claims: func(p *grants.PoolState) {
				observeClaim(p, "owner", 1)
				observeAddress(p, "owner", "10.0.0.1", "uid-owner")
				observeClaim(p, "vip", 2)
			},
			want: map[string]string{"vip": failed}, reason: "an address may have been given away before it was pinned",
		},
		"pinned to what is claimed by hand": {
			addresses: "10.0.0.1-10.0.0.3", pool: []func(*v1alpha1.NetworkPool){withPreAllocation("vip", "10.0.0.1")},
			claims: func(p *grants.PoolState) {
				observeClaim(p, "thief", 1, func(c *ipamv1.IPAddressClaim) { c.Annotations[v1alpha1.AddressAnnotation] = "10.0.0.1" })
				observeClaim(p, "vip", 2)
			},
			want: map[string]string{"thief": failed, "vip": "10.0.0.1"}, reason: "a record that its author wrote keeps nothing from its name",
		},
		"pinned to what is remembered": {
			addresses: "10.0.0.1-10.0.0.3", pool: []func(*v1alpha1.NetworkPool){withPreAllocation("vip", "10.0.0.1")},
			claims: func(p *grants.PoolState) {
				observeClaim(p, "owner", 1, withRecordedAddress("10.0.0.1"))
				observeClaim(p, "vip", 2)
			},
			want: map[string]string{"owner": failed, "vip": failed}, reason: "a record of ours may be that of an object that has it",
		},
		"pinned since, and forced away": {
			addresses: "10.0.0.1-10.0.0.3", pool: []func(*v1alpha1.NetworkPool){withPreAllocation("vip", "10.0.0.1")},
			claims: func(p *grants.PoolState) {
				observeClaim(p, "owner", 1, withRecordedAddress("10.0.0.1"), func(c *ipamv1.IPAddressClaim) { c.Status.AddressRef.Name = "owner" })
				observeClaim(p, "vip", 2)
			},
			want: map[string]string{"owner": "10.0.0.1", "vip": failed}, reason: "who had the address has it until he gives it back",
		},
		"requested": {
			addresses: "10.0.0.1-10.0.0.4",
			claims: func(p *grants.PoolState) {
				observeClaim(p, "x", 1, withRequestedAddress("10.0.0.3"))
				observeClaim(p, "y", 2, withRequestedAddress("10.0.0.3"))
			},
			want: map[string]string{"x": "10.0.0.3", "y": failed}, reason: "the older claim has it",
		},
		"cooling": {
			addresses: "10.0.0.1-10.0.0.3", pool: []func(*v1alpha1.NetworkPool){withCooling("10.0.0.1", "a"), withCooling("10.0.0.2", "b")},
			claims: func(p *grants.PoolState) { observeClaim(p, "c", 1); observeClaim(p, "d", 2); observeClaim(p, "b", 3) },
			want:   map[string]string{"c": "10.0.0.3", "d": full, "b": "10.0.0.2"},
			reason: "an address at rest is given to a claim of its old name only",
		},
		"record": {
			addresses: "10.0.0.1-10.0.0.3",
			claims: func(p *grants.PoolState) {
				observeClaim(p, "first", 1)
				observeClaim(p, "back", 2, withRecordedAddress("10.0.0.1"))
			},
			want:   map[string]string{"first": "10.0.0.2", "back": "10.0.0.1"},
			reason: "what a living claim remembers is taken",
		},
		"record that is blocked": {
			addresses: "10.0.0.1-10.0.0.3",
			claims: func(p *grants.PoolState) {
				observeClaim(p, "owner", 1)
				observeAddress(p, "owner", "10.0.0.1", "uid-owner")
				observeClaim(p, "liar", 2, withRecordedAddress("10.0.0.1"))
			},
			want: map[string]string{"liar": failed}, reason: "a record overrides no IPAddress",
		},
		"name of a dead claim's address": {
			addresses: "10.0.0.1-10.0.0.3",
			claims: func(p *grants.PoolState) {
				observeClaim(p, "again", 1)
				observeAddress(p, "again", "10.0.0.1", "uid-before")
			},
			want: map[string]string{"again": failed}, reason: "R12: a claim waits until the IPAddress of its name is gone",
		},
		"prefixes": {
			addresses: "10.0.0.0/27", pool: []func(*v1alpha1.NetworkPool){func(o *v1alpha1.NetworkPool) {
				o.Spec.AllocationPrefixLength = new(int32(28))
			}},
			claims: func(p *grants.PoolState) { observeClaim(p, "a", 1); observeClaim(p, "b", 2); observeClaim(p, "c", 3) },
			want:   map[string]string{"a": "10.0.0.0/28", "b": "10.0.0.16/28", "c": full}, reason: "each gets a whole prefix",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := newTestPool(t, tt.addresses, tt.pool...)
			tt.claims(p)
			if tt.room == 0 {
				tt.room = maxGrantsPerCommit
			}
			if tt.admission == nil {
				tt.admission = admitAll
			}
			granted, refused := p.Planner.PlanGrants(noon, tt.room, tt.admission)
			got := map[string]string{}
			for uid, g := range p.Grants.ByClaimant {
				got[p.Claimants.ByUID[uid].Owner.Name] = addressText(g.Range)
				if p.Queues.ToWrite[uid] == nil {
					t.Errorf("%s: the claim with a grant for %s is not to be served", tt.reason, addressText(g.Range))
				}
			}
			if granted != len(p.Grants.ByClaimant) {
				t.Errorf("%s: %d grants are reported, there are %d", tt.reason, granted, len(p.Grants.ByClaimant))
			}
			for c, r := range refused {
				got[c.Owner.Name] = r.Reason
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("%s: %s", tt.reason, d)
			}
		})
	}
}

// addressText formats a range that is an address, or a prefix.
func addressText(r netipx.IPRange) string {
	if r.From() == r.To() {
		return r.From().String()
	}
	p, _ := r.Prefix()
	return p.String()
}

func TestFindBlockingFact(t *testing.T) {
	r := netipx.IPRangeFrom(netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.1"))
	me := ledger.Owner{Namespace: "ns", Name: "me", UID: "uid-me"}
	tests := map[string]struct {
		source ledger.Source
		owner  ledger.Owner
		blocks bool
	}{
		"my object":             {ledger.SourceObject, me, false},
		"my record":             {ledger.SourceRecord, me, false},
		"my grant":              {ledger.SourceGrant, me, false},
		"my name's last object": {ledger.SourceObject, ledger.Owner{Namespace: "ns", Name: "me", UID: "uid-before"}, true},
		"an object of no claim": {ledger.SourceObject, ledger.Owner{Namespace: "ns", Name: "me"}, true},
		"another's record":      {ledger.SourceRecord, ledger.Owner{Namespace: "ns", Name: "you", UID: "uid-you"}, true},
		"another's grant":       {ledger.SourceGrant, ledger.Owner{Namespace: "ns", Name: "you", UID: "uid-you"}, true},
		"my pin":                {ledger.SourcePin, ledger.Owner{Name: "me"}, false},
		"another's pin":         {ledger.SourcePin, ledger.Owner{Name: "you"}, true},
		"my rest":               {ledger.SourceCooling, ledger.Owner{Namespace: "ns", Name: "me"}, false},
		"my name's elsewhere":   {ledger.SourceCooling, ledger.Owner{Namespace: "other", Name: "me"}, true},
		"held":                  {ledger.SourceHeld, ledger.Owner{Namespace: "ns", Name: "me"}, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := newTestPool(t, "10.0.0.1-10.0.0.9")
			if h := p.Inventory.FindBlockingFact(r, me); h != nil {
				t.Fatalf("a free address is blocked by %v", h)
			}
			p.Space.Ledger.AddFact(ledger.Fact{Key: ledger.Key{Source: tt.source, UID: "fact"}, Owner: tt.owner, Range: r})
			if h := p.Inventory.FindBlockingFact(r, me); (h != nil) != tt.blocks {
				t.Errorf("blocked by %v", h)
			}
		})
	}
}

func TestMayTakeOver(t *testing.T) {
	other := func(o *v1alpha1.NetworkPool) { o.Status.Allocator.Holder = "you" }
	failed := grants.RefusalForWriteError(apierrors.NewForbidden(ipamv1.GroupVersion.WithResource("ipaddresses").GroupResource(), "a", errUnreadable))
	tests := map[string]struct {
		change  []func(*v1alpha1.NetworkPool)
		pool    func(*grants.PoolState)
		elected bool
		may     bool
		wait    time.Duration
		reason  string
	}{
		"no record":    {change: []func(*v1alpha1.NetworkPool){func(o *v1alpha1.NetworkPool) { o.Status.Allocator = nil }}, may: true, reason: "it has no holder"},
		"first turn":   {pool: func(p *grants.PoolState) { p.Term.TakeoverChecked = false }, may: true, reason: "what is there must be known"},
		"elected":      {elected: true, may: true, reason: "a leader need not wait"},
		"backing off":  {elected: true, pool: func(p *grants.PoolState) { p.Term.Takeover.NotBefore = noon.Add(time.Second) }, wait: time.Second, reason: "even a leader"},
		"elected lost": {elected: true, pool: func(p *grants.PoolState) { p.Term.Takeover.Backoff = time.Second }, reason: "there are two leaders: work decides"},
		"nothing":      {reason: "another holder, no work"},
		"new work":     {pool: func(p *grants.PoolState) { observeClaim(p, "a", 0) }, wait: term.TakeoverDelay, reason: "the holder has time to do it"},
		"old work": {pool: func(p *grants.PoolState) {
			observeClaim(p, "a", 0)
			p.Term.WorkPendingSince = noon.Add(-term.TakeoverDelay)
		}, may: true, reason: "the holder does nothing"},
		"old work, live holder": {pool: func(p *grants.PoolState) {
			observeClaim(p, "a", 0)
			p.Term.WorkPendingSince, p.Term.ChangedAt = noon.Add(-time.Hour), noon.Add(-time.Second)
		}, wait: term.TakeoverDelay - time.Second, reason: "the holder writes"},
		"a write that failed": {pool: func(p *grants.PoolState) {
			observeClaim(p, "a", 0).Status = &grants.PublishedStatus{Refusal: failed}
			p.Term.WorkPendingSince = noon.Add(-term.TakeoverDelay)
		}, wait: 10*time.Minute - term.TakeoverDelay, reason: "a live holder has tried it, and tries again"},
		"a write that failed, long ago": {pool: func(p *grants.PoolState) {
			observeClaim(p, "a", 0).Status = &grants.PublishedStatus{Refusal: failed}
			p.Term.WorkPendingSince = noon.Add(-10 * time.Minute)
		}, may: true, reason: "the holder that tried it is dead"},
		"a write that failed, of a grant": {change: []func(*v1alpha1.NetworkPool){func(o *v1alpha1.NetworkPool) {
			o.Status.Allocator.InFlight = []v1alpha1.Grant{{UID: "uid-a"}}
		}}, pool: func(p *grants.PoolState) {
			observeClaim(p, "a", 0).Status = &grants.PublishedStatus{Refusal: failed}
			p.Term.WorkPendingSince = noon.Add(-term.TakeoverDelay)
		}, wait: 10*time.Minute - term.TakeoverDelay, reason: "as above"},
		"a full pool": {change: []func(*v1alpha1.NetworkPool){func(o *v1alpha1.NetworkPool) { o.Spec.Addresses = []string{"10.0.0.1"} }}, pool: func(p *grants.PoolState) {
			observeClaim(p, "a", 0).Status = &grants.PublishedStatus{Refusal: grants.Refusal{Reason: "r", Message: "so"}}
			observeAddress(p, "b", "10.0.0.1", "uid-b")
			p.Term.WorkPendingSince = noon.Add(-time.Hour)
		}, reason: "claims with a condition that they wait are no work"},
		"a full pool, and its claim": {pool: func(p *grants.PoolState) {
			observeClaim(p, "b", 0, withRecordedAddress("10.0.0.1")).Status = &grants.PublishedStatus{Refusal: grants.Refusal{Reason: "r", Message: "so"}}
			p.Term.WorkPendingSince = noon.Add(-time.Hour)
		}, may: true, reason: "a claim that could have its own again"},
		"a request for what is held": {pool: func(p *grants.PoolState) {
			observeClaim(p, "a", 0, withRequestedAddress("10.0.0.1")).Status = &grants.PublishedStatus{Refusal: grants.Refusal{Reason: "r", Message: "so"}}
			observeAddress(p, "b", "10.0.0.1", "uid-b")
			p.Term.WorkPendingSince = noon.Add(-time.Hour)
		}, reason: "free addresses are of no use to it: two managers must not take turns over it"},
		"a block that fits nowhere": {pool: func(p *grants.PoolState) {
			observeAllocation(p, "x", 10).Status = &grants.PublishedStatus{Refusal: grants.Refusal{Reason: "r", Message: "so"}}
			p.Term.WorkPendingSince = noon.Add(-time.Hour)
		}, reason: "as above"},
		"a block that fits": {pool: func(p *grants.PoolState) {
			observeAllocation(p, "x", 9).Status = &grants.PublishedStatus{Refusal: grants.Refusal{Reason: "r", Message: "so"}}
			p.Term.WorkPendingSince = noon.Add(-time.Hour)
		}, may: true, reason: "there is room for it by now"},
		"a count that no object explains": {change: []func(*v1alpha1.NetworkPool){func(o *v1alpha1.NetworkPool) { o.Status.AllocationCount = 1 }}, pool: func(p *grants.PoolState) {
			p.Term.WorkPendingSince = noon.Add(-term.TakeoverDelay)
		}, wait: time.Minute - term.TakeoverDelay, reason: "a live holder publishes counts later than the rest"},
		"a count that no object explains, for long": {change: []func(*v1alpha1.NetworkPool){func(o *v1alpha1.NetworkPool) { o.Status.AllocationCount = 1 }}, pool: func(p *grants.PoolState) {
			p.Term.WorkPendingSince = noon.Add(-time.Minute)
		}, may: true, reason: "the holder died after it released the address"},
		"a count with grants in flight": {change: []func(*v1alpha1.NetworkPool){func(o *v1alpha1.NetworkPool) {
			o.Status.AllocationCount, o.Status.Allocator.InFlight = 1, []v1alpha1.Grant{{UID: "uid-a"}}
		}}, pool: func(p *grants.PoolState) {
			observeClaim(p, "a", 0).Status = &grants.PublishedStatus{Refusal: failed}
			p.Term.WorkPendingSince = noon.Add(-time.Minute)
		}, wait: 9 * time.Minute, reason: "the holder counts what it has granted"},
		"in flight": {change: []func(*v1alpha1.NetworkPool){func(o *v1alpha1.NetworkPool) {
			o.Status.Allocator.InFlight = []v1alpha1.Grant{{UID: "x"}}
		}}, pool: func(p *grants.PoolState) { p.Term.WorkPendingSince = noon.Add(-term.TakeoverDelay) }, may: true, reason: "a grant that no manager finishes"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := newTestPool(t, "10.0.0.1-10.0.0.9", append([]func(*v1alpha1.NetworkPool){other}, tt.change...)...)
			p.Term.Holder = false
			if tt.pool != nil {
				tt.pool(p)
			}
			if status := p.Base.Pool.PoolStatus(); status.AllocationCount == 0 {
				status.AllocationCount = p.Space.Ledger.Counts().Owners
			}
			if may, wait := p.MayTakeOver(noon, tt.elected, time.Hour, admitAll, admitAll); may != tt.may || wait != tt.wait {
				t.Errorf("%s: may %v, wait %v; not %v, %v", tt.reason, may, wait, tt.may, tt.wait)
			}
		})
	}
}

func TestLoseTerm(t *testing.T) {
	p := newTestPool(t, "10.0.0.1-10.0.0.1")
	c := observeClaim(p, "a", 0)
	p.Planner.PlanGrants(noon, 9, admitAll)
	for i, want := range []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond} {
		p.LoseTerm(noon)
		if wait := p.Term.Takeover.NotBefore.Sub(noon); p.Term.Takeover.Backoff != want || wait < want || wait > 3*want {
			t.Errorf("turn %d: backs off %v and waits %v", i, p.Term.Takeover.Backoff, wait)
		}
	}
	p.Term.ListDuration = time.Second
	if p.LoseTerm(noon); p.Term.Takeover.Backoff != time.Second {
		t.Errorf("backs off %v after a list of a second", p.Term.Takeover.Backoff)
	}
	for range 9 {
		p.LoseTerm(noon)
	}
	if p.Term.Takeover.Backoff != time.Minute {
		t.Errorf("backs off %v at last", p.Term.Takeover.Backoff)
	}
	if p.Term.Holder || len(p.Grants.ByClaimant) > 0 || !p.Space.Ledger.HasFreeInZones([]int{0}) {
		t.Errorf("it still believes in its grants: holder %v, %d grants, %+v", p.Term.Holder, len(p.Grants.ByClaimant), p.Space.Ledger.Counts())
	}
	if _, waits := p.Queues.Waiting.Get(c); !waits {
		t.Error("the claim does not wait for a new grant")
	}
}

func TestRestoreQuarantine(t *testing.T) {
	adopting := func(ready metav1.ConditionStatus) []func(*v1alpha1.NetworkPool) {
		return []func(*v1alpha1.NetworkPool){func(o *v1alpha1.NetworkPool) {
			o.Status.Conditions = []metav1.Condition{{
				Type: v1alpha1.ReadyCondition, Status: ready, Reason: v1alpha1.AdoptingReason,
				LastTransitionTime: metav1.NewTime(noon.Add(-30 * time.Second)),
			}}
		}}
	}
	tests := map[string]struct {
		change []func(*v1alpha1.NetworkPool)
		used   bool
		want   time.Time
	}{
		"a clock that was ahead": {
			change: append(adopting(metav1.ConditionFalse), func(o *v1alpha1.NetworkPool) {
				o.Status.Conditions[0].LastTransitionTime = metav1.NewTime(noon.Add(8 * time.Hour))
			}),
			want: noon.Add(75 * time.Second),
		},
		"an allocator is on record": {used: true},
		"nothing is used":           {change: adopting(metav1.ConditionUnknown)},
		"something is used":         {change: adopting(metav1.ConditionUnknown), used: true, want: noon.Add(48 * time.Second)},
		"there was an allocator":    {change: adopting(metav1.ConditionFalse), want: noon.Add(48 * time.Second)},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := newTestPool(t, "10.0.0.1-10.0.0.9", tt.change...)
			if tt.used {
				observeClaim(p, "a", 0, withRecordedAddress("10.0.0.1"))
			}
			if p.Quarantine.RestoreQuarantine(noon, 75*time.Second); !p.Quarantine.Until.Equal(tt.want) {
				t.Errorf("until %v, not %v", p.Quarantine.Until, tt.want)
			}
			if reason, _ := p.Status.ClosedReason(noon); (reason == v1alpha1.AdoptingReason) == tt.want.IsZero() {
				t.Errorf("closed: %q", reason)
			}
		})
	}
}

// TestRecordNeverChanges checks that a value that is written over a record does not count (R1).
func TestRecordNeverChanges(t *testing.T) {
	p := newTestPool(t, "10.0.0.1-10.0.0.9")
	observeClaim(p, "a", 0, withRecordedAddress("10.0.0.1"))
	observeClaim(p, "a", 0, withRecordedAddress("10.0.0.2"), func(c *ipamv1.IPAddressClaim) { c.ResourceVersion = "2" })
	observeClaim(p, "a", 0, func(c *ipamv1.IPAddressClaim) {
		c.ResourceVersion, c.Finalizers = "3", []string{v1alpha1.ClaimFinalizer}
	})
	if got := addressText(p.Claimants.ByUID["uid-a"].RecordedRange); got != "10.0.0.1" {
		t.Errorf("the claim remembers %s", got)
	}
	observeClaim(p, "b", 1)
	p.Planner.PlanGrants(noon, 9, admitAll)
	got := map[string]string{}
	for uid, g := range p.Grants.ByClaimant {
		got[strings.TrimPrefix(string(uid), "uid-")] = addressText(g.Range)
	}
	if want := (map[string]string{"a": "10.0.0.1", "b": "10.0.0.2"}); !maps.Equal(got, want) {
		t.Error(fmt.Sprint(got))
	}
}
