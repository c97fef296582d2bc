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

// B45, B46, B48, B49, B50, B51, F1, F10.
func TestShrink(t *testing.T) {
	one := block("lb-1", "10.0.0.8-10.0.0.9", 2)
	large := block("lb-1", "10.0.0.0-10.0.3.255", 1024)
	second := time.Second
	busy, idle := []Mark{{Block: "lb-1"}}, []Mark{{Block: "lb-1", IdleSince: epoch}}
	tests := map[string]struct {
		reason  string
		block   Block
		used    string
		lacking [2]int64
		late    time.Duration // after a whole second
		want    Plan
	}{
		"Busy":             {reason: "a Service has one of its addresses", block: one, used: "10.0.0.9"},
		"Idle":             {reason: "the last Service went", block: one, used: "10.0.0.7", want: Plan{Marks: idle, Next: epoch.Add(grace)}},
		"RoundsUp":         {reason: "what is written is whole seconds: no grace is shorter than it says", block: one, late: 1, want: Plan{Marks: []Mark{{Block: "lb-1", IdleSince: epoch.Add(second)}}, Next: epoch.Add(second + grace)}},
		"InGrace":          {reason: "not long enough", block: one.idle(grace - second), want: Plan{Next: epoch.Add(second)}},
		"GraceOver":        {reason: "10 continuous minutes (B46)", block: one.idle(grace), want: Plan{Drain: []string{"lb-1"}}},
		"GraceLongOver":    {reason: "nobody looked for an hour", block: one.idle(time.Hour), want: Plan{Drain: []string{"lb-1"}}},
		"JustInGrace":      {reason: "to the last moment", block: one.idle(grace - second), late: second - 1, want: Plan{Next: epoch.Add(second)}},
		"UsedAgain":        {reason: "a Service restarted: the grace begins again (B50, F1)", block: one.idle(grace - second), used: "10.0.0.8", want: Plan{Marks: busy}},
		"UsedAgainLate":    {reason: "even after it, as long as the block is there", block: one.idle(time.Hour), used: "10.0.0.8", want: Plan{Marks: busy}},
		"Draining":         {reason: "it is being taken away already", block: one.idle(time.Hour).draining()},
		"Resumed":          {reason: "a Service needs it before it is gone", block: one.idle(time.Hour).draining(), used: "10.0.0.8", want: Plan{Marks: busy, Resume: []string{"lb-1"}}},
		"Deleting":         {reason: "it is given up for good", block: one.idle(time.Hour).draining().deleting(), used: "10.0.0.8"},
		"Pending":          {reason: "it has nothing that could be idle (B51)", block: block("lb-1", "", 2)},
		"Initial":          {reason: "the first block stays (B48, F17)", block: one.initial()},
		"Pinned":           {reason: "pinned blocks stay, whatever their role (B49)", block: one.pinned()},
		"InitialMarked":    {reason: "whatever is written on it", block: one.idle(time.Hour).initial(), want: Plan{Marks: busy}},
		"PinnedLate":       {reason: "it was pinned while it was being taken away", block: one.idle(time.Hour).draining().pinned(), want: Plan{Marks: busy, Resume: []string{"lb-1"}}},
		"Lacking":          {reason: "given up, it would be asked for again (F4)", block: one.idle(time.Hour), lacking: [2]int64{1}, want: Plan{Grow: []Growth{{Lacking: 1}}, QuotaReached: true}},
		"LackingOther":     {reason: "not by those who lack the other family", block: one.idle(time.Hour), lacking: [2]int64{0, 1}, want: Plan{Grow: []Growth{{Family: IPv6, Lacking: 1}}, QuotaReached: true, Drain: []string{"lb-1"}}},
		"FarInside":        {reason: "an address behind the first 256 (F10)", block: large.idle(time.Hour), used: "10.0.1.0", want: Plan{Marks: busy}},
		"LastOfAll":        {reason: "the very last one (F10)", block: large, used: "10.0.3.255"},
		"Beside":           {reason: "one that is not in it", block: large, used: "10.0.4.0 2001:db8::1", want: Plan{Marks: idle, Next: epoch.Add(grace)}},
		"LackingMarksIdle": {reason: "since when it is idle is known all the same", block: one, lacking: [2]int64{1}, want: Plan{Grow: []Growth{{Lacking: 1}}, QuotaReached: true, Marks: idle, Next: epoch.Add(grace)}},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			a := Assessment{Used: usedOf(c.used), Lacking: c.lacking}
			got := Decide(a, []Block{c.block}, Settings{Quota: 0, Grace: grace}, epoch.Add(c.late))
			if diff := cmp.Diff(c.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s:\n%s", c.reason, diff)
			}
		})
	}
}

// F1: a block that was in use for three hours survives one idle second, and each use begins the grace anew.
func TestIdlenessIsContinuous(t *testing.T) {
	b, now := block("lb-1", "10.0.0.8", 1), epoch
	look := func(used string) Plan {
		p := Decide(Assessment{Used: usedOf(used)}, []Block{b}, Settings{Grace: grace}, now)
		for _, m := range p.Marks {
			b.IdleSince = m.IdleSince
		}
		return p
	}
	for range 180 {
		if p := look("10.0.0.8"); !p.Empty() {
			t.Fatalf("at %s: %+v", now, p)
		}
		now = now.Add(time.Minute)
	}
	for range 30 { // 9 minutes idle, a moment of use, and again
		for range 10 {
			if p := look(""); len(p.Drain) > 0 {
				t.Fatalf("given up at %s, idle since %s", now, b.IdleSince)
			}
			now = now.Add(54 * time.Second)
		}
		look("10.0.0.8")
	}
	p := look("")
	if next := now.Add(grace); !p.Next.Equal(next) {
		t.Fatalf("next look at %s, want %s", p.Next, next)
	}
	now = p.Next.Add(-1)
	if p := look(""); len(p.Drain) > 0 {
		t.Fatal("given up before the grace is over")
	}
	now = now.Add(1)
	if p := look(""); len(p.Drain) != 1 {
		t.Fatalf("not given up after the grace: %+v", p)
	}
}

// Several blocks: what is due first is when to look again.
func TestNext(t *testing.T) {
	blocks := []Block{block("a", "10.0.0.1", 1).idle(time.Minute), block("b", "10.0.0.2", 1).idle(3 * time.Minute), block("c", "10.0.0.3", 1)}
	got := Decide(Assessment{}, blocks, Settings{Grace: grace}, epoch)
	if want := epoch.Add(7 * time.Minute); !got.Next.Equal(want) || len(got.Marks) != 1 {
		t.Errorf("got %+v, want %s", got, want)
	}
}
