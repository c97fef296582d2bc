package shard

import (
	"fmt"
	"testing"
)

func TestParseShard(t *testing.T) {
	for text, suffix := range map[string]string{"": "", "1/1": "", "1/3": "-1-of-3", "3/3": "-3-of-3"} {
		if s, err := Parse(text); err != nil || s.LeaseNameSuffix() != suffix {
			t.Errorf("%q: %+v, %v", text, s, err)
		}
	}
	for _, text := range []string{"0/3", "4/3", "-1/3", "1", "1/", "/3", "a/b", "1/2/3"} {
		if s, err := Parse(text); err == nil {
			t.Errorf("%q is %+v", text, s)
		}
	}
}

// owner returns the shard of n that a pool belongs to. There must be exactly one.
func owner(t *testing.T, name string, n int) int {
	t.Helper()
	owner := 0
	for i := 1; i <= n; i++ {
		s, err := Parse(fmt.Sprintf("%d/%d", i, n))
		if err != nil {
			t.Fatal(err)
		}
		if s.Has("NetworkPool", "ns", name) {
			if owner != 0 {
				t.Fatalf("%s is of shards %d and %d of %d", name, owner, i, n)
			}
			owner = i
		}
	}
	if owner == 0 {
		t.Fatalf("%s is of no shard of %d", name, n)
	}
	return owner
}

func TestObjectsHaveOneShardAndFewMove(t *testing.T) {
	const pools = 3000
	for n := 1; n < 5; n++ {
		poolsByShard, moved := map[int]int{}, 0
		for i := range pools {
			name := fmt.Sprint("pool-", i)
			before, after := owner(t, name, n), owner(t, name, n+1)
			poolsByShard[before]++
			if before != after {
				moved++
				if after != n+1 {
					t.Fatalf("%s moves from shard %d to %d although the new one is %d", name, before, after, n+1)
				}
			}
		}
		for i := 1; i <= n; i++ {
			if share := float64(poolsByShard[i]) * float64(n) / pools; share < 0.85 || share > 1.15 {
				t.Errorf("shard %d of %d has %.2f of its share", i, n, share)
			}
		}
		if share := float64(moved) * float64(n+1) / pools; share < 0.85 || share > 1.15 {
			t.Errorf("from %d shards to %d, %d of %d pools move", n, n+1, moved, pools)
		}
	}
}

// TestHashNeverChanges checks that the zero value serves everything, and that the hash does not change from one
// release to the next: during an upgrade, two managers would otherwise serve the same pool and take it over from each
// other in turn.
func TestHashNeverChanges(t *testing.T) {
	if !(Shard{}).Has("NetworkPool", "ns", "pool") {
		t.Error("the zero value does not have everything")
	}
	var got []int
	for i := range 12 {
		got = append(got, owner(t, fmt.Sprint("pool-", i), 3))
	}
	if want := "[1 3 3 1 3 1 2 2 3 3 2 3]"; fmt.Sprint(got) != want {
		t.Errorf("pools are of shards %v, were %s", got, want)
	}
}
