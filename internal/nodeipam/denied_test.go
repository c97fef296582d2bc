package nodeipam

import (
	"testing"
	"time"
)

func isShared(b *Block)   { b.Shared, b.Had = true, prefixes("10.9.0.0/23") }
func isRestored(b *Block) { b.Had = prefixes("10.9.0.0/23") }

// A block that may never have anything is not waited for: another one is asked for, as far as the Cluster may have more. One that is to
// have whatever addresses the pool has, and gets none, is waited for, as the next would get none either.
func TestBlocksThatMayNeverHaveAny(t *testing.T) {
	for name, tt := range map[string]struct {
		blocks []Block
		want   []string
	}{
		"its addresses are another's by now":  {blocks: []Block{aBlock(firstName, "", isRestored, isRefused)}, want: []string{"ask for " + secondName}},
		"some of it is another's":             {blocks: []Block{aBlock(firstName, "", isShared)}, want: []string{"ask for " + secondName}},
		"two are, and there may be two":       {blocks: []Block{aBlock(firstName, "", isShared), aBlock(secondName, "", isShared)}},
		"it was restored, and is yet to come": {blocks: []Block{aBlock(firstName, "", isRestored)}},
		"the pool has none":                   {blocks: []Block{aBlock(firstName, "", isRefused)}},
	} {
		t.Run(name, func(t *testing.T) {
			m := growing(t, tt.blocks, aNode("a"))
			expectErrands(t, m.turnOnce(t, noon), tt.want...)
		})
	}
}

// The record of a block comes before its status, which may say for a moment that the pool has none: that is no refusal of its record.
func TestARecordThatHasJustCome(t *testing.T) {
	for name, see := range map[string]func(*memory, Block){
		"by a watch":  func(m *memory, b Block) { m.setBlocks([]Block{b}, noon) },
		"by a read":   func(m *memory, b Block) { m.sawBlock(b, noon) },
		"by a second": func(m *memory, b Block) { m.setBlocks([]Block{b}, noon); m.setBlocks([]Block{b}, noon) },
	} {
		t.Run(name, func(t *testing.T) {
			m := growing(t, []Block{aBlock(firstName, "", isRefused)}, aNode("a"))
			see(m, aBlock(firstName, "", isRefused, isRestored))
			expectErrands(t, m.turnOnce(t, noon))
		})
	}
}

// A block that a restore has brought, of which Nodes have some and which another has by now, is reported and stays.
func TestARestoredBlockIsContested(t *testing.T) {
	b := aBlock(firstName, "", isRefused, func(b *Block) { b.Had = prefixes(lostCIDR) })
	m := growing(t, []Block{b}, aNode("a", "10.0.0.0/24"))
	expectErrands(t, m.turnOnce(t, noon))
	if got := m.contested(); len(got) != 1 {
		t.Errorf("contested are %q", got)
	}
	m.forget("a", noon)
	m.turnOnce(t, noon)
	if got := m.contested(); len(got) != 0 {
		t.Errorf("no Node uses it, and contested are %q", got)
	}
}

// What was denied stays so that comes after the record: the status is not of before that any more.
func TestARefusalAfterTheRecord(t *testing.T) {
	m := growing(t, []Block{aBlock(firstName, "", isRefused)}, aNode("a"))
	m.sawBlock(aBlock(firstName, "", isRefused, isRestored), noon)
	expectErrands(t, m.turnOnce(t, noon))
	m.sawBlock(aBlock(firstName, "", isRestored, func(b *Block) { b.Refused = "the record says 10.9.0.0/23, which another has" }), noon)
	expectErrands(t, m.turnOnce(t, noon), "ask for "+secondName)
}

// A block that is denied and that no Node uses goes after the grace.
func TestADeniedBlockThatIsIdleGoes(t *testing.T) {
	m := growing(t, []Block{aBlock(firstName, "", isRestored, isRefused)})
	expectErrands(t, m.turnOnce(t, noon))
	expectErrands(t, m.turnOnce(t, noon.Add(time.Hour)), "give back "+firstName)
}

// A restored block is not contested where another block of the Cluster has its addresses.
func TestAReplacedBlockIsNotContested(t *testing.T) {
	m := losing(t, 1, aBlock(firstName, "", isRefused, hadLost), aBlock(secondName, lostCIDR, isPinned, hadLost))
	m.turnOnce(t, noon)
	m.turnOnce(t, noon)
	if got := m.contested(); len(got) > 0 {
		t.Errorf("contested are %q", got)
	}
}

// What is denied is released once it is deleted, where another block of the Cluster has the addresses that Nodes use.
func TestADeniedBlockGoesWhereAnotherCame(t *testing.T) {
	m := losing(t, 1, aBlock(firstName, "", isRefused, hadLost, isDeleted), aBlock(secondName, lostCIDR, isPinned, hadLost))
	m.turnOnce(t, noon)
	expectErrands(t, m.turnOnce(t, noon), "let go of "+firstName)
}
