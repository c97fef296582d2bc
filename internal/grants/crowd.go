package grants

import (
	"maps"
	"slices"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// MaxInFlight bounds the grants on record, with those that wait or fail: of the longest names they take 160 KB.
const MaxInFlight = 300

// reserve is how many of them are kept for namespaces of which nothing fails. A grant that fails stays in flight as long as a
// write of it may land, so a few namespaces that fail could take them all.
const reserve = 100

// crowd is how many grants are in flight, as a plan counts them.
type crowd struct {
	all, stuck int
	of         map[string]int
}

func (m *Memory) crowd() *crowd {
	out := &crowd{of: map[string]int{}}
	for uid, g := range m.Grants {
		if g.Confirmed {
			continue
		}
		out.add(g.Owner.Namespace)
		if c := m.Claimants[uid]; c != nil && (c.Failures > 0 || c.waits) {
			out.stuck++
		}
	}
	return out
}

func (k *crowd) add(namespace string) {
	k.all++
	k.of[namespace]++
}

// IsStuck reports whether as many grants are in flight as may be, and some of them fail or are paused.
func (m *Memory) IsStuck() bool {
	k := m.crowd()
	return k.all >= MaxInFlight && k.stuck > 0
}

// turnOf reports whether a claim may have a grant now, or says why not; neither: those of its namespace that have one are
// being written. While grants fail, a namespace of which none was served since has few, and at the end one at a time, so that
// there is room for each.
func (m *Memory) turnOf(c *Claimant, k *crowd) (no *Refusal, may bool) {
	ns := c.Owner.Namespace
	left, has := MaxInFlight-k.all, k.of[ns]
	switch _, well := m.well[ns]; {
	case k.stuck == 0, well:
		may = left > 0
	case left > reserve:
		may = has < term.MaxTroubled
	default:
		may = left > 0 && has == 0
	}
	switch t := m.troubled[ns]; {
	case may:
		return nil, true
	case t != nil:
		return t.refusal(ns), false
	case left <= 0 && k.stuck > 0:
		return m.tooManyStuck(), false
	}
	return nil, false
}

// tooManyStuck is what a claim is told that waits for grants of others.
func (m *Memory) tooManyStuck() *Refusal {
	if names := slices.Sorted(maps.Keys(m.troubled)); len(names) > 0 {
		return NotReady("%s grants nothing more while writes of what it has granted fail, as in namespace %s: %v; change what fails them: this claim is served when one of those is",
			m.Key, names[0], m.troubled[names[0]].err)
	}
	return NotReady("%s grants nothing more while the Clusters of so many claims that were granted something are paused; resume one of them", m.Key)
}
