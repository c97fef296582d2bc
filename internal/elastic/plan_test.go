package elastic

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const grace = 10 * time.Minute

// block returns a growth block that has a range, or a request for one if addresses is empty.
func block(name, addresses string, count int64) Block {
	b := Block{Name: name, Count: count, AddedOnDemand: true}
	if addresses != "" {
		b.Range = spans([]string{addresses})[0]
		b.Family = AddressFamily(b.Range.From())
	}
	return b
}

func (b Block) with(change func(*Block)) Block {
	change(&b)
	return b
}

func (b Block) initial() Block { return b.with(func(b *Block) { b.AddedOnDemand = false }) }

func (b Block) pinned() Block { return b.with(func(b *Block) { b.Pinned = true }) }

func (b Block) deleting() Block { return b.with(func(b *Block) { b.Deleting = true }) }

func (b Block) six() Block { return b.with(func(b *Block) { b.Family = IPv6 }) }

// TestPlanGrowth checks that all waiting Services are covered (B38), less what is on its way (B37) and the free
// addresses of blocks in use (F5), within the quota (B39, F9).
func TestPlanGrowth(t *testing.T) {
	four := func(shortfall, count int64) []Growth {
		return []Growth{{Family: IPv4, Shortfall: shortfall, Count: count}}
	}
	each := func(shortfall4, count4, shortfall6, count6 int64) []Growth {
		return append(four(shortfall4, count4), Growth{Family: IPv6, Shortfall: shortfall6, Count: count6})
	}
	first := block("lb", "10.0.0.0-10.0.0.1", 2).initial()
	tests := map[string]struct {
		reason    string
		shortfall [2]int64
		blocks    []Block
		increment int64
		quota     int64 // before blocks are subtracted; negative: no limit
		want      []Growth
		reached   bool
	}{
		"Nothing":        {reason: "nothing is lacking", blocks: []Block{first}, increment: 4, quota: -1},
		"Increment":      {reason: "at least the increment", shortfall: [2]int64{1}, increment: 4, quota: -1, want: four(1, 4)},
		"More":           {reason: "all that is lacking, if that is more", shortfall: [2]int64{5}, increment: 4, quota: -1, want: four(5, 5)},
		"NoIncrement":    {reason: "no increment is no more than needed", shortfall: [2]int64{3}, quota: -1, want: four(3, 3)},
		"InFlight":       {reason: "three wait, one is on its way: two more (B38)", shortfall: [2]int64{3}, blocks: []Block{first, block("lb-1", "", 1)}, increment: 1, quota: -1, want: four(2, 2)},
		"AllInFlight":    {reason: "as many are on their way", shortfall: [2]int64{3}, blocks: []Block{block("lb-1", "", 3)}, increment: 1, quota: -1},
		"MoreInFlight":   {reason: "more than needed any more", shortfall: [2]int64{1}, blocks: []Block{block("lb-1", "", 3)}, increment: 1, quota: -1},
		"InitialWaits":   {reason: "the first block is on its way too", shortfall: [2]int64{3}, blocks: []Block{block("lb", "", 2).initial()}, increment: 1, quota: -1, want: four(1, 1)},
		"OtherInFlight":  {reason: "one of the other family is of no use", shortfall: [2]int64{1}, blocks: []Block{block("lb-1", "", 1).six()}, increment: 1, quota: -1, want: four(1, 1)},
		"DeletingWaits":  {reason: "nor is one that is given up before it was granted", shortfall: [2]int64{1}, blocks: []Block{block("lb-1", "", 1).deleting()}, increment: 1, quota: 1, want: four(1, 1)},
		"Granted":        {reason: "what is granted was part of what was assessed: it is not subtracted again (F5)", shortfall: [2]int64{1}, blocks: []Block{block("lb-1", "10.0.0.4-10.0.0.7", 4)}, increment: 1, quota: -1, want: four(1, 1)},
		"Quota":          {reason: "up to the quota", shortfall: [2]int64{2}, blocks: []Block{first}, increment: 2, quota: 4, want: four(2, 2)},
		"QuotaPart":      {reason: "a part, if that is all there is (F9)", shortfall: [2]int64{3}, blocks: []Block{first}, increment: 1, quota: 4, want: four(3, 2), reached: true},
		"QuotaIncrement": {reason: "a part of the increment is not short of what is lacking", shortfall: [2]int64{1}, blocks: []Block{first}, increment: 8, quota: 5, want: four(1, 3)},
		"QuotaReached":   {reason: "nothing is left (B39)", shortfall: [2]int64{1}, blocks: []Block{first}, increment: 1, quota: 2, want: four(1, 0), reached: true},
		"QuotaBelow":     {reason: "the quota was lowered", shortfall: [2]int64{1}, blocks: []Block{first}, increment: 1, quota: 1, want: four(1, 0), reached: true},
		"QuotaZero":      {reason: "a quota of none", shortfall: [2]int64{1}, increment: 1, quota: 0, want: four(1, 0), reached: true},
		"QuotaInFlight":  {reason: "what is on its way counts (F9)", shortfall: [2]int64{3}, blocks: []Block{first, block("lb-1", "", 1)}, increment: 1, quota: 4, want: four(2, 1), reached: true},
		"QuotaDeleting":  {reason: "what is not released yet counts", shortfall: [2]int64{3}, blocks: []Block{first, block("lb-1", "10.0.0.4", 1).deleting()}, increment: 1, quota: 4, want: four(3, 1), reached: true},
		"Families":       {reason: "each for itself", shortfall: [2]int64{1, 2}, increment: 2, quota: -1, want: each(1, 2, 2, 2)},
		"FamiliesQuota":  {reason: "the increment of one does not take what the other lacks", shortfall: [2]int64{1, 2}, increment: 8, quota: 8, want: each(1, 6, 2, 2)},
		"FamiliesShort":  {reason: "IPv4 first where there is not enough", shortfall: [2]int64{2, 2}, increment: 1, quota: 3, want: each(2, 2, 2, 1), reached: true},
		"FamiliesNone":   {reason: "and none is left", shortfall: [2]int64{2, 2}, increment: 1, quota: 1, want: each(2, 1, 2, 0), reached: true},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			got := PlanBlocks(Assessment{Shortfall: c.shortfall}, c.blocks, PlanSettings{Increment: c.increment, Quota: c.quota, GracePeriod: grace}, epoch)
			if diff := cmp.Diff(c.want, got.Growths, cmpopts.EquateEmpty()); diff != "" || got.QuotaReached != c.reached {
				t.Errorf("%s: quota reached: %v\n%s", c.reason, got.QuotaReached, diff)
			}
		})
	}
}

func TestPlanIsEmpty(t *testing.T) {
	for name, c := range map[string]struct {
		reason string
		plan   Plan
		want   bool
	}{
		"Nothing": {reason: "nothing to do", want: true},
		"Later":   {reason: "not now", plan: Plan{NextCheck: epoch}, want: true},
		"Quota":   {reason: "what cannot be asked for is said, and nothing is done (B52)", plan: Plan{Growths: []Growth{{Shortfall: 1}}, QuotaReached: true}, want: true},
		"Grow":    {reason: "something is asked for", plan: Plan{Growths: []Growth{{Shortfall: 1}, {Family: IPv6, Shortfall: 1, Count: 1}}}},
		"Mark":    {reason: "a condition is written", plan: Plan{UsageChanges: []UsageChange{{Block: "lb-1"}}}},
		"Drain":   {reason: "a range is taken away", plan: Plan{BlocksToDrain: []string{"lb-1"}}},
		"Resume":  {reason: "a range is released", plan: Plan{BlocksToResume: []string{"lb-1"}}},
	} {
		if got := c.plan.isEmpty(); got != c.want {
			t.Errorf("%s: %s: got %v", name, c.reason, got)
		}
	}
}

func usedOf(addresses string) map[netip.Addr]struct{} {
	used := map[netip.Addr]struct{}{}
	for _, a := range ips(addresses) {
		used[a] = struct{}{}
	}
	return used
}

// isEmpty reports whether the plan contains no action. A shortfall for which nothing can be requested is no action.
func (p *Plan) isEmpty() bool {
	asks := slices.ContainsFunc(p.Growths, func(g Growth) bool { return g.Count > 0 })
	return !asks && len(p.UsageChanges)+len(p.BlocksToDrain)+len(p.BlocksToResume) == 0
}
