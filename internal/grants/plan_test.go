package grants_test

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
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// maxGrantsPerCommit is room for all the grants of a test.
const maxGrantsPerCommit = 128

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
				grantstest.ObserveClaim(p, "young", 2)
				grantstest.ObserveClaim(p, "b", 1)
				grantstest.ObserveClaim(p, "a", 1)
			},
			want:   map[string]string{"a": "10.0.0.1", "b": "10.0.0.2", "young": full},
			reason: "by creation time, then by name; the youngest gets nothing",
		},
		"room": {
			addresses: "10.0.0.1-10.0.0.9", room: 1,
			claims: func(p *grants.PoolState) { grantstest.ObserveClaim(p, "b", 2); grantstest.ObserveClaim(p, "a", 1) },
			want:   map[string]string{"a": "10.0.0.1"},
			reason: "no more than fit into a commit",
		},
		"one failure": {
			addresses: "10.0.0.1-10.0.0.2",
			claims: func(p *grants.PoolState) {
				grantstest.ObserveClaim(p, "bad", 1, grantstest.WithRequestedAddress("nonsense"))
				grantstest.ObserveClaim(p, "outside", 2, grantstest.WithRequestedAddress("10.0.9.9"))
				grantstest.ObserveClaim(p, "good", 3)
			},
			want:   map[string]string{"bad": failed, "outside": failed, "good": "10.0.0.1"},
			reason: "metal3 #988: one bad claim must not block the others",
		},
		"busy, backing off": {
			addresses: "10.0.0.1-10.0.0.9",
			claims: func(p *grants.PoolState) {
				grantstest.ObserveClaim(p, "busy", 1).Busy = true
				grantstest.ObserveClaim(p, "later", 1).RetryAt = grantstest.Noon.Add(time.Second)
				grantstest.ObserveClaim(p, "good", 2)
			},
			want:   map[string]string{"good": "10.0.0.1"},
			reason: "who has to wait is passed over in silence",
		},
		"reported before": {
			addresses: "10.0.0.1-10.0.0.1",
			claims: func(p *grants.PoolState) {
				grantstest.ObserveClaim(p, "bad", 1, grantstest.WithRequestedAddress("nonsense")).Status = &grants.PublishedStatus{Refusal: grants.Refusal{Reason: failed, Message: `the requested address "nonsense" is not an IP address; correct the annotation butler.butlerlabs.dev/requested-address`}}
			},
			want: map[string]string{}, reason: "nothing is said twice",
		},
		"admission": {
			addresses: "10.0.0.1-10.0.0.9",
			claims: func(p *grants.PoolState) {
				grantstest.ObserveClaim(p, "paused", 1)
				grantstest.ObserveClaim(p, "refused", 2)
				grantstest.ObserveClaim(p, "good", 3)
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
			addresses: "10.0.0.1-10.0.0.2", pool: []func(*v1alpha1.NetworkPool){grantstest.WithPreAllocation("vip", "10.0.0.1")},
			claims: func(p *grants.PoolState) {
				grantstest.ObserveClaim(p, "a", 1)
				grantstest.ObserveClaim(p, "thief", 2, grantstest.WithRequestedAddress("10.0.0.1"))
				grantstest.ObserveClaim(p, "vip", 3)
			},
			want:   map[string]string{"a": "10.0.0.2", "thief": failed, "vip": "10.0.0.1"},
			reason: "no other claim gets a pinned address, even by request",
		},
		"pinned to what is held": {
			addresses: "10.0.0.1-10.0.0.3", pool: []func(*v1alpha1.NetworkPool){grantstest.WithPreAllocation("vip", "10.0.0.1")},
			claims: func(p *grants.PoolState) {
				grantstest.ObserveClaim(p, "owner", 1)
				grantstest.ObserveAddress(p, "owner", "10.0.0.1", "uid-owner")
				grantstest.ObserveClaim(p, "vip", 2)
			},
			want: map[string]string{"vip": failed}, reason: "an address may have been given away before it was pinned",
		},
		"pinned to what is claimed by hand": {
			addresses: "10.0.0.1-10.0.0.3", pool: []func(*v1alpha1.NetworkPool){grantstest.WithPreAllocation("vip", "10.0.0.1")},
			claims: func(p *grants.PoolState) {
				grantstest.ObserveClaim(p, "thief", 1, func(c *ipamv1.IPAddressClaim) { c.Annotations[v1alpha1.AddressAnnotation] = "10.0.0.1" })
				grantstest.ObserveClaim(p, "vip", 2)
			},
			want: map[string]string{"thief": failed, "vip": "10.0.0.1"}, reason: "a record that its author wrote keeps nothing from its name",
		},
		"pinned to what is remembered": {
			addresses: "10.0.0.1-10.0.0.3", pool: []func(*v1alpha1.NetworkPool){grantstest.WithPreAllocation("vip", "10.0.0.1")},
			claims: func(p *grants.PoolState) {
				grantstest.ObserveClaim(p, "owner", 1, grantstest.WithRecordedAddress("10.0.0.1"))
				grantstest.ObserveClaim(p, "vip", 2)
			},
			want: map[string]string{"owner": failed, "vip": failed}, reason: "a record of ours may be that of an object that has it",
		},
		"pinned since, and forced away": {
			addresses: "10.0.0.1-10.0.0.3", pool: []func(*v1alpha1.NetworkPool){grantstest.WithPreAllocation("vip", "10.0.0.1")},
			claims: func(p *grants.PoolState) {
				grantstest.ObserveClaim(p, "owner", 1, grantstest.WithRecordedAddress("10.0.0.1"), func(c *ipamv1.IPAddressClaim) { c.Status.AddressRef.Name = "owner" })
				grantstest.ObserveClaim(p, "vip", 2)
			},
			want: map[string]string{"owner": "10.0.0.1", "vip": failed}, reason: "who had the address has it until he gives it back",
		},
		"requested": {
			addresses: "10.0.0.1-10.0.0.4",
			claims: func(p *grants.PoolState) {
				grantstest.ObserveClaim(p, "x", 1, grantstest.WithRequestedAddress("10.0.0.3"))
				grantstest.ObserveClaim(p, "y", 2, grantstest.WithRequestedAddress("10.0.0.3"))
			},
			want: map[string]string{"x": "10.0.0.3", "y": failed}, reason: "the older claim has it",
		},
		"cooling": {
			addresses: "10.0.0.1-10.0.0.3", pool: []func(*v1alpha1.NetworkPool){grantstest.WithCooling("10.0.0.1", "a"), grantstest.WithCooling("10.0.0.2", "b")},
			claims: func(p *grants.PoolState) {
				grantstest.ObserveClaim(p, "c", 1)
				grantstest.ObserveClaim(p, "d", 2)
				grantstest.ObserveClaim(p, "b", 3)
			},
			want:   map[string]string{"c": "10.0.0.3", "d": full, "b": "10.0.0.2"},
			reason: "an address at rest is given to a claim of its old name only",
		},
		"record": {
			addresses: "10.0.0.1-10.0.0.3",
			claims: func(p *grants.PoolState) {
				grantstest.ObserveClaim(p, "first", 1)
				grantstest.ObserveClaim(p, "back", 2, grantstest.WithRecordedAddress("10.0.0.1"))
			},
			want:   map[string]string{"first": "10.0.0.2", "back": "10.0.0.1"},
			reason: "what a living claim remembers is taken",
		},
		"record that is blocked": {
			addresses: "10.0.0.1-10.0.0.3",
			claims: func(p *grants.PoolState) {
				grantstest.ObserveClaim(p, "owner", 1)
				grantstest.ObserveAddress(p, "owner", "10.0.0.1", "uid-owner")
				grantstest.ObserveClaim(p, "liar", 2, grantstest.WithRecordedAddress("10.0.0.1"))
			},
			want: map[string]string{"liar": failed}, reason: "a record overrides no IPAddress",
		},
		"name of a dead claim's address": {
			addresses: "10.0.0.1-10.0.0.3",
			claims: func(p *grants.PoolState) {
				grantstest.ObserveClaim(p, "again", 1)
				grantstest.ObserveAddress(p, "again", "10.0.0.1", "uid-before")
			},
			want: map[string]string{"again": failed}, reason: "R12: a claim waits until the IPAddress of its name is gone",
		},
		"prefixes": {
			addresses: "10.0.0.0/27", pool: []func(*v1alpha1.NetworkPool){func(o *v1alpha1.NetworkPool) {
				o.Spec.AllocationPrefixLength = new(int32(28))
			}},
			claims: func(p *grants.PoolState) {
				grantstest.ObserveClaim(p, "a", 1)
				grantstest.ObserveClaim(p, "b", 2)
				grantstest.ObserveClaim(p, "c", 3)
			},
			want: map[string]string{"a": "10.0.0.0/28", "b": "10.0.0.16/28", "c": full}, reason: "each gets a whole prefix",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, tt.addresses, tt.pool...)
			tt.claims(p)
			if tt.room == 0 {
				tt.room = maxGrantsPerCommit
			}
			if tt.admission == nil {
				tt.admission = grantstest.AdmitAll
			}
			granted, refused := p.Planner.PlanGrants(grantstest.Noon, tt.room, tt.admission)
			got := map[string]string{}
			for uid, g := range p.Grants.ByClaimant {
				got[p.Claimants.ByUID[uid].Owner.Name] = grantstest.AddressText(g.Range)
				if p.Queues.ToWrite[uid] == nil {
					t.Errorf("%s: the claim with a grant for %s is not to be served", tt.reason, grantstest.AddressText(g.Range))
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
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
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
	failed := grants.RefusalForWriteError(apierrors.NewForbidden(ipamv1.GroupVersion.WithResource("ipaddresses").GroupResource(), "a", grantstest.ErrUnreadable))
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
		"backing off":  {elected: true, pool: func(p *grants.PoolState) { p.Term.Takeover.NotBefore = grantstest.Noon.Add(time.Second) }, wait: time.Second, reason: "even a leader"},
		"elected lost": {elected: true, pool: func(p *grants.PoolState) { p.Term.Takeover.Backoff = time.Second }, reason: "there are two leaders: work decides"},
		"nothing":      {reason: "another holder, no work"},
		"new work":     {pool: func(p *grants.PoolState) { grantstest.ObserveClaim(p, "a", 0) }, wait: term.TakeoverDelay, reason: "the holder has time to do it"},
		"old work": {pool: func(p *grants.PoolState) {
			grantstest.ObserveClaim(p, "a", 0)
			p.Term.WorkPendingSince = grantstest.Noon.Add(-term.TakeoverDelay)
		}, may: true, reason: "the holder does nothing"},
		"old work, live holder": {pool: func(p *grants.PoolState) {
			grantstest.ObserveClaim(p, "a", 0)
			p.Term.WorkPendingSince, p.Term.ChangedAt = grantstest.Noon.Add(-time.Hour), grantstest.Noon.Add(-time.Second)
		}, wait: term.TakeoverDelay - time.Second, reason: "the holder writes"},
		"a write that failed": {pool: func(p *grants.PoolState) {
			grantstest.ObserveClaim(p, "a", 0).Status = &grants.PublishedStatus{Refusal: failed}
			p.Term.WorkPendingSince = grantstest.Noon.Add(-term.TakeoverDelay)
		}, wait: 10*time.Minute - term.TakeoverDelay, reason: "a live holder has tried it, and tries again"},
		"a write that failed, long ago": {pool: func(p *grants.PoolState) {
			grantstest.ObserveClaim(p, "a", 0).Status = &grants.PublishedStatus{Refusal: failed}
			p.Term.WorkPendingSince = grantstest.Noon.Add(-10 * time.Minute)
		}, may: true, reason: "the holder that tried it is dead"},
		"a write that failed, of a grant": {change: []func(*v1alpha1.NetworkPool){func(o *v1alpha1.NetworkPool) {
			o.Status.Allocator.InFlight = []v1alpha1.Grant{{UID: "uid-a"}}
		}}, pool: func(p *grants.PoolState) {
			grantstest.ObserveClaim(p, "a", 0).Status = &grants.PublishedStatus{Refusal: failed}
			p.Term.WorkPendingSince = grantstest.Noon.Add(-term.TakeoverDelay)
		}, wait: 10*time.Minute - term.TakeoverDelay, reason: "as above"},
		"a full pool": {change: []func(*v1alpha1.NetworkPool){func(o *v1alpha1.NetworkPool) { o.Spec.Addresses = []string{"10.0.0.1"} }}, pool: func(p *grants.PoolState) {
			grantstest.ObserveClaim(p, "a", 0).Status = &grants.PublishedStatus{Refusal: grants.Refusal{Reason: "r", Message: "so"}}
			grantstest.ObserveAddress(p, "b", "10.0.0.1", "uid-b")
			p.Term.WorkPendingSince = grantstest.Noon.Add(-time.Hour)
		}, reason: "claims with a condition that they wait are no work"},
		"a full pool, and its claim": {pool: func(p *grants.PoolState) {
			grantstest.ObserveClaim(p, "b", 0, grantstest.WithRecordedAddress("10.0.0.1")).Status = &grants.PublishedStatus{Refusal: grants.Refusal{Reason: "r", Message: "so"}}
			p.Term.WorkPendingSince = grantstest.Noon.Add(-time.Hour)
		}, may: true, reason: "a claim that could have its own again"},
		"a request for what is held": {pool: func(p *grants.PoolState) {
			grantstest.ObserveClaim(p, "a", 0, grantstest.WithRequestedAddress("10.0.0.1")).Status = &grants.PublishedStatus{Refusal: grants.Refusal{Reason: "r", Message: "so"}}
			grantstest.ObserveAddress(p, "b", "10.0.0.1", "uid-b")
			p.Term.WorkPendingSince = grantstest.Noon.Add(-time.Hour)
		}, reason: "free addresses are of no use to it: two managers must not take turns over it"},
		"a block that fits nowhere": {pool: func(p *grants.PoolState) {
			grantstest.ObserveAllocation(p, "x", 10).Status = &grants.PublishedStatus{Refusal: grants.Refusal{Reason: "r", Message: "so"}}
			p.Term.WorkPendingSince = grantstest.Noon.Add(-time.Hour)
		}, reason: "as above"},
		"a block that fits": {pool: func(p *grants.PoolState) {
			grantstest.ObserveAllocation(p, "x", 9).Status = &grants.PublishedStatus{Refusal: grants.Refusal{Reason: "r", Message: "so"}}
			p.Term.WorkPendingSince = grantstest.Noon.Add(-time.Hour)
		}, may: true, reason: "there is room for it by now"},
		"a count that no object explains": {change: []func(*v1alpha1.NetworkPool){func(o *v1alpha1.NetworkPool) { o.Status.AllocationCount = 1 }}, pool: func(p *grants.PoolState) {
			p.Term.WorkPendingSince = grantstest.Noon.Add(-term.TakeoverDelay)
		}, wait: time.Minute - term.TakeoverDelay, reason: "a live holder publishes counts later than the rest"},
		"a count that no object explains, for long": {change: []func(*v1alpha1.NetworkPool){func(o *v1alpha1.NetworkPool) { o.Status.AllocationCount = 1 }}, pool: func(p *grants.PoolState) {
			p.Term.WorkPendingSince = grantstest.Noon.Add(-time.Minute)
		}, may: true, reason: "the holder died after it released the address"},
		"a count with grants in flight": {change: []func(*v1alpha1.NetworkPool){func(o *v1alpha1.NetworkPool) {
			o.Status.AllocationCount, o.Status.Allocator.InFlight = 1, []v1alpha1.Grant{{UID: "uid-a"}}
		}}, pool: func(p *grants.PoolState) {
			grantstest.ObserveClaim(p, "a", 0).Status = &grants.PublishedStatus{Refusal: failed}
			p.Term.WorkPendingSince = grantstest.Noon.Add(-time.Minute)
		}, wait: 9 * time.Minute, reason: "the holder counts what it has granted"},
		"in flight": {change: []func(*v1alpha1.NetworkPool){func(o *v1alpha1.NetworkPool) {
			o.Status.Allocator.InFlight = []v1alpha1.Grant{{UID: "x"}}
		}}, pool: func(p *grants.PoolState) { p.Term.WorkPendingSince = grantstest.Noon.Add(-term.TakeoverDelay) }, may: true, reason: "a grant that no manager finishes"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9", append([]func(*v1alpha1.NetworkPool){other}, tt.change...)...)
			p.Term.Holder = false
			if tt.pool != nil {
				tt.pool(p)
			}
			if status := p.Base.Pool.PoolStatus(); status.AllocationCount == 0 {
				status.AllocationCount = p.Space.Ledger.Counts().Owners
			}
			if may, wait := p.MayTakeOver(grantstest.Noon, tt.elected, time.Hour, grantstest.AdmitAll, grantstest.AdmitAll); may != tt.may || wait != tt.wait {
				t.Errorf("%s: may %v, wait %v; not %v, %v", tt.reason, may, wait, tt.may, tt.wait)
			}
		})
	}
}

func TestLoseTerm(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.1")
	c := grantstest.ObserveClaim(p, "a", 0)
	p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
	for i, want := range []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond} {
		p.LoseTerm(grantstest.Noon)
		if wait := p.Term.Takeover.NotBefore.Sub(grantstest.Noon); p.Term.Takeover.Backoff != want || wait < want || wait > 3*want {
			t.Errorf("turn %d: backs off %v and waits %v", i, p.Term.Takeover.Backoff, wait)
		}
	}
	p.Term.ListDuration = time.Second
	if p.LoseTerm(grantstest.Noon); p.Term.Takeover.Backoff != time.Second {
		t.Errorf("backs off %v after a list of a second", p.Term.Takeover.Backoff)
	}
	for range 9 {
		p.LoseTerm(grantstest.Noon)
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
				LastTransitionTime: metav1.NewTime(grantstest.Noon.Add(-30 * time.Second)),
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
				o.Status.Conditions[0].LastTransitionTime = metav1.NewTime(grantstest.Noon.Add(8 * time.Hour))
			}),
			want: grantstest.Noon.Add(75 * time.Second),
		},
		"an allocator is on record": {used: true},
		"nothing is used":           {change: adopting(metav1.ConditionUnknown)},
		"something is used":         {change: adopting(metav1.ConditionUnknown), used: true, want: grantstest.Noon.Add(48 * time.Second)},
		"there was an allocator":    {change: adopting(metav1.ConditionFalse), want: grantstest.Noon.Add(48 * time.Second)},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9", tt.change...)
			if tt.used {
				grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress("10.0.0.1"))
			}
			if p.Quarantine.RestoreQuarantine(grantstest.Noon, 75*time.Second); !p.Quarantine.Until.Equal(tt.want) {
				t.Errorf("until %v, not %v", p.Quarantine.Until, tt.want)
			}
			if reason, _ := p.Status.ClosedReason(grantstest.Noon); (reason == v1alpha1.AdoptingReason) == tt.want.IsZero() {
				t.Errorf("closed: %q", reason)
			}
		})
	}
}

// TestRecordNeverChanges checks that a value that is written over a record does not count (R1).
func TestRecordNeverChanges(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
	grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress("10.0.0.1"))
	grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress("10.0.0.2"), func(c *ipamv1.IPAddressClaim) { c.ResourceVersion = "2" })
	grantstest.ObserveClaim(p, "a", 0, func(c *ipamv1.IPAddressClaim) {
		c.ResourceVersion, c.Finalizers = "3", []string{v1alpha1.ClaimFinalizer}
	})
	if got := grantstest.AddressText(p.Claimants.ByUID["uid-a"].RecordedRange); got != "10.0.0.1" {
		t.Errorf("the claim remembers %s", got)
	}
	grantstest.ObserveClaim(p, "b", 1)
	p.Planner.PlanGrants(grantstest.Noon, 9, grantstest.AdmitAll)
	got := map[string]string{}
	for uid, g := range p.Grants.ByClaimant {
		got[strings.TrimPrefix(string(uid), "uid-")] = grantstest.AddressText(g.Range)
	}
	if want := (map[string]string{"a": "10.0.0.1", "b": "10.0.0.2"}); !maps.Equal(got, want) {
		t.Error(fmt.Sprint(got))
	}
}
