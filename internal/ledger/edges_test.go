package ledger

import (
	"math"
	"testing"
)

// TestLastAddresses checks that spans are cut and joined correctly at the last address of a family, which has no
// successor (F11).
func TestLastAddresses(t *testing.T) {
	tests := map[string]struct {
		unit              int
		space, last, both string
		left              string
	}{
		"IPv4":     {unit: 32, space: "255.255.255.252/30", last: "255.255.255.255", both: "255.255.255.254/31", left: "255.255.255.252"},
		"IPv6":     {unit: 128, space: "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffc/126", last: "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", both: "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe/127", left: "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffc"},
		"Prefixes": {unit: 64, space: "ffff:ffff:ffff:fffc::/62", last: "ffff:ffff:ffff:ffff::/64", both: "ffff:ffff:ffff:fffe::/63", left: "ffff:ffff:ffff:fffc::/64"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			l := stated(pool(tc.unit, tc.space), fact(SourceObject, "a", tc.last), fact(SourceRecord, "a", tc.both), fact(SourceGrant, "b", tc.both))
			wantCounts(t, l, "three facts that end with the family", Counts{Total: 4, Allocated: 2, Available: 2, Owners: 2, LargestFree: 2})
			if r, free := l.TakeUnit(); !free || r != rangeOf(tc.left) {
				t.Errorf("TakeUnit = %v, %v, want %s", r, free, tc.left)
			}
			l.UndoTake(rangeOf(tc.left))
			l.RemoveFact(Key{SourceRecord, "a"})
			l.RemoveFact(Key{SourceGrant, "b"})
			wantCounts(t, l, "the last address is still held", Counts{Total: 4, Allocated: 1, Available: 3, Owners: 1, LargestFree: 3})
			l.RemoveFact(Key{SourceObject, "a"})
			wantCounts(t, l, "and free in the end", Counts{Total: 4, Available: 4, LargestFree: 4})
		})
	}
}

// TestCountsSaturate checks that a pool may have any size, and that counts that do not fit are 2^63-1 (B64).
func TestCountsSaturate(t *testing.T) {
	tests := map[string]struct {
		reason string
		l      *Ledger
		want   Counts
	}{
		"Slash64": {
			reason: "2^64 addresses are more than can be counted, and so are those that are left",
			l:      stated(pool(128, "fd00::/64"), fact(SourceObject, "a", "fd00::")),
			want:   Counts{Total: math.MaxInt64, Allocated: 1, Available: math.MaxInt64, Owners: 1, LargestFree: math.MaxInt64},
		},
		"Slash66": {
			reason: "2^62 addresses are counted",
			l:      stated(pool(128, "fd00::/66"), fact(SourceObject, "a", "fd00::")),
			want:   Counts{Total: 1 << 62, Allocated: 1, Available: 1<<62 - 1, Owners: 1, LargestFree: 1<<62 - 1},
		},
		"Sum": {
			reason: "a sum of what can be counted does not wrap around",
			l:      pool(128, "fd00::/66", "fd01::/66", "fd02::/66"),
			want:   Counts{Total: math.MaxInt64, Available: math.MaxInt64, LargestFree: 1 << 62, FragmentationPercent: 66},
		},
		"Prefixes": {
			reason: "of prefixes, prefixes are counted",
			l:      stated(pool(64, "fd00::/8"), fact(SourceObject, "a", "fd00::1")),
			want:   Counts{Total: 1 << 56, Allocated: 1, Available: 1<<56 - 1, Owners: 1, LargestFree: 1<<56 - 1},
		},
		"WideFact": {
			reason: "all of a /64 may be kept back",
			l:      stated(pool(128, "fd00::/64"), fact(SourceHeld, "a", "fd00::/64")),
			want:   Counts{Total: math.MaxInt64},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) { wantCounts(t, tc.l, tc.reason, tc.want) })
	}
}

// TestSaturationEnds checks facts of any size: a record is text on a claim, so a user can write ::/0 into it.
func TestSaturationEnds(t *testing.T) {
	l := stated(pool(128, "fd00::/60"), fact(SourceRecord, "a", "fd00::/61"), fact(SourceRecord, "b", "fd00:0:0:8::/61"), fact(SourceObject, "c", "fd00::5"))
	wantCounts(t, l, "all of it is taken", Counts{Total: math.MaxInt64, Allocated: math.MaxInt64, Owners: 3})
	l.RemoveFact(Key{SourceRecord, "a"})
	l.RemoveFact(Key{SourceRecord, "b"})
	if c := l.Counts(); c.Allocated != 1 || c.Available < 0 || c.Available > c.Total {
		t.Errorf("one address of a /60 is allocated, the counts are %+v", c)
	}
}

// TestCountsOfAnotherFamily checks that ranges of another family than the pool's count by address, however they are
// cut, and that nothing is left of them after they are withdrawn.
func TestCountsOfAnotherFamily(t *testing.T) {
	l := stated(pool(32, "10.0.0.0/28"), fact(SourceRecord, "a", "fd00::1-fd00::5"), fact(SourceRecord, "b", "fd00::3-fd00::9"))
	if n := l.Counts().OutOfRange; n != 9 {
		t.Errorf("out of range are %d", n)
	}
	l.RemoveFact(Key{SourceRecord, "a"})
	l.RemoveFact(Key{SourceRecord, "b"})
	if n := l.Counts().OutOfRange; n != 0 {
		t.Errorf("nothing is held, and out of range are %d", n)
	}
}
