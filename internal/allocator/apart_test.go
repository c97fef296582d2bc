package allocator

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go4.org/netipx"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// aNeighbour is a pool of the default network that was made so long before noon.
func aNeighbour(name, addresses string, age time.Duration, change ...func(*v1alpha1.NetworkPool)) *v1alpha1.NetworkPool {
	bits := int32(24)
	o := &v1alpha1.NetworkPool{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID("uid-" + name), ResourceVersion: "10", Generation: 1, Finalizers: []string{v1alpha1.PoolFinalizer},
			CreationTimestamp: metav1.NewTime(noon.Add(-age)),
		},
		Spec: v1alpha1.NetworkPoolSpec{Addresses: []string{addresses}, Prefix: &bits},
	}
	o.Status.Allocator = &v1alpha1.AllocatorStatus{Holder: "me", Term: 1}
	for _, f := range change {
		f(o)
	}
	return o
}

// onePool is an API server that has one pool, or none.
type onePool struct {
	client.Client
	exists *v1alpha1.NetworkPool
}

func (o *onePool) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	if o.exists == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "networkpools"}, key.Name)
	}
	o.exists.DeepCopyInto(obj.(*v1alpha1.NetworkPool))
	return nil
}

// yieldsTo has the status of a pool say that it yields to another one.
func yieldsTo(other *v1alpha1.NetworkPool, generation int64) func(*v1alpha1.NetworkPool) {
	return func(o *v1alpha1.NetworkPool) {
		o.Status.Yields = append(o.Status.Yields, yielded(pools.KeyOf(other), other.UID, generation))
	}
}

// inFlightTo has the status of a pool say that an address was granted.
func inFlightTo(name, address string) func(*v1alpha1.NetworkPool) {
	return func(o *v1alpha1.NetworkPool) {
		g := v1alpha1.Grant{Kind: claims.Name, Namespace: "ns", Name: name, UID: "uid-" + name, First: address, Last: address}
		o.Status.Allocator.InFlight = append(o.Status.Allocator.InFlight, g)
	}
}

// What an older pool may grant of what it shares with a younger one (R11), and what the younger one writes.
func TestKeepApart(t *testing.T) {
	elder := func(change ...func(*v1alpha1.NetworkPool)) *v1alpha1.NetworkPool {
		return aNeighbour("elder", "10.0.0.1-10.0.0.4", time.Hour, change...)
	}
	widened := func(o *v1alpha1.NetworkPool) { o.Generation = 2 }
	allows := func(o *v1alpha1.NetworkPool) { o.Spec.AllowOverlap = true }
	younger := func(change ...func(*v1alpha1.NetworkPool)) *v1alpha1.NetworkPool {
		return aNeighbour("younger", "10.0.0.3-10.0.0.6", time.Minute, change...)
	}
	has3 := func(l *existing, key pools.Key) { l.has(key, "y", "10.0.0.3") }
	tests := map[string]struct {
		reason         string
		elder, younger *v1alpha1.NetworkPool
		// listed is what a list of the younger pool finds.
		listed func(*existing, pools.Key)
		// free are the addresses that the elder may grant.
		free   []string
		waits  bool
		yields int
	}{
		"NotYet": {
			reason: "nothing says that the younger pool grants no more",
			elder:  elder(), younger: younger(), free: []string{"10.0.0.1", "10.0.0.2"}, waits: true, yields: 1,
		},
		"ToAnOlderSpec": {
			reason: "what was yielded to an older spec may have been taken back when that spec was changed",
			elder:  elder(widened), younger: younger(yieldsTo(elder(), 1)), free: []string{"10.0.0.1", "10.0.0.2"}, waits: true, yields: 1,
		},
		"Yielded": {
			reason: "what the younger pool has stays its own; the watch need not have shown it",
			elder:  elder(), younger: younger(yieldsTo(elder(), 1)), listed: has3, free: []string{"10.0.0.1", "10.0.0.2", "10.0.0.4"}, yields: 1,
		},
		"InFlight": {
			reason: "what was granted before it yielded may become an IPAddress yet",
			elder:  elder(), younger: younger(yieldsTo(elder(), 1), inFlightTo("y", "10.0.0.4")), listed: has3, free: []string{"10.0.0.1", "10.0.0.2"}, yields: 1,
		},
		"InFlightBeyond": {
			reason: "what was granted before the other pool was narrowed may become an IPAddress yet",
			elder:  elder(), younger: aNeighbour("younger", "10.0.0.9", time.Minute, inFlightTo("y", "10.0.0.4")), free: []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"},
		},
		"Allowed": {
			reason: "its owner says that both may give the same",
			elder:  elder(), younger: younger(allows), free: []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"},
		},
		"AllowedHere": {
			reason: "as above; the younger one still yields",
			elder:  elder(allows), younger: younger(), free: []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"}, yields: 1,
		},
		"Deleting": {
			reason: "an older pool that is being deleted is known at a start, too",
			elder:  elder(func(o *v1alpha1.NetworkPool) { o.DeletionTimestamp = &o.CreationTimestamp }), younger: younger(),
			free: []string{"10.0.0.1", "10.0.0.2"}, waits: true, yields: 1,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			lists := &existing{}
			if tc.listed != nil {
				tc.listed(lists, pools.KeyOf(tc.younger))
			}
			api := &oneWrite{}
			a := New(Options{Client: api, Live: api, Lists: lists, ID: "me", Clock: clocktesting.NewFakeClock(noon)})
			a.Fence(t.Context(), []v1alpha1.Pool{tc.elder.DeepCopy(), tc.younger.DeepCopy()})
			for _, o := range []*v1alpha1.NetworkPool{tc.elder, tc.younger} {
				unlocked(a.pool(pools.KeyOf(o))).SetBase(o.DeepCopy())
			}
			p, q := unlocked(a.pool(pools.KeyOf(tc.elder))), unlocked(a.pool(pools.KeyOf(tc.younger)))
			a.findOverlap(q)
			a.keepApart(t.Context(), grants.PoolOf(p))
			a.keepApart(t.Context(), grants.PoolOf(q))
			if free := freeOf(p); !slices.Equal(free, tc.free) {
				t.Errorf("%s: free are %v, not %v", tc.reason, free, tc.free)
			}
			if (p.WaitsFor != "") != tc.waits {
				t.Errorf("%s: it waits: %q", tc.reason, p.WaitsFor)
			}
			if len(q.Yields) != tc.yields {
				t.Errorf("%s: the younger one yields to %v", tc.reason, q.Yields)
			}
			if !tc.waits {
				return
			}
			// W29: a manager serves the younger pool, and says in its status what that yields.
			served := tc.younger.DeepCopy()
			served.ResourceVersion, served.Status.Yields = "11", q.Yields
			a.publish(served)
			q.SetBase(served)
			a.keepApart(t.Context(), grants.PoolOf(p))
			if free := freeOf(p); p.WaitsFor != "" || len(free) != 4 {
				t.Errorf("%s: it waits when that is served: %q; free are %v", tc.reason, p.WaitsFor, free)
			}
		})
	}
}

// A pool grants again when it has seen that it may, and what it has listed then is not in the way (R11).
func TestStillHas(t *testing.T) {
	elder := aNeighbour("elder", "10.0.0.1-10.0.0.4", time.Hour)
	moved := aNeighbour("elder", "10.0.1.1-10.0.1.4", time.Hour, func(o *v1alpha1.NetworkPool) { o.Generation, o.ResourceVersion = 2, "20" })
	narrowed := func(o *v1alpha1.NetworkPool) { o.Status.ObservedGeneration = 1 }
	tests := map[string]struct {
		reason string
		// known is the older pool as it was seen, nil if it was not; exists, what a live read shows.
		known, exists *v1alpha1.NetworkPool
		// word is the generation that the pool yielded to; listed, what a list of the older pool finds.
		word   int64
		listed func(*existing, pools.Key)
		closed bool
		yields int
		free   []string
	}{
		"Unseen":     {reason: "the watch may be behind", word: 1, exists: elder, closed: true, yields: 1, free: []string{"10.0.0.3", "10.0.0.4"}},
		"Gone":       {reason: "nobody grants from it", word: 1, free: []string{"10.0.0.3", "10.0.0.4"}},
		"ALaterSpec": {reason: "it leaves the addresses alone", word: 1, known: moved, exists: moved, free: []string{"10.0.0.3", "10.0.0.4"}},
		"AnEarlier":  {reason: "another manager has seen more", word: 3, known: moved, exists: moved, closed: true, yields: 1, free: []string{"10.0.0.3", "10.0.0.4"}},
		"AnotherOfIts": {
			reason: "it was made anew under its name", word: 1, exists: aNeighbour("elder", "10.0.1.1", 0, func(o *v1alpha1.NetworkPool) { o.UID = "another" }),
			free: []string{"10.0.0.3", "10.0.0.4"},
		},
		"ItsClaimsStay": {
			reason: "what it has is its own, though no watch has shown it; a manager that takes over must list it, too", word: 1, known: moved, exists: moved,
			listed: func(l *existing, key pools.Key) { l.has(key, "e", "10.0.0.3") }, yields: 1, free: []string{"10.0.0.4"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			api, lists := &onePool{exists: tc.exists}, &existing{}
			if tc.listed != nil {
				tc.listed(lists, pools.KeyOf(elder))
			}
			a := New(Options{Client: api, Live: api, Lists: lists, ID: "me", Clock: clocktesting.NewFakeClock(noon)})
			o := aNeighbour("younger", "10.0.0.3-10.0.0.4", time.Minute, yieldsTo(elder, tc.word), narrowed)
			a.publish(o)
			p := unlocked(a.pool(pools.KeyOf(o)))
			p.SetBase(o)
			if tc.known != nil {
				a.publish(tc.known)
				unlocked(a.pool(pools.KeyOf(tc.known))).SetBase(tc.known)
			}
			for range 2 { // the second time nothing is news
				a.keepApart(t.Context(), grants.PoolOf(p))
				reason, _ := p.Closed(noon)
				if free := freeOf(p); len(p.Yields) != tc.yields || (reason == v1alpha1.OverlapReason) != tc.closed || !slices.Equal(free, tc.free) {
					t.Errorf("%s: it yields to %v, is closed: %q, and has %v free", tc.reason, p.Yields, reason, free)
				}
			}
		})
	}
}

// A word is not given for an earlier spec than before: what a manager has seen may be older than what another one saw.
func TestWordIsNotTakenBackByWhoKnowsLess(t *testing.T) {
	elder := aNeighbour("elder", "10.0.0.1-10.0.0.4", time.Hour)
	api := &oneWrite{}
	a := New(Options{Client: api, Live: api, Lists: &existing{}, ID: "me", Clock: clocktesting.NewFakeClock(noon)})
	o := aNeighbour("younger", "10.0.0.3-10.0.0.6", time.Minute, yieldsTo(elder, 3))
	for _, obj := range []*v1alpha1.NetworkPool{elder, o} {
		a.publish(obj)
		unlocked(a.pool(pools.KeyOf(obj))).SetBase(obj)
	}
	p := unlocked(a.pool(pools.KeyOf(o)))
	a.keepApart(t.Context(), grants.PoolOf(p))
	if len(p.Yields) != 1 || p.Yields[0].Generation != 3 {
		t.Errorf("it yields to %v", p.Yields)
	}
}

// freeOf returns the addresses of a pool that it may grant.
func freeOf(p *grants.Memory) (out []string) {
	for r := range p.Ledger.Free() {
		for ip := r.From(); r.Contains(ip); ip = ip.Next() {
			out = append(out, ip.String())
		}
	}
	return out
}

// What the claims of a pool keep after it was narrowed is not given by another pool of the network.
func TestUsedBeyondTheSpecOfANeighbour(t *testing.T) {
	api := &oneWrite{}
	a := New(Options{Client: api, Live: api, Lists: &existing{}, ID: "me", Clock: clocktesting.NewFakeClock(noon)})
	o, narrowed := aNeighbour("pool", "10.0.0.1-10.0.0.2", time.Hour), aNeighbour("narrowed", "10.0.0.9", time.Minute)
	for _, obj := range []*v1alpha1.NetworkPool{o, narrowed} {
		a.publish(obj)
		unlocked(a.pool(pools.KeyOf(obj))).SetBase(obj)
	}
	seeAddress(unlocked(a.pool(pools.KeyOf(narrowed))), "kept", "10.0.0.1", "uid-kept")
	p := unlocked(a.pool(pools.KeyOf(o)))
	a.keepApart(t.Context(), grants.PoolOf(p))
	r, free := p.Ledger.TakeOne()
	if !free || addressText(r) != "10.0.0.2" {
		t.Errorf("it would give %s", addressText(r))
	}
	p.Ledger.Untake(r)
	seesEnd := unlocked(a.pool(pools.KeyOf(narrowed)))
	seesEnd.ForgetAttached("address-kept", types.NamespacedName{Namespace: "ns", Name: "kept"})
	a.keepApart(t.Context(), grants.PoolOf(p))
	if n := p.Ledger.Counts().Available; n != 2 {
		t.Errorf("%d are available when that is released", n)
	}
}

// What a pool may grant to a name alone, though its spec reserves it or leaves it out of tenantAllocation, is kept apart as
// all else is that it may grant.
func TestPinsAreKeptApart(t *testing.T) { // W33
	pinned := func(o *v1alpha1.NetworkPool) { o.Spec.PreAllocations = v1alpha1.PreAllocations{"vip": "10.0.0.1"} }
	kinds := map[string]func(*v1alpha1.NetworkPool){
		"Pinned": func(*v1alpha1.NetworkPool) {},
		"Reserved": func(o *v1alpha1.NetworkPool) {
			o.Spec.Reserved = []v1alpha1.ReservedRange{{Addresses: "10.0.0.1"}}
		},
		"OutsideTenantAllocation": func(o *v1alpha1.NetworkPool) {
			o.Spec.TenantAllocation = &v1alpha1.TenantAllocation{Start: "10.0.0.2", End: "10.0.0.2"}
		},
	}
	narrowed := aNeighbour("narrowed", "10.0.0.9", time.Hour, func(o *v1alpha1.NetworkPool) { o.Generation = 2 })
	words := map[string]func(*v1alpha1.NetworkPool){
		"MadeSince":      func(*v1alpha1.NetworkPool) {},
		"YieldedToItWas": yieldsTo(narrowed, 1),
	}
	for kind, change := range kinds {
		for word, said := range words {
			t.Run(kind+word, func(t *testing.T) {
				api := &oneWrite{}
				a := New(Options{Client: api, Live: api, Lists: &existing{}, ID: "me", Clock: clocktesting.NewFakeClock(noon)})
				o := aNeighbour("pool", "10.0.0.1-10.0.0.2", time.Minute, pinned, change, said)
				for _, obj := range []*v1alpha1.NetworkPool{narrowed.DeepCopy(), o} {
					a.publish(obj)
					unlocked(a.pool(pools.KeyOf(obj))).SetBase(obj)
				}
				seeAddress(unlocked(a.pool(pools.KeyOf(narrowed))), "kept", "10.0.0.1", "uid-kept")
				p := unlocked(a.pool(pools.KeyOf(o)))
				a.keepApart(t.Context(), grants.PoolOf(p))
				vip := claims.Of(newClaim("vip", 0))
				p.Observe(vip)
				if said := p.NoAddress().Message; !strings.Contains(said, "or NetworkPool ns/narrowed has them too") {
					t.Errorf("where nothing is free, claims are told %s", said)
				}
				_, no := p.Choose(p.Claimants[vip.Owner.UID])
				if no == nil || !strings.Contains(no.Message, "NetworkPool ns/narrowed") {
					t.Errorf("the claim is told %v", no)
				}
			})
		}
	}
}

// What another pool had in flight when its spec was seen is kept apart from then on, whatever of it was reconciled by then.
func TestPoolsThatAreNotReconciledAreKeptApart(t *testing.T) { // W34
	was := func(change ...func(*v1alpha1.NetworkPool)) *v1alpha1.NetworkPool {
		return aNeighbour("elder", "10.0.0.1-10.0.0.4", time.Hour, change...)
	}
	narrowed := func(change ...func(*v1alpha1.NetworkPool)) *v1alpha1.NetworkPool {
		return aNeighbour("elder", "10.0.0.9", time.Hour, append(change, func(o *v1alpha1.NetworkPool) { o.Generation, o.ResourceVersion = 2, "20" })...)
	}
	deleted := func(o *v1alpha1.NetworkPool) { o.DeletionTimestamp = &o.CreationTimestamp }
	tests := map[string]struct {
		reason string
		// fenced is what a list shows at the start, watched what the watch does, reconciled what the pool was reconciled with.
		fenced, watched, reconciled *v1alpha1.NetworkPool
		want                        []string
	}{
		"Watched": {
			reason: "the first list of pools failed", watched: narrowed(inFlightTo("x", "10.0.0.1")), want: []string{"10.0.0.2"},
		},
		"DeletedAtTheStart": {
			reason: "it is not taken over, and known all the same", fenced: narrowed(deleted, inFlightTo("x", "10.0.0.1")), want: []string{"10.0.0.2"},
		},
		"ReconciledBefore": {
			reason: "another manager granted it before the spec was changed", reconciled: was(), watched: narrowed(inFlightTo("x", "10.0.0.1")), want: []string{"10.0.0.2"},
		},
		"WatchBehind": {
			reason: "our own write is newer than what the watch shows", reconciled: narrowed(func(o *v1alpha1.NetworkPool) { o.ResourceVersion = "30" }),
			watched: narrowed(inFlightTo("x", "10.0.0.1")), want: []string{"10.0.0.1", "10.0.0.2"},
		},
		"InvalidSpec": {
			reason: "it is unknown what such a pool may grant", watched: narrowed(inFlightTo("x", "10.0.0.1"), func(o *v1alpha1.NetworkPool) { o.Spec.Gateway = "192.0.2.1" }),
			want: []string{"10.0.0.2"},
		},
		"LostBlock": {
			reason: "a carved pool has it open, and its IPAllocation is gone",
			watched: narrowed(func(o *v1alpha1.NetworkPool) {
				o.Spec = v1alpha1.NetworkPoolSpec{Carve: &v1alpha1.Carve{PoolRef: v1alpha1.PoolReference{Kind: v1alpha1.NetworkPoolKind, Name: "parent"}, PrefixLength: 32}}
				o.Status.Blocks = []v1alpha1.CarvedBlock{{Range: "10.0.0.1/32", Allocation: "elder-1", UID: "u"}}
			}),
			want: []string{"10.0.0.2"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			api := &oneWrite{}
			a := New(Options{Client: api, Live: api, Lists: &existing{}, ID: "me", Clock: clocktesting.NewFakeClock(noon)})
			if tc.fenced != nil {
				a.Fence(t.Context(), []v1alpha1.Pool{tc.fenced})
			}
			if tc.reconciled != nil {
				unlocked(a.pool(pools.KeyOf(tc.reconciled))).SetBase(tc.reconciled)
			}
			if tc.watched != nil {
				a.ObservePool(tc.watched)
			}
			o := aNeighbour("pool", "10.0.0.1-10.0.0.2", time.Minute, yieldsTo(was(), 1))
			a.publish(o)
			p := unlocked(a.pool(pools.KeyOf(o)))
			p.SetBase(o)
			a.keepApart(t.Context(), grants.PoolOf(p))
			if free := freeOf(p); !slices.Equal(free, tc.want) {
				t.Errorf("%s: free are %v, not %v", tc.reason, free, tc.want)
			}
		})
	}
}

// A pool that was edited, and is not reconciled with that yet, keeps what it has in use and in flight: others go by its new
// spec at once, and are woken before it. The elder is one to which it had yielded.
func TestWhatAnEditedPoolKeepsIsKeptApart(t *testing.T) {
	elder := aNeighbour("elder", "10.0.0.1-10.0.0.2", time.Hour)
	was := func(change ...func(*v1alpha1.NetworkPool)) *v1alpha1.NetworkPool {
		return aNeighbour("younger", "10.0.0.1-10.0.0.4", time.Minute, append([]func(*v1alpha1.NetworkPool){yieldsTo(elder, 1)}, change...)...)
	}
	now := func(version string, generation int64, addresses string, change ...func(*v1alpha1.NetworkPool)) *v1alpha1.NetworkPool {
		return was(append(change, func(o *v1alpha1.NetworkPool) {
			o.ResourceVersion, o.Generation, o.Spec.Addresses = version, generation, []string{addresses}
		})...)
	}
	invalid := func(o *v1alpha1.NetworkPool) { o.Spec.Gateway = "192.0.2.1" }
	allows := func(o *v1alpha1.NetworkPool) { o.Spec.AllowOverlap = true }
	again := func(o *v1alpha1.NetworkPool) { o.UID, o.Status = "uid-another", v1alpha1.NetworkPoolStatus{} }
	carved := func(version string, blocks ...string) *v1alpha1.NetworkPool {
		o := was()
		o.Spec = v1alpha1.NetworkPoolSpec{Carve: &v1alpha1.Carve{PoolRef: v1alpha1.PoolReference{Kind: v1alpha1.NetworkPoolKind, Name: "parent"}, PrefixLength: 32}}
		o.ResourceVersion, o.Status.Yields = version, nil
		for i, block := range blocks {
			o.Status.Blocks = append(o.Status.Blocks, v1alpha1.CarvedBlock{Range: block, Prefix: 24, Allocation: fmt.Sprint("b-", i), UID: "u"})
		}
		return o
	}
	kept := []string{"10.0.0.2"}
	for name, tc := range map[string]struct {
		reason string
		was    *v1alpha1.NetworkPool
		// seen are the versions that the watch shows; reconciled, with which of them the pool is reconciled, nil: with none.
		seen       []*v1alpha1.NetworkPool
		reconciled *v1alpha1.NetworkPool
		inFlight   bool
		before     []string
		want       []string
	}{
		"InUse":     {reason: "its claim keeps it", was: was(), seen: []*v1alpha1.NetworkPool{now("20", 2, "10.0.0.9")}, before: kept, want: kept},
		"InFlight":  {reason: "it may become an IPAddress yet", was: was(inFlightTo("x", "10.0.0.1")), seen: []*v1alpha1.NetworkPool{now("20", 2, "10.0.0.9", inFlightTo("x", "10.0.0.1"))}, inFlight: true, before: kept, want: kept},
		"MadeAgain": {reason: "the claims of the one before keep it", was: was(), seen: []*v1alpha1.NetworkPool{now("20", 1, "10.0.0.9", again)}, before: kept, want: kept},
		"Invalid": {
			reason: "others go by the spec between, with which it was never reconciled", was: was(),
			seen: []*v1alpha1.NetworkPool{now("20", 2, "10.0.0.9"), now("30", 3, "10.0.0.9", invalid)}, reconciled: now("30", 3, "10.0.0.9", invalid), before: kept, want: kept,
		},
		"ClosedBlock": {
			reason: "a block that was lost is open no more, and its claims keep what they have", was: carved("10", "10.0.0.1/32"),
			seen: []*v1alpha1.NetworkPool{carved("20")}, before: kept, want: kept,
		},
		"Allowed": {
			reason: "its owner says that both may give the same, and has edited something else", was: was(allows), seen: []*v1alpha1.NetworkPool{now("20", 2, "10.0.0.1-10.0.0.5", allows)},
			before: []string{"10.0.0.1", "10.0.0.2"}, want: []string{"10.0.0.1", "10.0.0.2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			api := &oneWrite{}
			a := New(Options{Client: api, Live: api, Lists: &existing{}, ID: "me", Clock: clocktesting.NewFakeClock(noon)})
			for _, o := range []*v1alpha1.NetworkPool{elder.DeepCopy(), tc.was} {
				a.publish(o)
				unlocked(a.pool(pools.KeyOf(o))).SetBase(o.DeepCopyObject().(v1alpha1.Pool))
			}
			p, y := unlocked(a.pool(pools.KeyOf(elder))), unlocked(a.pool(pools.KeyOf(tc.was)))
			if !tc.inFlight {
				y.Holder = true
				seeAddress(y, "kept", "10.0.0.1", "uid-kept")
			}
			check := func(when string, want []string) {
				t.Helper()
				a.keepApart(t.Context(), grants.PoolOf(p))
				if free := freeOf(p); !slices.Equal(free, want) {
					t.Errorf("%s, %s: free are %v, not %v", tc.reason, when, free, want)
				}
			}
			check("before", tc.before)
			for _, o := range tc.seen {
				a.ObservePool(o)
				check("edited, not reconciled", tc.want)
			}
			if tc.reconciled != nil {
				y.SetBase(tc.reconciled)
				check("reconciled", tc.want)
			}
		})
	}
}

// A pool that is widened again, while another one looks what it has beyond its narrow spec, is looked at by that spec: by the
// wider one it would be a neighbour.
func TestALookIsByTheSpecsOfOneTime(t *testing.T) {
	api := &oneWrite{}
	a := New(Options{Client: api, Live: api, Lists: &existing{}, ID: "me", Clock: clocktesting.NewFakeClock(noon)})
	elder := aNeighbour("elder", "10.0.0.1-10.0.0.2", time.Hour)
	younger := func(generation int64, addresses string) *v1alpha1.NetworkPool {
		return aNeighbour("younger", addresses, time.Minute, func(o *v1alpha1.NetworkPool) {
			o.Generation, o.ResourceVersion = generation, fmt.Sprint(10*generation)
		})
	}
	see := func(o *v1alpha1.NetworkPool) *grants.Memory {
		a.publish(o)
		m := unlocked(a.pool(pools.KeyOf(o)))
		m.Holder = true
		m.SetBase(o)
		return m
	}
	p, y := see(elder), see(younger(2, "10.0.0.9"))
	seeAddress(y, "kept", "10.0.0.1", "uid-kept")
	specs, neighbours := a.overlaps.look(p.Key)
	if len(neighbours) != 0 {
		t.Fatalf("neighbours are %v", neighbours)
	}
	see(younger(3, "10.0.0.1-10.0.0.9"))
	apart := map[netipx.IPRange]pools.Key{}
	a.usedBeyond(t.Context(), grants.PoolOf(p), specs, apart)
	if len(apart) != 1 {
		t.Errorf("kept apart is %v", apart)
	}
	a.publish(younger(2, "10.0.0.9")) // the reconcile of a version that a watch has overtaken
	if _, neighbours := a.overlaps.look(p.Key); len(neighbours) != 1 {
		t.Errorf("neighbours are %v when an older version is published", neighbours)
	}
}

// A grant of another manager that has gone from the status of its pool, before a watch showed what became of it, counts as
// in use until a list has shown that.
func TestVanishedGrantsAreKeptApart(t *testing.T) {
	for name, listed := range map[string]bool{"Listed": true, "NotListed": false} {
		t.Run(name, func(t *testing.T) {
			lists := &existing{}
			api := &oneWrite{}
			options := Options{Client: api, Live: api, Lists: lists, ID: "me", Clock: clocktesting.NewFakeClock(noon)}
			if !listed {
				options.Lists = unlisted{}
			}
			a := New(options)
			a.ObservePool(aNeighbour("narrowed", "10.0.0.9", time.Hour, inFlightTo("x", "10.0.0.1"), inFlightTo("y", "10.0.0.2")))
			later := aNeighbour("narrowed", "10.0.0.9", time.Hour, func(o *v1alpha1.NetworkPool) { o.ResourceVersion = "20" })
			a.ObservePool(later)
			lists.has(pools.KeyOf(later), "y", "10.0.0.2")
			o := aNeighbour("pool", "10.0.0.1-10.0.0.3", time.Minute)
			a.publish(o)
			p := unlocked(a.pool(pools.KeyOf(o)))
			p.SetBase(o)
			a.keepApart(t.Context(), grants.PoolOf(p))
			want := []string{"10.0.0.3"}
			if listed {
				want = []string{"10.0.0.1", "10.0.0.3"}
			}
			if free := freeOf(p); !slices.Equal(free, want) {
				t.Errorf("free are %v, not %v", free, want)
			}
		})
	}
}

// What the first lists of a manager show of a pool may be newer than what they show of its claims: a pool that was edited is
// listed once more, before a neighbour grants what it may have beyond its spec.
func TestEditedPoolsAreListedOnce(t *testing.T) {
	edited := func(o *v1alpha1.NetworkPool) { o.Generation = 2 }
	elsewhere := func(o *v1alpha1.NetworkPool) { o.Spec.Network = "other" }
	for name, tc := range map[string]struct {
		reason string
		lists  Lister
		pool   *v1alpha1.NetworkPool
		lost   bool
		want   []string
	}{
		"Edited":       {reason: "it has what no watch has shown yet", lists: &existing{}, pool: aNeighbour("beside", "10.0.0.9", time.Hour, edited), want: []string{"10.0.0.2"}},
		"NoAnswer":     {reason: "nothing is known", lists: unlisted{}, pool: aNeighbour("beside", "10.0.0.9", time.Hour, edited), lost: true, want: []string{"10.0.0.1", "10.0.0.2"}},
		"NeverEdited":  {reason: "it has nothing beyond its spec", lists: unlisted{}, pool: aNeighbour("beside", "10.0.0.9", time.Hour), want: []string{"10.0.0.1", "10.0.0.2"}},
		"OtherNetwork": {reason: "it may have what it likes", lists: unlisted{}, pool: aNeighbour("beside", "10.0.0.9", time.Hour, edited, elsewhere), want: []string{"10.0.0.1", "10.0.0.2"}},
	} {
		t.Run(name, func(t *testing.T) {
			if l, is := tc.lists.(*existing); is {
				l.has(pools.KeyOf(tc.pool), "x", "10.0.0.1")
			}
			api := &oneWrite{}
			a := New(Options{Client: api, Live: api, Lists: tc.lists, ID: "me", Clock: clocktesting.NewFakeClock(noon)})
			a.ObservePool(tc.pool)
			o := aNeighbour("pool", "10.0.0.1-10.0.0.2", time.Minute)
			a.publish(o)
			p := unlocked(a.pool(pools.KeyOf(o)))
			p.SetBase(o)
			a.keepApart(t.Context(), grants.PoolOf(p))
			if free := freeOf(p); !slices.Equal(free, tc.want) {
				t.Errorf("%s: free are %v, not %v", tc.reason, free, tc.want)
			}
			if lost := p.Outstanding != ""; lost != tc.lost {
				t.Errorf("%s: it waits: %t: %s", tc.reason, lost, p.Outstanding)
			}
		})
	}
}

// A pool that was made again under its name is another one: what was listed of the one before says nothing of it.
func TestAPoolThatIsMadeAgainIsListedAgain(t *testing.T) {
	lists, api := &existing{}, &oneWrite{}
	a := New(Options{Client: api, Live: api, Lists: lists, ID: "me", Clock: clocktesting.NewFakeClock(noon)})
	o := aNeighbour("pool", "10.0.0.1-10.0.0.2", time.Minute)
	a.publish(o)
	p := unlocked(a.pool(pools.KeyOf(o)))
	p.SetBase(o)
	look := func(uid types.UID, version string) []string {
		a.ObservePool(aNeighbour("beside", "10.0.0.9", time.Hour, func(o *v1alpha1.NetworkPool) { o.Generation, o.UID, o.ResourceVersion = 2, uid, version }))
		a.keepApart(t.Context(), grants.PoolOf(p))
		return freeOf(p)
	}
	if free := look("first", "20"); !slices.Equal(free, []string{"10.0.0.1", "10.0.0.2"}) {
		t.Fatalf("free are %v", free)
	}
	lists.has(pools.Key{Kind: v1alpha1.NetworkPoolKind, Namespace: o.Namespace, Name: "beside"}, "x", "10.0.0.1")
	if free := look("second", "30"); !slices.Equal(free, []string{"10.0.0.2"}) {
		t.Errorf("free are %v, and another one of the name has 10.0.0.1", free)
	}
}

// unlisted is an API server of which no list has an answer.
type unlisted struct{}

func (unlisted) List(context.Context, client.Object, string, func(client.Object)) (string, error) {
	return "", apierrors.NewTimeoutError("the server is busy", 1)
}

// fleetBeside is a pool beside so many others, each changed.
func fleetBeside(spec v1alpha1.NetworkPoolSpec, n int, change func(int, *v1alpha1.NetworkPool)) (*Allocator, *grants.Pool) {
	a := New(Options{Clock: clocktesting.NewFakeClock(noon)})
	see := func(o *v1alpha1.NetworkPool) *grants.Pool {
		a.publish(o)
		m := unlocked(a.pool(pools.KeyOf(o)))
		m.SetBase(o)
		return grants.PoolOf(m)
	}
	for i := range n {
		o := aNeighbour(fmt.Sprint("pool-", i), fmt.Sprintf("10.%d.%d.0/24", i/256, i%256), time.Hour)
		change(i, o)
		see(o)
	}
	o := aNeighbour("mine", "", time.Minute)
	o.Spec = spec
	return a, see(o)
}

// flying has a pool have so many grants in flight.
func flying(n int) func(int, *v1alpha1.NetworkPool) {
	return func(i int, o *v1alpha1.NetworkPool) {
		for j := range n {
			inFlightTo(fmt.Sprint("c-", j), fmt.Sprintf("10.%d.%d.%d", i/256, i%256, j+1))(o)
		}
	}
}

func ofSubnets(bits int) v1alpha1.NetworkPoolSpec {
	return v1alpha1.NetworkPoolSpec{CIDR: "11.0.0.0/8", Prefix: ptr.To(int32(bits))}
}

// What a reconcile allocates to keep a pool apart does not grow with what other pools have in flight, nor with the networks
// that the pool has.
func TestKeepingApartDoesNotGrow(t *testing.T) {
	bytesOf := func(spec v1alpha1.NetworkPoolSpec, change func(int, *v1alpha1.NetworkPool)) float64 {
		const runs = 20
		a, p := fleetBeside(spec, 50, change)
		a.keepApart(t.Context(), p) // what is read once
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range runs {
			a.keepApart(t.Context(), p)
		}
		runtime.ReadMemStats(&after)
		return float64(after.TotalAlloc-before.TotalAlloc) / runs
	}
	few := bytesOf(ofSubnets(8), flying(1))
	for name, many := range map[string]float64{
		"100 grants in flight in each of 50 pools": bytesOf(ofSubnets(24), flying(100)),
		"a pool of 65536 networks":                 bytesOf(ofSubnets(24), flying(1)),
	} {
		if many > 2*few {
			t.Errorf("%s: %.0f bytes a look, not about %.0f", name, many, few)
		}
	}
}

// What keeping apart costs each reconcile of any pool.
func BenchmarkKeepApart(b *testing.B) {
	plain := v1alpha1.NetworkPoolSpec{CIDR: "11.0.0.0/24"}
	for _, bc := range []struct {
		name   string
		spec   v1alpha1.NetworkPoolSpec
		n      int
		change func(int, *v1alpha1.NetworkPool)
	}{
		{"1000 pools", plain, 1000, flying(0)},
		{"1000 pools with 100 in flight each", plain, 1000, flying(100)},
		{"65536 networks beside 10 pools", ofSubnets(24), 10, flying(1)},
	} {
		b.Run(bc.name, func(b *testing.B) {
			a, p := fleetBeside(bc.spec, bc.n, bc.change)
			b.ReportAllocs()
			for b.Loop() {
				a.keepApart(b.Context(), p)
			}
		})
	}
}

// A pool yielded to one of another namespace, and is served by a manager now that watches its own namespace alone: it
// grants when that one shares nothing any more, but for what that still has; and it does not read that at each look.
func TestYieldsToAPoolOutOfView(t *testing.T) {
	elder := func(addresses string, change ...func(*v1alpha1.NetworkPool)) *v1alpha1.NetworkPool {
		return aNeighbour("elder", addresses, time.Hour, append(change, func(o *v1alpha1.NetworkPool) { o.Namespace, o.Generation = "other", 2 })...)
	}
	moved := elder("10.9.0.1")
	for name, tc := range map[string]struct {
		exists *v1alpha1.NetworkPool
		listed func(*existing)
		fails  bool
		closed string // what its message says
		free   int
	}{
		"Moved":    {exists: moved, free: 4},
		"Gone":     {free: 4},
		"InFlight": {exists: elder("10.9.0.1", inFlightTo("x", "10.0.0.1")), free: 3},
		"InUse":    {exists: moved, listed: func(l *existing) { l.has(pools.KeyOf(moved), "x", "10.0.0.1") }, free: 3},
		"Shares":   {exists: elder("10.0.0.4-10.0.0.9"), closed: "use different addresses", free: 4},
		"Unlisted": {exists: moved, fails: true, closed: "run a manager without --namespace", free: 4},
	} {
		t.Run(name, func(t *testing.T) {
			api, lists := &onePool{exists: tc.exists}, &existing{}
			if tc.listed != nil {
				tc.listed(lists)
			}
			clock := clocktesting.NewFakeClock(noon)
			options := Options{Client: api, Live: api, Lists: lists, ID: "me", Namespace: "ns", Clock: clock}
			if tc.fails {
				options.Lists = unlisted{}
			}
			a := New(options)
			o := aNeighbour("pool", "10.0.0.1-10.0.0.4", time.Minute, yieldsTo(moved, 1))
			a.publish(o)
			p := unlocked(a.pool(pools.KeyOf(o)))
			p.SetBase(o)
			look := func() {
				a.keepApart(t.Context(), grants.PoolOf(p))
				reason, message := p.Closed(noon)
				if (reason != "") != (tc.closed != "") || !strings.Contains(message, tc.closed) || len(freeOf(p)) != tc.free {
					t.Errorf("it is closed: %q: %s; free are %v", reason, message, freeOf(p))
				}
			}
			look()
			api.exists, a.lists.lists = nil, unlisted{}
			look()
			if tc.fails { // W29: it has the right to list
				clock.Step(time.Minute)
				a.lists.lists, api.exists = lists, tc.exists
				a.keepApart(t.Context(), grants.PoolOf(p))
				if reason, message := p.Closed(noon); reason != "" {
					t.Errorf("it is closed where it can read: %q: %s", reason, message)
				}
			}
			if clock.Step(time.Minute); tc.exists != nil {
				a.keepApart(t.Context(), grants.PoolOf(p))
				if reason, _ := p.Closed(noon); reason != "" || len(freeOf(p)) != 4 {
					t.Errorf("it is closed when the other one is gone: %q; free are %v", reason, freeOf(p))
				}
			}
		})
	}
}
