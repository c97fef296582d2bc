package grants_test

import (
	"slices"
	"strings"
	"testing"

	"go4.org/netipx"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestReleaseHeld checks that the annotation of a pool releases exactly the entries that it names: neither others, nor
// later ones of the same range.
func TestReleaseHeld(t *testing.T) { // R9
	moved := func(first, last, id string) v1alpha1.HeldRange {
		return v1alpha1.HeldRange{ID: id, First: first, Last: last, Reason: v1alpha1.MovedReason, Namespace: "ns", Name: "a"}
	}
	for name, tc := range map[string]struct {
		annotation string
		with       map[string]string
		stays      []string
		message    string
	}{
		"nothing":                  {stays: []string{"10.0.0.1@one", "10.0.0.4-10.0.0.6@two"}},
		"one":                      {annotation: "10.0.0.1@one", stays: []string{"10.0.0.4-10.0.0.6@two"}},
		"a range":                  {annotation: "10.0.0.4-10.0.0.6@two", stays: []string{"10.0.0.1@one"}},
		"all":                      {annotation: "10.0.0.1@one,10.0.0.4-10.0.0.6@two"},
		"all, as YAML folds it":    {annotation: "10.0.0.1-10.0.0.1@one,\n  10.0.0.4-10.0.0.6@two\n"},
		"what is gone":             {annotation: "10.0.0.9@nine", stays: []string{"10.0.0.1@one", "10.0.0.4-10.0.0.6@two"}},
		"what was held before":     {annotation: "10.0.0.1@zero", stays: []string{"10.0.0.1@one", "10.0.0.4-10.0.0.6@two"}},
		"the id of another":        {annotation: "10.0.0.1@two", stays: []string{"10.0.0.1@one", "10.0.0.4-10.0.0.6@two"}},
		"part of an entry":         {annotation: "10.0.0.5@two", stays: []string{"10.0.0.1@one", "10.0.0.4-10.0.0.6@two"}},
		"more than an entry":       {annotation: "10.0.0.0/24@one", stays: []string{"10.0.0.1@one", "10.0.0.4-10.0.0.6@two"}},
		"no id":                    {annotation: "10.0.0.1", stays: []string{"10.0.0.1@one", "10.0.0.4-10.0.0.6@two"}, message: `"10.0.0.1" is not RANGE@ID`},
		"everything":               {annotation: "all", stays: []string{"10.0.0.1@one", "10.0.0.4-10.0.0.6@two"}, message: `"all" is not RANGE@ID`},
		"some that cannot be read": {annotation: "all,10.0.0.1@one", stays: []string{"10.0.0.4-10.0.0.6@two"}, message: `"all" is not RANGE@ID`},
		"of a paused pool": {
			annotation: "10.0.0.1@one", with: map[string]string{clusterv1.PausedAnnotation: ""}, stays: []string{"10.0.0.1@one", "10.0.0.4-10.0.0.6@two"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9", func(o *v1alpha1.NetworkPool) {
				o.Annotations = map[string]string{v1alpha1.ReleaseHeldAnnotation: tc.annotation}
				for k, v := range tc.with {
					o.Annotations[k] = v
				}
				o.Status.Held = []v1alpha1.HeldRange{moved("10.0.0.1", "10.0.0.1", "one"), moved("10.0.0.4", "10.0.0.6", "two")}
			})
			p.Held.ReleaseHeldRanges()
			if got := heldBy(p); !slices.Equal(got, tc.stays) {
				t.Errorf("held are %v, want %v", got, tc.stays)
			}
			free := 9 - int64(len(tc.stays)) // the one range has three
			if slices.Contains(tc.stays, "10.0.0.4-10.0.0.6@two") {
				free -= 2
			}
			if got := p.Space.Ledger.Counts().Available; got != free {
				t.Errorf("%d are free, want %d", got, free)
			}
			reason, message := p.Status.ClosedReason(grantstest.Noon)
			if (reason == v1alpha1.MovedReason) != (len(tc.stays) > 0) || !strings.Contains(message, tc.message) {
				t.Errorf("the pool is closed by %q: %s", reason, message)
			}
		})
	}
}

// TestMovingAddressIsHeldAgain checks that an address that is still being moved is held again, and needs another
// release.
func TestMovingAddressIsHeldAgain(t *testing.T) { // R9
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
	grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress("10.0.0.1"), grantstest.MarkedAsMoved, grantstest.WithDeletionTimestamp)
	first := heldBy(p)
	if len(first) != 1 {
		t.Fatalf("held are %v", first)
	}
	p.Base.Pool.SetAnnotations(map[string]string{v1alpha1.ReleaseHeldAnnotation: first[0]})
	p.Held.ReleaseHeldRanges()
	second := heldBy(p)
	if len(second) != 1 || second[0] == first[0] {
		t.Fatalf("held are %v after %v", second, first)
	}
	p.Held.ReleaseHeldRanges()
	if again := heldBy(p); !slices.Equal(again, second) {
		t.Errorf("the annotation of before has released %v: %v", second, again)
	}
}

// TestIDsOfHeldRanges checks that an entry of an earlier version gets an id, and that entries that are joined get a new
// one: no user has agreed to release what is between them.
func TestIDsOfHeldRanges(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9", func(o *v1alpha1.NetworkPool) {
		o.Status.Held = []v1alpha1.HeldRange{{First: "10.0.0.1", Last: "10.0.0.1", Reason: v1alpha1.MovedReason}}
	})
	had := heldBy(p)
	if len(had) != 1 || strings.HasSuffix(had[0], "@") {
		t.Fatalf("held are %v", had)
	}
	next := p.PrepareCommit(grantstest.Noon)
	if differs, urgent := next.HasChanges(p.Base.Pool); !differs || !urgent {
		t.Error("the id is not put on record")
	}
	wide := grantstest.NewPool(t, "10.0.0.0/16")
	seen := map[string]bool{}
	ip := netipx.MustParseIPRange("10.0.0.1-10.0.0.1").From()
	for range grants.MaxHeldRanges + 1 {
		wide.Held.AddHeldRange(netipx.IPRangeFrom(ip, ip), v1alpha1.HeldRange{First: ip.String(), Last: ip.String(), Reason: v1alpha1.MovedReason})
		for _, entry := range heldBy(wide) {
			_, id, _ := strings.Cut(entry, "@")
			seen[id] = true
		}
		ip = ip.Next().Next()
	}
	if joined := heldBy(wide); len(joined) > grants.MaxHeldRanges || len(seen) < grants.MaxHeldRanges+len(joined) {
		t.Errorf("%d entries, %d ids", len(joined), len(seen))
	}
}

func heldBy(p *grants.PoolState) (out []string) {
	obj := p.Base.Pool.DeepCopyObject().(*v1alpha1.NetworkPool)
	p.Status.FillStatus(obj, grantstest.Noon)
	for _, h := range obj.Status.Held {
		out = append(out, grants.FormatHeldRelease(h))
	}
	return out
}
