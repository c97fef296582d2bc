package elastic

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func (b Block) idle(ago time.Duration) Block {
	return b.with(func(b *Block) { b.IdleSince = epoch.Add(-ago) })
}

func (b Block) draining() Block { return b.with(func(b *Block) { b.Draining = true }) }

// TestPlanShrink checks which idle blocks are withdrawn and when: B45 (no Service has an address), B46 (after ten
// minutes), F1 (of idleness, not of age), F10 (one used address keeps a block), B48 (the first block stays), B49
// (pinned blocks stay), B50 (a restart of a Service withdraws nothing), B51 (pending blocks are not drained).
func TestPlanShrink(t *testing.T) {
	one := block("lb-1", "10.0.0.8-10.0.0.9", 2)
	large := block("lb-1", "10.0.0.0-10.0.3.255", 1024)
	second := time.Second
	busy, idle := []UsageChange{{Block: "lb-1"}}, []UsageChange{{Block: "lb-1", IdleSince: epoch}}
	tests := map[string]struct {
		reason    string
		block     Block
		used      string
		shortfall [2]int64
		late      time.Duration // after a whole second
		want      Plan
	}{
		"Busy":             {reason: "a Service has one of its addresses", block: one, used: "10.0.0.9"},
		"Idle":             {reason: "the last Service went", block: one, used: "10.0.0.7", want: Plan{UsageChanges: idle, NextCheck: epoch.Add(grace)}},
		"RoundsUp":         {reason: "what is written is whole seconds: no grace is shorter than it says", block: one, late: 1, want: Plan{UsageChanges: []UsageChange{{Block: "lb-1", IdleSince: epoch.Add(second)}}, NextCheck: epoch.Add(second + grace)}},
		"InGrace":          {reason: "not long enough", block: one.idle(grace - second), want: Plan{NextCheck: epoch.Add(second)}},
		"GraceOver":        {reason: "10 continuous minutes (B46)", block: one.idle(grace), want: Plan{BlocksToDrain: []string{"lb-1"}}},
		"GraceLongOver":    {reason: "it was not checked for an hour", block: one.idle(time.Hour), want: Plan{BlocksToDrain: []string{"lb-1"}}},
		"JustInGrace":      {reason: "to the last moment", block: one.idle(grace - second), late: second - 1, want: Plan{NextCheck: epoch.Add(second)}},
		"UsedAgain":        {reason: "a Service restarted: the grace begins again (B50, F1)", block: one.idle(grace - second), used: "10.0.0.8", want: Plan{UsageChanges: busy}},
		"UsedAgainLate":    {reason: "even after it, as long as the block is there", block: one.idle(time.Hour), used: "10.0.0.8", want: Plan{UsageChanges: busy}},
		"Draining":         {reason: "it is being taken away already", block: one.idle(time.Hour).draining()},
		"Resumed":          {reason: "a Service needs it before it is gone", block: one.idle(time.Hour).draining(), used: "10.0.0.8", want: Plan{UsageChanges: busy, BlocksToResume: []string{"lb-1"}}},
		"Deleting":         {reason: "it is given up for good", block: one.idle(time.Hour).draining().deleting(), used: "10.0.0.8"},
		"Pending":          {reason: "it has nothing that could be idle (B51)", block: block("lb-1", "", 2)},
		"Initial":          {reason: "the first block stays (B48, F17)", block: one.initial()},
		"Pinned":           {reason: "pinned blocks stay, whatever their role (B49)", block: one.pinned()},
		"InitialMarked":    {reason: "whatever is written on it", block: one.idle(time.Hour).initial(), want: Plan{UsageChanges: busy}},
		"PinnedLate":       {reason: "it was pinned while it was being taken away", block: one.idle(time.Hour).draining().pinned(), want: Plan{UsageChanges: busy, BlocksToResume: []string{"lb-1"}}},
		"Lacking":          {reason: "given up, it would be asked for again (F4)", block: one.idle(time.Hour), shortfall: [2]int64{1}, want: Plan{Growths: []Growth{{Shortfall: 1}}, QuotaReached: true}},
		"LackingOther":     {reason: "not by those who lack the other family", block: one.idle(time.Hour), shortfall: [2]int64{0, 1}, want: Plan{Growths: []Growth{{Family: IPv6, Shortfall: 1}}, QuotaReached: true, BlocksToDrain: []string{"lb-1"}}},
		"FarInside":        {reason: "an address behind the first 256 (F10)", block: large.idle(time.Hour), used: "10.0.1.0", want: Plan{UsageChanges: busy}},
		"LastOfAll":        {reason: "the very last one (F10)", block: large, used: "10.0.3.255"},
		"Beside":           {reason: "one that is not in it", block: large, used: "10.0.4.0 2001:db8::1", want: Plan{UsageChanges: idle, NextCheck: epoch.Add(grace)}},
		"LackingMarksIdle": {reason: "since when it is idle is known all the same", block: one, shortfall: [2]int64{1}, want: Plan{Growths: []Growth{{Shortfall: 1}}, QuotaReached: true, UsageChanges: idle, NextCheck: epoch.Add(grace)}},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			a := Assessment{UsedAddresses: usedOf(c.used), Shortfall: c.shortfall}
			got := PlanBlocks(a, []Block{c.block}, PlanSettings{Quota: 0, GracePeriod: grace}, epoch.Add(c.late))
			if diff := cmp.Diff(c.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s:\n%s", c.reason, diff)
			}
		})
	}
}

// TestIdlenessIsContinuous checks that a block that was in use for three hours survives one idle second, and that
// each use begins the grace period again (F1).
func TestIdlenessIsContinuous(t *testing.T) {
	b, now := block("lb-1", "10.0.0.8", 1), epoch
	plan := func(used string) Plan {
		p := PlanBlocks(Assessment{UsedAddresses: usedOf(used)}, []Block{b}, PlanSettings{GracePeriod: grace}, now)
		for _, m := range p.UsageChanges {
			b.IdleSince = m.IdleSince
		}
		return p
	}
	for range 180 {
		if p := plan("10.0.0.8"); !p.isEmpty() {
			t.Fatalf("at %s: %+v", now, p)
		}
		now = now.Add(time.Minute)
	}
	for range 30 { // 9 minutes idle, a moment of use, and again
		for range 10 {
			if p := plan(""); len(p.BlocksToDrain) > 0 {
				t.Fatalf("given up at %s, idle since %s", now, b.IdleSince)
			}
			now = now.Add(54 * time.Second)
		}
		plan("10.0.0.8")
	}
	p := plan("")
	if next := now.Add(grace); !p.NextCheck.Equal(next) {
		t.Fatalf("next look at %s, want %s", p.NextCheck, next)
	}
	now = p.NextCheck.Add(-1)
	if p := plan(""); len(p.BlocksToDrain) > 0 {
		t.Fatal("given up before the grace is over")
	}
	now = now.Add(1)
	if p := plan(""); len(p.BlocksToDrain) != 1 {
		t.Fatalf("not given up after the grace: %+v", p)
	}
}

// TestNextCheckOfSeveralBlocks checks that, of several blocks, the first one that is due determines the next check.
func TestNextCheckOfSeveralBlocks(t *testing.T) {
	blocks := []Block{block("a", "10.0.0.1", 1).idle(time.Minute), block("b", "10.0.0.2", 1).idle(3 * time.Minute), block("c", "10.0.0.3", 1)}
	got := PlanBlocks(Assessment{}, blocks, PlanSettings{GracePeriod: grace}, epoch)
	if want := epoch.Add(7 * time.Minute); !got.NextCheck.Equal(want) || len(got.UsageChanges) != 1 {
		t.Errorf("got %+v, want %s", got, want)
	}
}
