package carve

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// open returns an open block, modified by change.
func open(name string, used, free int64, change ...func(*Block)) Block {
	b := Block{Name: name, Exists: true, Protected: true, Granted: true, Verified: true, Open: true, Used: used, Free: free}
	for _, f := range change {
		f(&b)
	}
	return b
}

func idle(since time.Duration) func(*Block) { return func(b *Block) { b.IdleSince = noon.Add(-since) } }
func draining(b *Block)                     { b.Draining = true }
func deleting(b *Block)                     { b.Deleting = true }
func closed(b *Block)                       { b.Open = false }
func gone(b *Block)                         { b.Exists, b.Protected, b.Granted, b.Verified = false, false, false, false }
func waiting(b *Block)                      { b.Open, b.Granted = false, false }
func shared(b *Block)                       { b.Granted = false }
func unverified(b *Block)                   { b.Verified = false }
func outdated(b *Block)                     { b.Outdated = true }
func replaced(b *Block)                     { b.Replaced = true }
func rests(b *Block)                        { b.HasCoolingOrHeld = true }
func byHand(b *Block)                       { b.UserCreated = true }
func bare(b *Block)                         { b.Protected = false }
func foreign(b *Block)                      { b.FromOtherParent, b.Granted = true, false }
func replaces(b *Block)                     { b.ReplacesLost = true }
func stuck(b *Block)                        { b.Open, b.Granted, b.CannotOpen = false, false, true }
func taken(b *Block)                        { b.NameTaken = true }
func asked(b *Block)                        { b.Requested = true }
func denied(b *Block)                       { b.Open, b.Granted, b.CannotOpen, b.Refused = false, false, true, true }

func TestDecideBlocks(t *testing.T) {
	pool := func(change ...func(*Pool)) Pool {
		p := Pool{MinBlocks: 1, MaxBlocks: 3, MaxOpen: 4, AddressesPerBlock: 4, IdleGrace: time.Minute}
		for _, f := range change {
			f(&p)
		}
		return p
	}
	withShortfall := func(n int) func(*Pool) { return func(p *Pool) { p.Shortfall = n } }
	ready := func(n int64) func(*Pool) { return func(p *Pool) { p.MinAvailable = n } }
	ends := func(p *Pool) { p.Deleting = true }
	paused := func(p *Pool) { p.Paused = true }
	adopts := func(p *Pool) { p.Adopting = true }
	unknown := func(p *Pool) { p.NetworkUnknown = true }
	waits := func(p *Pool) { p.HasWaiting = true }
	tests := map[string]struct {
		pool   Pool
		blocks []Block
		want   Decision
		reason string
	}{
		"First": {pool: pool(), want: Decision{NewBlocks: 1}, reason: "min blocks are asked for at once"},
		"ReplacesLost": {
			pool: pool(), blocks: []Block{open("a", 1, 3, gone, draining), open("b", 1, 3), open("c", 0, 0, waiting, replaces, idle(time.Hour))},
			want: Decision{Recreate: []string{"a"}}, reason: "it comes in the place of one in use, however long that takes",
		},
		"ReplacesAtTheEnd": {
			pool: pool(ends), blocks: []Block{open("a", 1, 3, gone, draining, asked), open("b", 0, 0, waiting, replaces)},
			reason: "deleted, it would be asked for again at once",
		},
		"OpensAtTheEnd": {
			pool: pool(ends), blocks: []Block{open("a", 1, 3, gone, draining, replaced), open("b", 1, 3, closed, replaces), open("c", 0, 0, closed)},
			want: Decision{Open: []string{"b"}, Delete: []string{"c"}}, reason: "the lost one is in use, and is not closed before",
		},
		"ReplacedAtTheEnd": {
			pool: pool(ends), blocks: []Block{open("a", 0, 3, gone, draining, asked), open("b", 0, 0, waiting)},
			want: Decision{Close: []string{"a"}, Delete: []string{"b"}}, reason: "nothing uses what it was to replace",
		},
		"DeniedIdle": {
			pool: pool(), blocks: []Block{open("a", 1, 3), open("b", 0, 0, denied, idle(time.Hour))}, want: Decision{Delete: []string{"b"}},
			reason: "it is none of those that the pool has, and nothing uses what it had",
		},
		"DeniedAlone": {
			pool: pool(func(p *Pool) { p.MinBlocks = 0 }), blocks: []Block{open("b", 0, 0, denied, idle(time.Hour))}, want: Decision{Delete: []string{"b"}},
		},
		"DeniedInUse": {pool: pool(), blocks: []Block{open("a", 1, 3), open("b", 2, 0, denied, idle(time.Hour))}},
		"ReplacesAtTheLimit": {
			pool: pool(), blocks: []Block{open("a", 1, 3, gone, draining, replaced), open("b", 1, 3), open("c", 1, 3), open("d", 1, 3), open("e", 1, 3, closed)},
			want: Decision{Open: []string{"e"}}, reason: "it takes the place of the first",
		},
		"OpenAndBare":   {pool: pool(), blocks: []Block{open("a", 1, 3, bare)}, want: Decision{Protect: []string{"a"}}, reason: "a user wrote other finalizers over ours"},
		"PausedInUse":   {pool: pool(paused), blocks: []Block{open("a", 1, 3, gone, draining)}, reason: "nothing is asked for, not again either"},
		"AtRest":        {pool: pool(), blocks: []Block{open("a", 1, 3)}, reason: "a pool that has what it wants does nothing"},
		"OnItsWay":      {pool: pool(withShortfall(1)), blocks: []Block{open("a", 4, 0), open("b", 0, 0, waiting)}, reason: "one that is asked for is not asked for again"},
		"Grows":         {pool: pool(withShortfall(1)), blocks: []Block{open("a", 4, 0)}, want: Decision{NewBlocks: 1}},
		"GrowsByMore":   {pool: pool(withShortfall(5)), blocks: []Block{open("a", 4, 0)}, want: Decision{NewBlocks: 2}, reason: "up to max"},
		"KeepsReady":    {pool: pool(ready(6)), blocks: []Block{open("a", 3, 1)}, want: Decision{NewBlocks: 2}, reason: "five more addresses are two blocks"},
		"LeavingCounts": {pool: pool(withShortfall(3)), blocks: []Block{open("a", 4, 0), open("b", 1, 0, draining, deleting)}, want: Decision{NewBlocks: 1}, reason: "status.blocks has max entries"},
		"Opens":         {pool: pool(), blocks: []Block{open("a", 0, 0, closed)}, want: Decision{Open: []string{"a"}}},
		"LooksFirst":    {pool: pool(), blocks: []Block{open("a", 0, 0, closed, unverified)}, want: Decision{Verify: []string{"a"}}, reason: "what was seen before this term may have been closed since"},
		"ProtectsFirst": {pool: pool(), blocks: []Block{open("a", 0, 0, closed, bare)}, want: Decision{Protect: []string{"a"}}, reason: "a block that is open stays until it is closed"},
		"Idle":          {pool: pool(), blocks: []Block{open("a", 1, 3), open("b", 0, 4, idle(time.Minute))}, want: Decision{Drain: []string{"b"}}},
		"NotAskedFor":   {pool: pool(), blocks: []Block{open("a", 1, 3), open("b", 0, 0, waiting, idle(time.Minute))}, want: Decision{Delete: []string{"b"}}, reason: "nothing waits for it"},
		"WaitedFor":     {pool: pool(waits), blocks: []Block{open("a", 4, 0), open("b", 0, 0, waiting, idle(time.Hour))}, reason: "the plan has not seen the waiting claims: the block would be requested again"},
		"IdleBesideOne": {pool: pool(waits), blocks: []Block{open("a", 1, 3), open("b", 0, 4, idle(time.Minute))}, want: Decision{Drain: []string{"b"}}, reason: "what waits is waiting for something else"},
		"NotYet":        {pool: pool(), blocks: []Block{open("a", 1, 3), open("b", 0, 4, idle(20*time.Second))}, want: Decision{NextWait: 40 * time.Second}},
		"KeepsMin":      {pool: pool(), blocks: []Block{open("a", 0, 4, idle(time.Hour))}},
		"KeepsEnough":   {pool: pool(ready(4)), blocks: []Block{open("a", 3, 1), open("b", 0, 4, idle(time.Hour))}, reason: "else it would be asked for again"},
		"Drained":       {pool: pool(), blocks: []Block{open("a", 1, 3), open("b", 0, 0, draining, idle(time.Hour))}, want: Decision{Delete: []string{"b"}}, reason: "it is on record that nothing is granted from it"},
		"NeededAgain":   {pool: pool(withShortfall(1)), blocks: []Block{open("a", 4, 0), open("b", 0, 0, draining)}, want: Decision{Delete: []string{"b"}, NewBlocks: 1}, reason: "its delete may be on its way"},
		"NeededAtMax":   {pool: pool(withShortfall(1)), blocks: []Block{open("a", 4, 0), open("b", 4, 0), open("c", 0, 0, draining)}, want: Decision{Delete: []string{"c"}}, reason: "one for which there is room when that is gone"},
		"GrantedAgain":  {pool: pool(), blocks: []Block{open("a", 1, 3, draining)}, want: Decision{EndDraining: []string{"a"}}, reason: "it is no longer shared"},
		"ByHandAgain":   {pool: pool(), blocks: []Block{open("a", 0, 4, draining, byHand)}, want: Decision{EndDraining: []string{"a"}}},
		"NotShared":     {pool: pool(withShortfall(1)), blocks: []Block{open("a", 4, 0), open("b", 0, 0, draining, shared)}, want: Decision{Delete: []string{"b"}, NewBlocks: 1}},
		"NoNetwork":     {pool: pool(unknown), blocks: []Block{open("a", 0, 0, closed)}, reason: "which gateway its addresses have is not known"},
		"Foreign":       {pool: pool(), blocks: []Block{open("a", 0, 0, closed, foreign)}, want: Decision{NewBlocks: 1}, reason: "another pool of the name had it"},
		"ForeignEnds":   {pool: pool(), blocks: []Block{open("a", 0, 0, closed, deleting, foreign), open("b", 1, 3)}, want: Decision{Release: []string{"a"}}},
		"ForeignInUse":  {pool: pool(), blocks: []Block{open("a", 1, 0, closed, deleting, foreign), open("b", 1, 3)}},
		"PausedBlock":   {pool: pool(withShortfall(1)), blocks: []Block{open("a", 4, 0), open("b", 0, 0, stuck)}, want: Decision{NewBlocks: 1}, reason: "it may never have anything"},
		"PausedAtMax":   {pool: pool(withShortfall(1)), blocks: []Block{open("a", 4, 0), open("b", 4, 0), open("c", 0, 0, stuck)}, reason: "it may have something at any time"},
		"RefusedByHand": {pool: pool(withShortfall(2)), blocks: []Block{open("a", 4, 0), open("b", 0, 0, stuck, byHand)}, want: Decision{NewBlocks: 2}, reason: "the pool has nothing of it"},
		"NameTaken":     {pool: pool(), blocks: []Block{open("a", 1, 0, gone, draining, taken), open("b", 1, 3)}, reason: "what has its name is not its own"},
		"NameTakenIdle": {pool: pool(), blocks: []Block{open("a", 0, 0, gone, draining, taken), open("b", 1, 3)}, want: Decision{Close: []string{"a"}}},
		"TooLate":       {pool: pool(withShortfall(1)), blocks: []Block{open("a", 4, 0), open("b", 0, 0, draining, deleting)}, want: Decision{Close: []string{"b"}, NewBlocks: 1}, reason: "what is deleted does not come back"},
		"Deleted":       {pool: pool(), blocks: []Block{open("a", 2, 2, deleting), open("b", 1, 3)}, want: Decision{Drain: []string{"a"}}, reason: "a user has deleted it"},
		"InUse":         {pool: pool(), blocks: []Block{open("a", 2, 0, deleting, draining), open("b", 1, 3)}, reason: "it waits for its claims"},
		"Closes":        {pool: pool(), blocks: []Block{open("a", 0, 0, deleting, draining), open("b", 1, 3)}, want: Decision{Close: []string{"a"}}},
		"RestsYet":      {pool: pool(), blocks: []Block{open("a", 0, 0, deleting, draining, rests), open("b", 1, 3)}, reason: "a released address rests before another claim gets it"},
		"RestsClosed":   {pool: pool(), blocks: []Block{open("a", 0, 0, deleting, closed, rests), open("b", 1, 3)}},
		"RestsIdle":     {pool: pool(), blocks: []Block{open("a", 1, 3), open("b", 0, 4, idle(time.Hour), rests)}},
		"InUseClosed":   {pool: pool(), blocks: []Block{open("a", 1, 0, deleting, closed), open("b", 1, 3)}, reason: "after a move, what has its addresses may be in use"},
		"Releases":      {pool: pool(), blocks: []Block{open("a", 0, 0, deleting, closed), open("b", 1, 3)}, want: Decision{Release: []string{"a"}}},
		"Released":      {pool: pool(), blocks: []Block{open("a", 0, 0, deleting, closed, bare), open("b", 1, 3)}, reason: "the parent takes it back"},
		"Shared":        {pool: pool(), blocks: []Block{open("a", 1, 3, shared)}, want: Decision{Drain: []string{"a"}}, reason: "another object has some of it"},
		"Lost":          {pool: pool(), blocks: []Block{open("a", 1, 3, gone)}, want: Decision{Drain: []string{"a"}, NewBlocks: 1}},
		"LostInUse":     {pool: pool(), blocks: []Block{open("a", 1, 0, gone, draining), open("b", 1, 3)}, want: Decision{Recreate: []string{"a"}}},
		"Replaced":      {pool: pool(), blocks: []Block{open("a", 1, 0, gone, draining, replaced), open("b", 1, 3, closed)}, want: Decision{Open: []string{"b"}}, reason: "the pool was given its addresses again, under another name"},
		"LostUnused":    {pool: pool(), blocks: []Block{open("a", 0, 0, gone, draining), open("b", 1, 3)}, want: Decision{Close: []string{"a"}}},
		"Refused":       {pool: pool(), blocks: []Block{open("a", 1, 3), open("b", 0, 0, waiting, idle(time.Hour))}, want: Decision{Delete: []string{"b"}}, reason: "no claim needs it any more"},
		"Outdated":      {pool: pool(withShortfall(1)), blocks: []Block{open("a", 4, 0), open("b", 0, 0, waiting, outdated)}, want: Decision{Delete: []string{"b"}, NewBlocks: 1}, reason: "prefixLength was changed while it waited"},
		"ByHand":        {pool: pool(), blocks: []Block{open("a", 1, 3), open("b", 0, 4, idle(time.Hour), byHand), open("c", 0, 0, waiting, idle(time.Hour), byHand)}, reason: "who made it wants it"},
		"Limit": {
			pool: pool(), blocks: []Block{open("a", 1, 0), open("b", 1, 0), open("c", 1, 0), open("d", 0, 0, closed), open("e", 0, 0, closed)},
			want: Decision{Open: []string{"d"}}, reason: "status.blocks has a bound, and any user can create blocks",
		},
		"Paused": {pool: pool(paused, withShortfall(1)), blocks: []Block{open("a", 0, 0, closed)}, want: Decision{Open: []string{"a"}}, reason: "what is there is used; nothing is asked for"},
		"Adopting": {
			pool: pool(adopts, withShortfall(1)), want: Decision{Open: []string{"a"}, Drain: []string{"d"}}, reason: "what was granted before may be on its way",
			blocks: []Block{open("a", 0, 0, closed), open("b", 0, 0, deleting, draining), open("c", 0, 0, deleting, closed), open("d", 0, 4, deleting)},
		},
		"PoolDeleted": {pool: pool(ends), blocks: []Block{open("a", 1, 3), open("b", 0, 4), open("c", 0, 0, closed)}, want: Decision{Drain: []string{"a", "b"}, Delete: []string{"c"}}},
		"PoolDrained": {pool: pool(ends), blocks: []Block{open("a", 1, 0, draining), open("b", 0, 0, draining, rests)}, want: Decision{Delete: []string{"b"}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := DecideBlocks(tt.pool, tt.blocks, noon)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
			if got.HasWork() != (tt.want.NewBlocks > 0 || diffNames(tt.want)) {
				t.Errorf("something is to be done: %v", got.HasWork())
			}
		})
	}
}

func diffNames(d Decision) bool {
	d.NewBlocks, d.NextWait = 0, 0
	return !cmp.Equal(d, Decision{})
}

func TestShortfallInBlocks(t *testing.T) {
	tests := map[string]struct {
		asks []int64
		want int
	}{
		"NoClaimants": {},
		"One":         {asks: []int64{1}, want: 1},
		"FillOne":     {asks: []int64{1, 1, 2}, want: 1},
		"TwoBlocks":   {asks: []int64{3, 3}, want: 2},
		"TooLarge":    {asks: []int64{5}, want: 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var l Shortfall
			for _, n := range tt.asks {
				l.Add(n, 4)
			}
			if l.Blocks != tt.want {
				t.Errorf("%d blocks, not %d", l.Blocks, tt.want)
			}
		})
	}
}

func TestBlockName(t *testing.T) {
	long := strings.Repeat("a", 253)
	tests := map[string]struct {
		pool, name string
		n          int
	}{
		"Short":       {"team-a", "team-a-12", 12},
		"LikeAnother": {"team-a-1", "team-a-1-2", 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := BlockName(tt.pool, tt.n); got != tt.name {
				t.Error(got)
			}
		})
	}
	if a, b := BlockName(long, 1), BlockName(long, 2); len(a) > 253 || a == b {
		t.Errorf("%s and %s", a, b)
	}
	for name, ok := range map[string]bool{
		BlockName("team-a", 1): true, BlockName(long, 70): true, "team-a-vips": false, "team-a": false, "team-a-": false, "team-a-01": false,
		"team-a-0": false, "team-b-1": false, "7": false,
	} {
		if pool := map[bool]string{true: long, false: "team-a"}[len(name) > 100]; IsBlockName(pool, name) != ok {
			t.Errorf("%s of %s: %v", name, pool, !ok)
		}
	}
}
