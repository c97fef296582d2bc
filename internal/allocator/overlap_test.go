package allocator

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// overlapOracle compares each pool with each other, again at each call.
type overlapOracle map[pools.Key]poolDeclaration

func (o overlapOracle) of(key pools.Key) (others map[pools.Key]bool, younger bool) {
	others = map[pools.Key]bool{}
	mine, known := o[key]
	for other, its := range o {
		if known && other != key && its.network == mine.network && len(poolspec.OverlappingRanges(mine.layout, its.layout)) > 0 {
			others[other] = true
			younger = younger || its.isOlderThan(mine)
		}
	}
	return others, younger
}

func TestOverlapsMatchEachPairOfPools(t *testing.T) {
	keys := make([]pools.Key, 6)
	for i := range keys {
		keys[i] = pools.Key{Kind: v1alpha1.NetworkPoolKind, Namespace: "ns", Name: fmt.Sprint("pool-", i)}
	}
	rapid.Check(t, func(t *rapid.T) {
		o, oracle := &overlapIndex{}, overlapOracle{}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			key := rapid.SampledFrom(keys).Draw(t, "pool")
			before := map[pools.Key]map[pools.Key]bool{}
			for _, k := range keys {
				before[k], _ = oracle.of(k)
			}
			declaration := poolDeclaration{}
			if rapid.IntRange(0, 4).Draw(t, "exists") > 0 {
				spec := &v1alpha1.NetworkPoolSpec{CIDR: fmt.Sprintf("10.0.0.%d/%d", rapid.IntRange(0, 7).Draw(t, "at")*32, rapid.IntRange(25, 27).Draw(t, "bits"))}
				layout, errs := poolspec.Compile(spec)
				if len(errs) > 0 {
					layout, _ = poolspec.Compile(&v1alpha1.NetworkPoolSpec{CIDR: "10.0.0.0/24"})
				}
				declaration = poolDeclaration{
					key: key, layout: layout, network: rapid.SampledFrom([]string{"", "other"}).Draw(t, "network"),
					createdAt: grantstest.Noon.Add(time.Duration(rapid.IntRange(0, 2).Draw(t, "born")) * time.Second), uid: types.UID(rapid.StringMatching("[a-z]{4}").Draw(t, "uid")),
				}
				oracle[key] = declaration
			} else {
				delete(oracle, key)
			}
			woken := map[pools.Key]bool{}
			for _, k := range o.setDeclaration(key, declaration) {
				woken[k] = true
			}
			for _, k := range keys {
				others, younger := oracle.of(k)
				if d := cmp.Diff(slices.Sorted(names(others)), slices.Sorted(names(asSet(maps.Keys(o.sharedRanges[k]))))); d != "" {
					t.Fatalf("what overlaps with %s, -want +got:\n%s", k, d)
				}
				text, got := o.describeOverlap(k)
				if got != younger || (text == "") != (len(others) == 0) {
					t.Fatalf("%s: younger %v and %q, want %v of %v", k, got, text, younger, others)
				}
				if affected := others[key] || before[k][key]; k != key && affected != woken[k] {
					t.Fatalf("%s: news %v, woken %v", k, affected, woken[k])
				}
			}
			if o.setDeclaration(key, declaration) != nil {
				t.Fatal("the same again enqueues a pool")
			}
		}
	})
}

func names(set map[pools.Key]bool) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range set {
			if !yield(k.Name) {
				return
			}
		}
	}
}

func asSet(keys func(func(pools.Key) bool)) map[pools.Key]bool {
	out := map[pools.Key]bool{}
	for k := range keys {
		out[k] = true
	}
	return out
}

func TestOverlapNamesAnOlderPoolAndAlwaysTheSame(t *testing.T) {
	o := &overlapIndex{}
	layout, _ := poolspec.Compile(&v1alpha1.NetworkPoolSpec{CIDR: "10.0.0.0/24"})
	for i, name := range []string{"d", "b", "c", "a"} { // from the oldest to the youngest
		o.setDeclaration(pools.Key{Kind: v1alpha1.NetworkPoolKind, Name: name}, poolDeclaration{layout: layout, createdAt: grantstest.Noon.Add(time.Duration(i) * time.Second)})
	}
	for name, want := range map[string]string{"d": "a", "b": "d", "c": "b", "a": "b"} {
		for range 10 {
			text, _ := o.describeOverlap(pools.Key{Kind: v1alpha1.NetworkPoolKind, Name: name})
			if got := text[:len("NetworkPool /x")]; got != "NetworkPool "+want+" " {
				t.Errorf("%s: %s", name, text)
			}
		}
	}
}

// BenchmarkOverlap measures what a reconcile spends on overlaps in a fleet of a thousand pools, and what it costs to
// see them all for the first time.
func BenchmarkOverlap(b *testing.B) {
	const n = 1000
	fleet := func() (*Allocator, []*grants.PoolState) {
		a := New(Options{})
		all := make([]*grants.PoolState, n)
		for i := range all {
			key := pools.Key{Kind: v1alpha1.NetworkPoolKind, Namespace: "ns", Name: fmt.Sprint("pool-", i)}
			all[i] = stateOfPool(a.pools.getOrCreatePool(key))
			all[i].SetBasePool(&v1alpha1.NetworkPool{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: key.Name, UID: types.UID(key.Name), Generation: 1},
				Spec:       v1alpha1.NetworkPoolSpec{CIDR: fmt.Sprintf("10.%d.%d.0/24", i/256, i%256)},
			})
		}
		return a, all
	}
	b.Run("Start", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			a, all := fleet()
			b.StartTimer()
			for _, p := range all {
				a.relations.publishDeclaration(p.Base.Pool)
			}
		}
	})
	b.Run("Reconcile", func(b *testing.B) {
		a, all := fleet()
		for _, p := range all {
			a.relations.publishDeclaration(p.Base.Pool)
		}
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			a.relations.publishDeclaration(all[i%n].Base.Pool)
			a.relations.updateOverlap(all[i%n])
		}
	})
}

// TestPoolsOfOneSecondAreInOrderOfTheirNames checks that of two pools of one manifest, which are created in one second,
// the names decide which is the older, whatever UIDs the API server assigns.
func TestPoolsOfOneSecondAreInOrderOfTheirNames(t *testing.T) {
	keys := []pools.Key{
		{Kind: v1alpha1.GlobalNetworkPoolKind, Name: "z"},
		{Kind: v1alpha1.NetworkPoolKind, Namespace: "a", Name: "z"},
		{Kind: v1alpha1.NetworkPoolKind, Namespace: "b", Name: "a"},
		{Kind: v1alpha1.NetworkPoolKind, Namespace: "b", Name: "b"},
	}
	for i := 1; i < len(keys); i++ {
		a := poolDeclaration{key: keys[i-1], createdAt: grantstest.Noon, uid: "9"}
		b := poolDeclaration{key: keys[i], createdAt: grantstest.Noon, uid: "0"}
		if !a.isOlderThan(b) || b.isOlderThan(a) {
			t.Errorf("%s is not before %s", a.key, b.key)
		}
		b.createdAt = grantstest.Noon.Add(-time.Second)
		if !b.isOlderThan(a) || a.isOlderThan(b) {
			t.Errorf("%s is older than %s, and not before it", b.key, a.key)
		}
	}
}
