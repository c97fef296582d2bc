package ledger

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestApplyLayout(t *testing.T) {
	l := stated(pool(32, "10.0.0.0/29"), fact(SourceObject, "a", "10.0.0.1"), fact(SourceObject, "b", "10.0.0.6"), fact(SourcePin, "vip", "10.0.0.7"))
	l.ApplyLayout(setOf("10.0.0.0/30", "10.0.1.0/30"), 32, AllocationOrder{})
	wantCounts(t, l, "what the space no longer covers is out of range",
		Counts{Total: 8, Allocated: 1, Available: 7, OutOfRange: 1, Owners: 2, LargestFree: 4, FragmentationPercent: 42})
	l.ApplyLayout(setOf("10.0.0.0/29"), 32, AllocationOrder{})
	wantCounts(t, l, "and comes back with the space",
		Counts{Total: 8, Allocated: 2, Available: 5, Owners: 2, LargestFree: 4, FragmentationPercent: 20})
	if diff := cmp.Diff([]Key{{SourceObject, "a"}, {SourceObject, "b"}, {SourcePin, "vip"}}, holdersOf(l, "10.0.0.0/29")); diff != "" {
		t.Errorf("every fact is kept (-want +got):\n%s", diff)
	}
}

// TestNoSpace checks that a pool whose spec was never valid still knows which objects have which addresses.
func TestNoSpace(t *testing.T) {
	l := stated(New(nil, 128), fact(SourceObject, "a", "10.0.0.1"))
	wantCounts(t, l, "nothing can be handed out", Counts{OutOfRange: 1, Owners: 1})
	if r, free := l.TakeUnit(); free || l.HasFreeInZones([]int{0}) || l.IsInSpace(rangeOf("10.0.0.1")) {
		t.Errorf("TakeUnit = %v, %v", r, free)
	}
	l.RemoveFact(Key{SourceObject, "a"})
	wantCounts(t, l, "nothing comes free", Counts{})
}

// TestPrefixPool checks a pool that grants prefixes (U14).
func TestPrefixPool(t *testing.T) {
	l := stated(pool(28, "10.0.0.0/26"), fact(SourceObject, "a", "10.0.0.20"), fact(SourceRecord, "b", "10.0.0.47-10.0.0.48"))
	wantCounts(t, l, "a stray address takes its whole prefix; prefixes are counted, not addresses",
		Counts{Total: 4, Allocated: 3, Available: 1, Owners: 2, LargestFree: 1})
	if got, _ := l.FindFact(Key{SourceRecord, "b"}); got.Range != rangeOf("10.0.0.32-10.0.0.63") {
		t.Errorf("the block became %s, want both of the prefixes that it touches", got.Range)
	}
	if diff := cmp.Diff([]Key{{SourceObject, "a"}}, holdersOf(l, "10.0.0.31")); diff != "" {
		t.Errorf("any address of the prefix is held (-want +got):\n%s", diff)
	}
	if got := l.UnitRange(rangeOf("10.0.0.9").From()); got != rangeOf("10.0.0.0/28") {
		t.Errorf("the unit of 10.0.0.9 is %s", got)
	}
	if r, free := l.TakeUnit(); !free || r != rangeOf("10.0.0.0/28") {
		t.Errorf("TakeUnit = %v, %v, want the last free prefix", r, free)
	}
	if l.HasFreeInZones([]int{0}) {
		t.Error("nothing is left")
	}
	l.UndoTake(rangeOf("10.0.0.0/28"))
	l.RemoveFact(Key{SourceObject, "a"})
	wantCounts(t, l, "the whole prefix is free again", Counts{Total: 4, Allocated: 2, Available: 2, Owners: 1, LargestFree: 2})
}

// TestPrefixPoolOf32 checks that a length of 32 bits is a prefix in IPv6 (U14).
func TestPrefixPoolOf32(t *testing.T) {
	l := pool(32, "fd00::/31")
	if r, free := l.TakeUnit(); !free || r != rangeOf("fd00::/32") {
		t.Errorf("TakeUnit = %v, %v, want fd00::/32", r, free)
	}
}

// TestOtherFamily checks that a user-created IPAddress of the other family affects only itself (W12).
func TestOtherFamily(t *testing.T) {
	tests := map[string]struct {
		reason string
		pool   *Ledger
		stray  [2]string
	}{
		"IPv4InIPv6": {
			reason: "an IPv4 address has no prefix of 64 bits",
			pool:   pool(64, "fd00::/60"),
			stray:  [2]string{"10.0.0.1", "10.0.0.2"},
		},
		"IPv6InIPv4": {
			reason: "in an IPv4 pool of single addresses, IPv6 addresses are single too",
			pool:   pool(32, "10.0.0.0/28"),
			stray:  [2]string{"fd00::1", "fd00::2"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			stated(tc.pool, fact(SourceObject, "a", tc.stray[0]), fact(SourceObject, "b", tc.stray[1]))
			wantCounts(t, tc.pool, tc.reason, Counts{Total: 16, Available: 16, OutOfRange: 2, Owners: 2, LargestFree: 16})
			if diff := cmp.Diff([]Key{{SourceObject, "a"}}, holdersOf(tc.pool, tc.stray[0])); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
			tc.pool.RemoveFact(Key{SourceObject, "a"})
			tc.pool.RemoveFact(Key{SourceObject, "b"})
			wantCounts(t, tc.pool, "and they leave no trace", Counts{Total: 16, Available: 16, LargestFree: 16})
		})
	}
}
