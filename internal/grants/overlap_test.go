package grants_test

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// observeInFlight feeds a pool that another manager holds a version of it, with grants in flight to claims of these
// names.
func observeInFlight(p *grants.PoolState, version int, addressOf map[string]string) {
	next := p.Base.Pool.DeepCopyObject().(*v1alpha1.NetworkPool)
	next.ResourceVersion = strconv.Itoa(version)
	next.Status.Allocator = &v1alpha1.AllocatorStatus{Holder: "other", Term: 4}
	for name, a := range addressOf {
		next.Status.Allocator.InFlight = append(next.Status.Allocator.InFlight, v1alpha1.Grant{
			Kind: claims.IPAddressClaimKind, Namespace: "ns", Name: name, UID: "uid-" + name, First: a, Last: a,
		})
	}
	p.ObservePool(next)
}

// TestUsedRangesIn checks which parts of the addresses of another pool a pool has in use. A block may reach over
// addresses that the other pool does not have: the parts on both sides are in use.
func TestUsedRangesIn(t *testing.T) {
	p := grantstest.NewPool(t, "10.0.0.1-10.0.0.99", grantstest.WithCooling("10.0.0.40", "gone"), grantstest.WithPreAllocation("boss", "10.0.0.41"))
	grantstest.ObserveClaim(p, "a", 0, grantstest.WithRecordedAddress("10.0.0.1"))
	grantstest.ObserveAllocation(p, "lb", 4, grantstest.WithBlock("10.0.0.16/30"))
	observeInFlight(p, 11, map[string]string{"c": "10.0.0.30"})
	for name, tc := range map[string]struct{ ranges, want []string }{
		"none":                 {},
		"free":                 {ranges: []string{"10.0.0.2-10.0.0.15", "10.0.0.20-10.0.0.29"}},
		"all":                  {ranges: []string{"10.0.0.0-10.0.0.35"}, want: []string{"10.0.0.1-10.0.0.1", "10.0.0.16-10.0.0.19", "10.0.0.30-10.0.0.30"}},
		"part of a block":      {ranges: []string{"10.0.0.2-10.0.0.16", "10.0.0.19-10.0.0.25"}, want: []string{"10.0.0.16-10.0.0.16", "10.0.0.19-10.0.0.19"}},
		"within a block":       {ranges: []string{"10.0.0.17-10.0.0.18"}, want: []string{"10.0.0.17-10.0.0.18"}},
		"in flight":            {ranges: []string{"10.0.0.30-10.0.0.30"}, want: []string{"10.0.0.30-10.0.0.30"}},
		"reserved, not in use": {ranges: []string{"10.0.0.41-10.0.0.41"}},
	} {
		var ranges []netipx.IPRange
		for _, r := range tc.ranges {
			ranges = append(ranges, netipx.MustParseIPRange(r))
		}
		var got []string
		for _, r := range p.Overlap.UsedRangesIn(ranges) {
			got = append(got, r.String())
		}
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("%s, -want +got:\n%s", name, d)
		}
	}
}

// TestUsedRangesInMatchesSingleAddresses compares UsedRangesIn with what each address alone shows, for random blocks and
// claims of a pool, in flight too, and for random ranges of another pool: a block may reach over several gaps, and begin
// or end in one.
func TestUsedRangesInMatchesSingleAddresses(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		p := grantstest.NewPool(t, "10.0.0.0-10.0.0.63")
		address := func(n int) string { return fmt.Sprintf("10.0.0.%d", n) }
		used, inFlight := [64]bool{}, map[string]string{}
		for at := r.IntN(4); at < 64; at += r.IntN(4) {
			switch size := 1 << r.IntN(5); {
			case at%size != 0 || at+size > 64:
				continue
			case size > 1:
				grantstest.ObserveAllocation(p, fmt.Sprint("lb-", at), int32(size), grantstest.WithBlock(fmt.Sprintf("%s/%d", address(at), 32-bits.Len(uint(size-1)))))
				for i := range size {
					used[at+i] = true
				}
				at += size
			default:
				if name := fmt.Sprint("c-", at); r.IntN(2) == 0 {
					inFlight[name] = address(at)
				} else {
					grantstest.ObserveClaim(p, name, 0, grantstest.WithRecordedAddress(address(at)))
				}
				used[at] = true
				at++
			}
		}
		observeInFlight(p, 11, inFlight)
		var ranges []netipx.IPRange
		var want, got [64]bool
		for at := r.IntN(3); at < 64; {
			end := min(at+r.IntN(6), 63)
			ranges = append(ranges, netipx.MustParseIPRange(address(at)+"-"+address(end)))
			for i := at; i <= end; i++ {
				want[i] = used[i]
			}
			at = end + 2 + r.IntN(3)
		}
		for _, found := range p.Overlap.UsedRangesIn(ranges) {
			for a := found.From(); a.Compare(found.To()) <= 0; a = a.Next() {
				got[a.As4()[3]] = true
			}
		}
		if got != want {
			t.Fatalf("seed %d: of %v in use are\n%v\nwant\n%v", seed, ranges, got, want)
		}
	}
}
