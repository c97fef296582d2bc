package nodeipam

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
)

const firstName, secondName, lostCIDR = "prod-pods-4-1", "prod-pods-4-2", "10.0.0.0/23"

func isPinned(b *Block)    { b.Pinned = netip.MustParsePrefix(lostCIDR) }
func isRefused(b *Block)   { b.Refused = "another has it" }
func ofOtherPool(b *Block) { b.Pool.Name = "others" }

// losing is the memory of a holder on whose record a block is open and drains that is lost, and that has so many Nodes.
func losing(t *testing.T, nodes int, blocks ...Block) *memory {
	t.Helper()
	m := growing(t, blocks)
	for i := range nodes {
		m.observe(aNode(string(rune('a'+i)), []string{"10.0.0.0/24", "10.0.1.0/24"}[i]), "2", noon)
	}
	m.setOpen([]fence.Open{{Kind: v1alpha1.IPAllocationKind, Name: firstName, UID: "gone", For: "c", Draining: true, CIDRs: prefixes(lostCIDR)}})
	m.missing[firstName] = true
	for _, b := range blocks {
		m.sawBlock(b, noon)
	}
	return m
}

func hadLost(b *Block) { b.Had = prefixes(lostCIDR) }

// R15: a lost block is asked for again under another name where something else has its name by now, once.
func TestALostBlockTakesAnotherName(t *testing.T) {
	for name, tt := range map[string]struct {
		blocks []Block
		change func(*memory)
		want   []string
	}{
		"the name is free":                 {want: []string{"ask for " + firstName}},
		"no block has it":                  {change: func(m *memory) { m.taken[firstName] = noon.Add(time.Hour) }, want: []string{"ask for " + secondName}},
		"a block has it that was restored": {blocks: []Block{aBlock(firstName, "10.0.8.0/23")}, want: []string{"ask for " + secondName}},
		"a watch alone shows that": {
			blocks: []Block{aBlock(firstName, "10.0.8.0/23")}, change: func(m *memory) { clear(m.looked) }, want: []string{"look at " + firstName},
		},
		"it was asked for": {blocks: []Block{aBlock(firstName, "10.0.8.0/23"), aBlock(secondName, "", isPinned)}},
		"it was refused":   {blocks: []Block{aBlock(firstName, "10.0.8.0/23"), aBlock(secondName, "", isPinned, isRefused)}},
		"its record came back, and its status is to": {blocks: []Block{aBlock(firstName, "", hadLost)}},
		"what was asked for is being deleted": {
			blocks: []Block{aBlock(firstName, "", isPinned, isDeleted)}, want: []string{"let go of " + firstName, "ask for " + secondName},
		},
		"what a restore brought is being deleted": {
			blocks: []Block{aBlock(firstName, "10.0.8.0/23", isDeleted), aBlock(secondName, "", isPinned, isRefused)}, want: []string{"let go of " + firstName},
		},
		"its ClusterCIDR is being deleted":                       {change: endRange, want: []string{"ask for " + firstName}},
		"it was asked for, and its ClusterCIDR is being deleted": {blocks: []Block{aBlock(secondName, "", isPinned)}, change: endRange},
		"it was refused, and its ClusterCIDR is being deleted":   {blocks: []Block{aBlock(secondName, "", isPinned, isRefused)}, change: endRange},
		"another pool was asked for that":                        {blocks: []Block{aBlock(secondName, "", isPinned, ofOtherPool)}, want: []string{"ask for " + firstName}},
	} {
		t.Run(name, func(t *testing.T) {
			m := losing(t, 2, tt.blocks...)
			if tt.change != nil {
				tt.change(m)
			}
			errands := m.decideBlocks(noon).errands
			expectErrands(t, namesOf(errands), tt.want...)
			for _, e := range errands {
				if e.do == askFor && (e.lost.Name != firstName || e.lost.CIDRs[0].String() != lostCIDR) {
					t.Errorf("%s is asked for in the place of %+v", e.name, e.lost)
				}
			}
		})
	}
}

func endRange(m *memory) {
	for ref, o := range m.objects {
		o.Closing, o.Range.Closing = true, true
		m.objects[ref] = o
	}
}

// The bound on the blocks of a Cluster holds up none that is lost: what takes its place, or is denied, is none of those that it has.
func TestAllLostBlocksAreAskedFor(t *testing.T) {
	const third, fourth = "prod-pods-4-3", "prod-pods-4-4"
	first := fence.Open{Kind: v1alpha1.IPAllocationKind, Name: firstName, UID: "gone-1", For: "c", Draining: true, CIDRs: prefixes(lostCIDR)}
	second := fence.Open{Kind: v1alpha1.IPAllocationKind, Name: secondName, UID: "gone-2", For: "c", Draining: true, CIDRs: prefixes("10.0.2.0/23")}
	restored := []Block{aBlock(firstName, "10.0.8.0/23"), aBlock(secondName, "10.0.10.0/23")}
	for name, tt := range map[string]struct {
		blocks []Block
		open   []fence.Open
		want   []string
	}{
		"two of two":           {restored, []fence.Open{first, second}, []string{"ask for " + third, "ask for " + fourth}},
		"the first has come":   {append(restored, aBlock(third, lostCIDR, isPinned, hadLost)), []fence.Open{first, second}, []string{"ask for " + fourth}},
		"one is denied":        {[]Block{aBlock(third, "", isRestored, isRefused)}, []fence.Open{first, second}, []string{"ask for " + firstName, "ask for " + secondName}},
		"more than may be had": {nil, []fence.Open{first, second, {Kind: first.Kind, Name: third, UID: "forged", For: "c", Draining: true, CIDRs: prefixes("10.0.4.0/23")}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := growing(t, tt.blocks)
			for i, at := range []string{"10.0.0.0/24", "10.0.2.0/24", "10.0.4.0/24"} {
				m.observe(aNode(string(rune('a'+i)), at), "2", noon)
			}
			m.setOpen(tt.open)
			for _, b := range tt.blocks {
				m.sawBlock(b, noon)
			}
			for _, on := range tt.open {
				m.missing[on.Name] = true
			}
			expectErrands(t, m.turnOnce(t, noon), tt.want...)
		})
	}
}

// A restore that brings blocks under other names, which no Node uses, holds up none that is lost either.
func TestLostBlocksAreAskedForBesideRestoredOnes(t *testing.T) {
	const third, fourth = "prod-pods-4-3", "prod-pods-4-4"
	restored := []Block{aBlock(firstName, "10.0.8.0/23"), aBlock(secondName, "10.0.10.0/23")}
	m := growing(t, restored)
	m.observe(aNode("a", "10.0.0.0/24"), "2", noon)
	m.observe(aNode("b", "10.0.2.0/24"), "2", noon)
	m.observe(aNode("waits"), "2", noon)
	m.setOpen([]fence.Open{
		{Kind: v1alpha1.IPAllocationKind, Name: third, UID: "gone-1", For: "c", CIDRs: prefixes(lostCIDR)},
		{Kind: v1alpha1.IPAllocationKind, Name: fourth, UID: "gone-2", For: "c", CIDRs: prefixes("10.0.2.0/23")},
	})
	m.missing[third], m.missing[fourth] = true, true
	for _, b := range restored {
		m.sawBlock(b, noon)
	}
	m.turnOnce(t, noon)
	if len(m.open) != 2 {
		t.Errorf("more is open than the Cluster may have: %+v", m.open)
	}
	expectErrands(t, m.turnOnce(t, noon), "ask for "+third, "ask for "+fourth)
}

// What asks for addresses that Nodes use stays, also where the record that they are of a lost block is lost too, or where a user has
// asked for them.
func TestARequestStaysWhileNodesUseIt(t *testing.T) {
	for name, change := range map[string][]func(*Block){
		"waits": {isPinned}, "is refused": {isPinned, isRefused}, "has a record": {isPinned, hadLost}, "shares them": {isPinned, hadLost, func(b *Block) { b.Shared = true }},
	} {
		t.Run(name, func(t *testing.T) {
			m := losing(t, 1, aBlock(secondName, "", change...))
			m.setOpen(nil)
			expectErrands(t, m.turnOnce(t, noon))
			expectErrands(t, m.turnOnce(t, noon.Add(time.Hour)))
		})
	}
}

// A block that was asked for again once, and that is open, replaces nothing: with its ClusterCIDR it goes, though it shares addresses.
func TestAnOpenBlockReplacesNothing(t *testing.T) {
	b := aBlock(firstName, "", isPinned, hadLost, func(b *Block) { b.Shared = true })
	m := growing(t, []Block{b})
	m.setOpen([]fence.Open{{Kind: v1alpha1.IPAllocationKind, Name: firstName, UID: b.UID, For: "c", Draining: true, CIDRs: prefixes(lostCIDR)}})
	m.sawBlock(b, noon)
	endRange(m)
	expectErrands(t, m.turnOnce(t, noon), "give back "+firstName)
}

// What Nodes have of a block stays its own though another block has the same addresses: of another pool, or not open, or on its way out.
func TestWhatAnotherBlockHasAsWell(t *testing.T) {
	on := fence.Open{Kind: v1alpha1.IPAllocationKind, Name: secondName, UID: "uid-" + secondName, For: "d", CIDRs: prefixes(lostCIDR)}
	for name, tt := range map[string]struct {
		other Block
		open  []fence.Open
		used  bool
	}{
		"it has taken them over": {aBlock(secondName, lostCIDR, hadLost), []fence.Open{on}, false},
		"of another pool":        {aBlock(secondName, lostCIDR, hadLost, ofOtherPool), []fence.Open{on}, true},
		"not open":               {aBlock(secondName, lostCIDR, hadLost), nil, true},
		"being deleted":          {aBlock(secondName, lostCIDR, hadLost, isDeleted), []fence.Open{on}, true},
		"unprotected":            {aBlock(secondName, lostCIDR, hadLost, func(b *Block) { b.Protected = false }), []fence.Open{on}, true},
	} {
		t.Run(name, func(t *testing.T) {
			denied := aBlock(firstName, "", isRefused, hadLost)
			m := growing(t, []Block{denied, tt.other}, aNode("a", "10.0.0.0/24"))
			m.setOpen(tt.open)
			if got := m.used(denied) > 0; got != tt.used {
				t.Errorf("it is in use: %v", got)
			}
		})
	}
}

// What is left of a request when its manager has died is work for another one.
func TestWhatIsLeftOfARequestIsWork(t *testing.T) {
	for name, change := range map[string][]func(*Block){"waits": {isPinned}, "is refused": {isPinned, isRefused}} {
		t.Run(name, func(t *testing.T) {
			m := growing(t, []Block{aBlock(secondName, "", change...)})
			m.lose(noon, func(time.Duration) time.Duration { return 0 })
			m.unread, m.triedOnce = false, true
			m.hasWork(noon)
			if work, _ := m.hasWork(noon.Add(time.Hour)); !work {
				t.Error("nothing is to be done")
			}
		})
	}
}

// R15: what takes the place of a lost block is open from the commit on that the lost one is not, and gives what the lost one had left.
func TestALostBlockIsReplaced(t *testing.T) {
	m := losing(t, 1, aBlock(firstName, "10.0.8.0/23"), aBlock(secondName, lostCIDR, isPinned))
	m.observe(aNode("x"), "2", noon)
	m.turnOnce(t, noon)
	first := slices.IndexFunc(m.open, func(o fence.Open) bool { return o.CIDRs[0].String() == lostCIDR })
	if len(m.open) != 1 || first != 0 || m.open[0].Name != secondName || m.open[0].Draining {
		t.Fatalf("open is %+v", m.open)
	}
	m.turnOnce(t, noon)
	if len(m.grants) != 1 {
		t.Errorf("%d grants of what is left of it", len(m.grants))
	}
}

// What takes the place of a lost block stays while Nodes have some of that, and goes with the last of them.
func TestWhatReplacesALostBlockStaysWhileItIsUsed(t *testing.T) {
	for name, change := range map[string][]func(*Block){"waits": {isPinned}, "is refused": {isPinned, isRefused}} {
		t.Run(name, func(t *testing.T) {
			m := losing(t, 1, aBlock(secondName, "", change...))
			m.taken[firstName] = noon.Add(time.Hour)
			m.turnOnce(t, noon)
			expectErrands(t, m.turnOnce(t, noon.Add(time.Hour)))
			m.forget("a", noon.Add(time.Hour))
			m.turnOnce(t, noon.Add(time.Hour))
			expectErrands(t, m.turnOnce(t, noon.Add(2*time.Hour)), "give back "+secondName)
		})
	}
}
