package tenancy

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

const full, refusal = v1alpha1.PoolExhaustedReason, v1alpha1.AllocationFailedReason

func newPendingBlock(name string) *CurrentAllocation {
	return &CurrentAllocation{Pool: newPoolRef(name), Count: 8, Phase: v1alpha1.AllocationPending}
}

func newFailedBlock(name, reason string) *CurrentAllocation {
	s := newPendingBlock(name)
	s.Phase, s.Reason, s.Message = v1alpha1.AllocationFailed, reason, "what the allocator says"
	return s
}

func tried(reason string, names ...string) (out []PoolAttempt) {
	for _, n := range names {
		out = append(out, PoolAttempt{Pool: newPoolRef(n), Count: 8, Reason: reason})
	}
	return out
}

// TestDecideInitialBlock checks that pools are tried by priority until one grants the block (B24, B25, F7), that no
// pool, an unknown pool and full pools are reported (B31, B32), and that a pool that has refused is not asked again
// before it has room (B40).
func TestDecideInitialBlock(t *testing.T) {
	a, b, c := openPool("a", 4), openPool("b", 4), openPool("c", 4)
	roomy := func(p Pool) Pool { p.LargestFreeBlock = 8; return p }
	state := func(p Pool, s PoolAvailability) Pool { p.Availability, p.Message = s, "says no"; return p }
	with := func(s *CurrentAllocation, change func(*CurrentAllocation)) *CurrentAllocation { change(s); return s }
	abc := []Pool{a, b, c}
	tests := map[string]struct {
		reason string
		pools  []Pool
		at     *CurrentAllocation
		tried  []PoolAttempt
		count  int32 // 0 means 8, -1 means none
		want   string
		kept   []PoolAttempt // the recorded attempts
	}{
		"First":      {reason: "nothing was tried; that it reports no room is no reason to pass it over", pools: abc, want: "Try a Reconciling asking NetworkPool a"},
		"Asked":      {reason: "it answers by itself", pools: abc, at: newPendingBlock("a"), want: "Wait - Reconciling"},
		"Unseen":     {reason: "a new allocation has no phase yet", pools: abc, at: with(newPendingBlock("a"), func(s *CurrentAllocation) { s.Phase = "" }), want: "Wait - Reconciling"},
		"Served":     {reason: "it has what it wants", pools: abc, at: with(newPendingBlock("a"), func(s *CurrentAllocation) { s.Phase = v1alpha1.AllocationAllocated }), tried: tried(full, "b"), want: "Done - Ready"},
		"ServedGone": {reason: "what was given stays, whatever the settings say", pools: nil, at: with(newPendingBlock("z"), func(s *CurrentAllocation) { s.Phase, s.Count = v1alpha1.AllocationAllocated, 3 }), want: "Done - Ready"},
		"Releasing":  {reason: "the name is not free yet", pools: abc, at: with(newFailedBlock("a", full), func(s *CurrentAllocation) { s.Deleting = true }), tried: tried(full, "a"), want: "Wait - Reconciling released", kept: tried(full, "a")},
		"Second":     {reason: "only a failure makes it the next one's turn", pools: []Pool{roomy(a), b, c}, at: newFailedBlock("a", full), want: "Replace b Reconciling asking NetworkPool b", kept: tried(full, "a")},
		"SecondGoes": {reason: "the name is free, what failed is remembered", pools: abc, tried: tried(full, "a"), want: "Try b Reconciling", kept: tried(full, "a")},
		"Third":      {reason: "and so on", pools: abc, at: newFailedBlock("b", full), tried: tried(full, "a"), want: "Replace c Reconciling", kept: tried(full, "a", "b")},
		"Home":       {reason: "all failed: it waits on the first", pools: abc, at: newFailedBlock("c", full), tried: tried(full, "a", "b"), want: "Replace a Reconciling", kept: tried(full, "a", "b", "c")},
		"HomeGoes":   {reason: "the same, when the name is free", pools: abc, tried: tried(full, "a", "b", "c"), want: "Try a Reconciling", kept: tried(full, "a", "b", "c")},
		"HomeAsked":  {reason: "it may have got room meanwhile", pools: abc, at: newPendingBlock("a"), tried: tried(full, "a", "b", "c"), want: "Wait - Reconciling", kept: tried(full, "a", "b", "c")},
		"Exhausted": {reason: "nothing more can be done", pools: abc, at: newFailedBlock("a", full), tried: tried(full, "a", "b", "c"), kept: tried(full, "a", "b", "c"),
			want: "Exhausted - PoolExhausted no pool gives 8 addresses: NetworkPool a has no 8 free addresses in a row; NetworkPool b has no 8 free addresses in a row; NetworkPool c has no 8 free"},
		"One":           {reason: "a single pool is home", pools: []Pool{a}, at: newFailedBlock("a", full), want: "Exhausted - PoolExhausted", kept: tried(full, "a")},
		"Room":          {reason: "any pool that gets room serves", pools: []Pool{a, b, roomy(c)}, at: newFailedBlock("a", full), tried: tried(full, "a", "b", "c"), want: "Replace c Reconciling", kept: tried(full, "a", "b", "c")},
		"RoomInTwo":     {reason: "in the order of the pools", pools: []Pool{a, roomy(b), roomy(c)}, at: newFailedBlock("a", full), tried: tried(full, "a", "b", "c"), want: "Replace b Reconciling", kept: tried(full, "a", "b", "c")},
		"RoomHere":      {reason: "the allocator serves it where it is", pools: []Pool{roomy(a), b, c}, at: newFailedBlock("a", full), tried: tried(full, "a", "b", "c"), want: "Wait - PoolExhausted what the allocator says", kept: tried(full, "a", "b", "c")},
		"RoomAway":      {reason: "away from home too", pools: []Pool{a, roomy(b), c}, at: newFailedBlock("b", full), tried: tried(full, "a", "b", "c"), want: "Wait - PoolExhausted", kept: tried(full, "a", "b", "c")},
		"RoomLost":      {reason: "another Cluster was faster: home", pools: abc, at: newFailedBlock("b", full), tried: tried(full, "a", "b", "c"), want: "Replace a Reconciling", kept: tried(full, "a", "b", "c")},
		"RoomClosed":    {reason: "a closed pool has none", pools: []Pool{a, state(roomy(b), PoolClosed)}, at: newFailedBlock("a", full), tried: tried(full, "b"), want: "Exhausted - PoolExhausted NetworkPool b says no", kept: tried(full, "b", "a")},
		"Missing":       {reason: "passed over", pools: []Pool{state(a, PoolMissing), b}, want: "Try b Reconciling"},
		"Closed":        {reason: "passed over", pools: []Pool{state(a, PoolClosed), b}, want: "Try b Reconciling"},
		"Settling":      {reason: "worth waiting for: another pool is second best", pools: []Pool{state(a, PoolSettling), b}, want: "Try a Reconciling"},
		"SettlingAsked": {reason: "it will answer", pools: []Pool{state(a, PoolSettling), b}, at: newPendingBlock("a"), want: "Wait - Reconciling waiting for NetworkPool a"},
		"ClosedAsked":   {reason: "it will not", pools: []Pool{state(a, PoolClosed), b}, at: newPendingBlock("a"), want: "Replace b Reconciling"},
		"MissingAsked":  {reason: "nor will this", pools: []Pool{state(a, PoolMissing), b}, at: newPendingBlock("a"), want: "Replace b Reconciling"},
		"Reopened":      {reason: "it was never asked", pools: []Pool{a, b}, at: newFailedBlock("b", full), want: "Replace a Reconciling", kept: tried(full, "b")},
		"ReopenedLate":  {reason: "the second has the word", pools: []Pool{a, b}, at: newPendingBlock("b"), want: "Wait - Reconciling"},
		"HomeClosed":    {reason: "the first of those that are open is home", pools: []Pool{state(a, PoolClosed), b, c}, at: newFailedBlock("c", full), tried: tried(full, "a", "b"), want: "Replace b Reconciling", kept: tried(full, "a", "b", "c")},
		"NoneExists":    {reason: "B31", pools: []Pool{state(a, PoolMissing), state(b, PoolMissing)}, want: "Exhausted - ValidationFailed none of the pools of ProviderConfig ns/config exists: NetworkPool a; NetworkPool b; create one"},
		"OneMissing":    {reason: "no size would help", pools: []Pool{state(a, PoolMissing)}, want: "Exhausted - ValidationFailed NetworkPool a of ProviderConfig ns/config does not exist; create it, or correct network.poolRefs"},
		"NoneOpen":      {reason: "one exists, so it is not the settings", pools: []Pool{state(a, PoolMissing), state(b, PoolClosed)}, want: "Exhausted - NetworkNotReady"},
		"NoneOpenAsked": {reason: "its allocation stays", pools: []Pool{state(a, PoolClosed)}, at: newPendingBlock("a"), want: "Exhausted - NetworkNotReady NetworkPool a says no"},
		"NoPools":       {reason: "B31", want: "Exhausted - ValidationFailed names no pools"},
		"New":           {reason: "a pool that was added is asked", pools: []Pool{a, b, c}, at: newFailedBlock("a", full), tried: tried(full, "a", "c"), want: "Replace b Reconciling", kept: tried(full, "a", "c")},
		"Unlisted":      {reason: "settings changed before it was served", pools: []Pool{b, c}, at: newPendingBlock("a"), want: "Replace b Reconciling"},
		"Forgotten":     {reason: "what is not listed is not remembered", pools: []Pool{b, c}, at: newFailedBlock("b", full), tried: tried(full, "a"), want: "Replace c Reconciling", kept: tried(full, "b")},
		"Kinds": {reason: "equal names are not equal pools", pools: []Pool{a, {Ref: v1alpha1.PoolReference{Kind: v1alpha1.GlobalNetworkPoolKind, Name: "a"}, Availability: PoolOpen}},
			at: newFailedBlock("a", full), want: "Replace a Reconciling asking GlobalNetworkPool a", kept: tried(full, "a")},
		"Refused": {reason: "another pool may not", pools: []Pool{a, b}, at: newFailedBlock("a", refusal), want: "Replace b Reconciling", kept: tried(refusal, "a")},
		"RefusedRoom": {reason: "room is not what was wanting", pools: []Pool{roomy(a), b}, at: newFailedBlock("b", full), tried: tried(refusal, "a"),
			want: "Exhausted - PoolExhausted NetworkPool a refused the allocation; NetworkPool b has no 8", kept: append(tried(refusal, "a"), tried(full, "b")...)},
		"RefusedLast": {reason: "it waits where room can come", pools: []Pool{a, b}, at: newFailedBlock("b", refusal), tried: tried(full, "a"), want: "Replace a Reconciling", kept: append(tried(full, "a"), tried(refusal, "b")...)},
		"RefusedAll":  {reason: "all refuse", pools: []Pool{roomy(a), roomy(b)}, at: newFailedBlock("b", refusal), tried: tried(refusal, "a"), want: "Exhausted - AllocationFailed NetworkPool b refuses: what the allocator says", kept: tried(refusal, "a", "b")},
		"Smaller":     {reason: "a smaller size is another question", pools: abc, at: newFailedBlock("a", full), tried: tried(full, "a", "b", "c"), count: 4, want: "Replace a Reconciling"},
		"SmallerGoes": {reason: "what failed for another size is forgotten", pools: abc, tried: tried(full, "a", "b", "c"), count: 4, want: "Try a Reconciling"},
		"None":        {reason: "an elastic Cluster that begins with nothing", pools: abc, count: -1, want: "Done - Ready the Cluster begins without load-balancer addresses"},
		"NoneAnyMore": {reason: "a waiting block that is no longer needed is deleted", pools: abc, at: newFailedBlock("a", full), count: -1, want: "Replace - Reconciling no longer needed"},
		"Manual":      {reason: "what a person made is left alone", pools: abc, at: with(newFailedBlock("a", refusal), func(s *CurrentAllocation) { s.Manual, s.Count = true, 0 }), want: "Wait - AllocationFailed what the allocator says"},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			if c.count == 0 {
				c.count = 8
			}
			got := DecideInitialBlock(AllocationRequest{Config: types.NamespacedName{Namespace: "ns", Name: "config"}, Count: max(c.count, 0), Pools: c.pools, Current: c.at, Attempts: c.tried})
			want := strings.SplitN(c.want+" ", " ", 4)
			if string(got.Action) != want[0] || got.Pool.Name != strings.Trim(want[1], "-") || got.Reason != want[2] ||
				!strings.Contains(got.Message, strings.TrimSpace(want[3])) {
				t.Errorf("%s: got %+v", c.reason, got)
			}
			if diff := cmp.Diff(c.kept, got.Attempts); diff != "" {
				t.Errorf("%s: remembered:\n%s", c.reason, diff)
			}
		})
	}
}

// TestKeepDecision checks that a size that cannot be parsed takes no block away.
func TestKeepDecision(t *testing.T) {
	wrong := errors.New("write a whole number")
	served := &CurrentAllocation{Phase: v1alpha1.AllocationAllocated, Message: "allocated 8 IPs"}
	leaving := &CurrentAllocation{Phase: v1alpha1.AllocationAllocated, Deleting: true}
	for name, c := range map[string]struct {
		at   *CurrentAllocation
		want Decision
	}{
		"served":    {served, Decision{Action: ActionDone, Reason: "Ready", Message: "allocated 8 IPs; write a whole number"}},
		"releasing": {leaving, Decision{Action: ActionExhausted, Reason: "ValidationFailed", Message: "write a whole number"}},
		"waiting":   {newPendingBlock("a"), Decision{Action: ActionExhausted, Reason: "ValidationFailed", Message: "write a whole number"}},
		"not begun": {nil, Decision{Action: ActionExhausted, Reason: "ValidationFailed", Message: "write a whole number"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, c.at.KeepDecision(wrong)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAttemptsRoundTrip(t *testing.T) {
	want := append(tried(full, "a"), PoolAttempt{Pool: v1alpha1.PoolReference{Kind: v1alpha1.GlobalNetworkPoolKind, Name: "b"}, Count: 3, Reason: refusal})
	if diff := cmp.Diff(want, ParseAttempts(FormatAttempts(want))); diff != "" {
		t.Error(diff)
	}
	for _, text := range []string{"", "?", `{"pool": 1}`, "[1]"} {
		if got := ParseAttempts(text); len(got) > 0 {
			t.Errorf("%q: got %v", text, got)
		}
	}
	if got := FormatAttempts(nil); got != "" {
		t.Errorf("nothing is %q", got)
	}
	if got := ParseAttempts(`[{"pool": {"name": "a"}}]`); got[0].Pool != newPoolRef("a") {
		t.Errorf("the kind is not stated: %v", got)
	}
}

// TestParseAttempts checks the text of the annotation, and that what earlier releases wrote is parsed the same: on
// Clusters it was as it is now; on leases, the pool was inline.
func TestParseAttempts(t *testing.T) {
	global := v1alpha1.PoolReference{Kind: v1alpha1.GlobalNetworkPoolKind, Name: "b"}
	for name, c := range map[string]struct {
		earlier, now string
		want         []PoolAttempt
	}{
		"Cluster": {
			earlier: `[{"pool":{"kind":"NetworkPool","name":"a"},"count":8,"reason":"PoolExhausted"},{"pool":{"kind":"GlobalNetworkPool","name":"b"},"count":4,"reason":"AllocationFailed"}]`,
			now:     `[{"pool":{"kind":"NetworkPool","name":"a"},"count":8,"reason":"PoolExhausted"},{"pool":{"kind":"GlobalNetworkPool","name":"b"},"count":4,"reason":"AllocationFailed"}]`,
			want:    []PoolAttempt{{Pool: newPoolRef("a"), Count: 8, Reason: v1alpha1.PoolExhaustedReason}, {Pool: global, Count: 4, Reason: v1alpha1.AllocationFailedReason}},
		},
		"lease": {
			earlier: `[{"kind":"NetworkPool","name":"a","was":"2/5"},{"kind":"GlobalNetworkPool","name":"b","was":"1/0"}]`,
			now:     `[{"pool":{"kind":"NetworkPool","name":"a"},"was":"2/5"},{"pool":{"kind":"GlobalNetworkPool","name":"b"},"was":"1/0"}]`,
			want:    []PoolAttempt{{Pool: newPoolRef("a"), Fingerprint: "2/5"}, {Pool: global, Fingerprint: "1/0"}},
		},
	} {
		for _, text := range []string{c.earlier, c.now} {
			if diff := cmp.Diff(c.want, ParseAttempts(text)); diff != "" {
				t.Errorf("%s, %s: %s", name, text, diff)
			}
		}
		if got := FormatAttempts(c.want); got != c.now {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestNewCurrentAllocation(t *testing.T) {
	made := func(change func(*v1alpha1.IPAllocation)) *v1alpha1.IPAllocation {
		a := &v1alpha1.IPAllocation{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1alpha1.ProviderConfigLabel: "config"}},
			Spec:       v1alpha1.IPAllocationSpec{PoolRef: v1alpha1.PoolReference{Name: "a"}, Count: ptr.To[int32](8)},
			Status: v1alpha1.IPAllocationStatus{Phase: v1alpha1.AllocationFailed, Conditions: []metav1.Condition{
				{Type: v1alpha1.OverlapCondition}, {Type: v1alpha1.ReadyCondition, Reason: full, Message: "what the allocator says"}}},
		}
		change(a)
		return a
	}
	tests := map[string]struct {
		reason string
		change func(*v1alpha1.IPAllocation)
		want   func(*CurrentAllocation)
	}{
		"Ours":     {reason: "all of it", change: func(*v1alpha1.IPAllocation) {}, want: func(*CurrentAllocation) {}},
		"Deleting": {reason: "it is going", change: func(a *v1alpha1.IPAllocation) { a.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }, want: func(s *CurrentAllocation) { s.Deleting = true }},
		"Pinned":   {reason: "we pin nothing", change: func(a *v1alpha1.IPAllocation) { a.Spec.PinnedRange = &v1alpha1.PinnedRange{} }, want: func(s *CurrentAllocation) { s.Manual = true }},
		"NoCount":  {reason: "we always say how many", change: func(a *v1alpha1.IPAllocation) { a.Spec.Count = nil }, want: func(s *CurrentAllocation) { s.Manual, s.Count = true, 0 }},
		"NoLabel":  {reason: "we always say for whom", change: func(a *v1alpha1.IPAllocation) { a.Labels = nil }, want: func(s *CurrentAllocation) { s.Manual = true }},
		"New":      {reason: "nothing was said of it", change: func(a *v1alpha1.IPAllocation) { a.Status = v1alpha1.IPAllocationStatus{} }, want: func(s *CurrentAllocation) { s.Phase, s.Reason, s.Message = "", "", "" }},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			want := newFailedBlock("a", full)
			c.want(want)
			if diff := cmp.Diff(want, NewCurrentAllocation(made(c.change))); diff != "" {
				t.Errorf("%s:\n%s", c.reason, diff)
			}
		})
	}
}

func TestSetAttemptsAnnotation(t *testing.T) {
	cluster := &metav1.ObjectMeta{}
	for _, step := range []struct {
		tried   []PoolAttempt
		changed bool
	}{{nil, false}, {tried(full, "a"), true}, {tried(full, "a"), false}, {tried(full, "a", "b"), true}, {nil, true}, {nil, false}} {
		if got := SetAttemptsAnnotation(cluster, v1alpha1.TriedPoolsAnnotation, step.tried); got != step.changed {
			t.Errorf("%v: new is %t", step.tried, got)
		}
		if diff := cmp.Diff(step.tried, ParseAttempts(cluster.Annotations[v1alpha1.TriedPoolsAnnotation])); diff != "" {
			t.Error(diff)
		}
	}
	if _, ok := cluster.Annotations[v1alpha1.TriedPoolsAnnotation]; ok {
		t.Error("an annotation that says nothing stays")
	}
}

func TestAllocationState(t *testing.T) {
	a := &v1alpha1.IPAllocation{}
	if IsProjected(a) || IsDraining(a) || IsDrainingOrDeleting(a) {
		t.Error("a new one stays")
	}
	a.Finalizers = []string{v1alpha1.IPAllocationFinalizer, v1alpha1.TenantPoolFinalizer}
	a.Status.Conditions = []metav1.Condition{{Type: v1alpha1.DrainingCondition, Status: metav1.ConditionFalse}}
	if !IsProjected(a) || IsDraining(a) || IsDrainingOrDeleting(a) {
		t.Error("one that is shown stays")
	}
	a.Status.Conditions[0].Status = metav1.ConditionTrue
	if !IsDraining(a) || !IsDrainingOrDeleting(a) {
		t.Error("one that is drained leaves")
	}
	a.Status.Conditions, a.DeletionTimestamp = nil, &metav1.Time{Time: time.Unix(1, 0)}
	if IsDraining(a) || !IsDrainingOrDeleting(a) {
		t.Error("one that is deleted leaves, and is not drained")
	}
}
