package allocator

import (
	"fmt"
	"time"

	"go4.org/netipx"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// refusal is why a claim gets nothing now: a reason of the CAPI contract and what to do about it.
type refusal struct{ reason, message string }

func failed(format string, args ...any) *refusal {
	return &refusal{reason: ipamv1.IPAddressClaimReadyAllocationFailedReason, message: text.Message(fmt.Sprintf(format, args...))}
}

func notReady(format string, args ...any) *refusal {
	return &refusal{reason: ipamv1.IPAddressClaimReadyPoolNotReadyReason, message: text.Message(fmt.Sprintf(format, args...))}
}

// plan grants addresses to the claims that wait, oldest first, at most room of them, and returns the
// claims that are refused with the reason. One claim's failure never holds up another's.
func (p *memory) plan(now time.Time, room int, admission admit) (granted int, refused map[*claimant]*refusal) {
	refused = map[*claimant]*refusal{}
	p.full = nil
	var grants []*grant
	p.pending.Scan(func(c *claimant) bool {
		if len(grants) >= room {
			return false
		}
		if c.busy || c.retryAt.After(now) {
			return true
		}
		ruled := admission(c)
		if ruled.waits {
			return true
		}
		no := ruled.refused
		if no == nil {
			no = p.inTrouble(c, now)
		}
		var r netipx.IPRange
		if no == nil {
			r, no = p.choose(c)
		}
		if no != nil {
			if !c.shows(*no) {
				refused[c] = no
			}
			return true
		}
		g := &grant{owner: c.owner, rng: r}
		p.cooling.Remove(r)
		p.ledger.Add(ledger.Hold{Key: ledger.Key{Source: ledger.Grant, UID: c.owner.UID}, Owner: c.owner, Range: r})
		grants = append(grants, g)
		return true
	})
	for _, g := range grants {
		p.grants[g.owner.UID] = g
		p.sort(p.claimants[g.owner.UID])
	}
	return len(grants), refused
}

// choose takes the address of a claim, or its block: the one that is meant for it, or the best fit. It counts towards
// the quota of its Cluster.
func (p *memory) choose(c *claimant) (netipx.IPRange, *refusal) {
	r, no := p.available(c)
	if no == nil {
		no = p.reserve(c)
	}
	switch {
	case no != nil:
		return netipx.IPRange{}, no
	case r.IsValid():
		return r, nil
	}
	take := p.ledger.TakeOne
	if n := c.kind.size(p, c); n > 0 {
		take = func() (netipx.IPRange, bool) { return p.ledger.TakeBlock(uint64(n)) }
	}
	if r, ok := take(); ok {
		return r, nil
	}
	return netipx.IPRange{}, p.noRoom(c)
}

// available finds what there is for a claim: what is meant for it, or, where that is nothing at all, any that fits.
func (p *memory) available(c *claimant) (netipx.IPRange, *refusal) {
	r, no := c.kind.designated(p, c)
	if no == nil && !r.IsValid() && !p.hasRoom(c) {
		no = p.noRoom(c)
	}
	return r, no
}

// hasRoom reports whether something is free that a claim would take.
func (p *memory) hasRoom(c *claimant) bool {
	if n := c.kind.size(p, c); n > 0 {
		return p.ledger.Counts().LargestFree >= n
	}
	return p.ledger.HasFree()
}

// noRoom says that nothing is free. Those that ask for one are told the same: thousands may wait.
func (p *memory) noRoom(c *claimant) *refusal {
	if c.kind.size(p, c) > 0 {
		return c.kind.noRoom(p, c)
	}
	if p.full == nil {
		p.full = c.kind.noRoom(p, c)
	}
	return p.full
}

// recorded gives a claimant what it remembers, which is to be r. Users can write that annotation too: what a claimant
// never had must be something that the pool hands out, and nobody else may have it (R1).
func (p *memory) recorded(c *claimant, r netipx.IPRange) (netipx.IPRange, *refusal) {
	if r != c.record || (!c.hadAddress && !p.ledger.InSpace(r)) {
		return netipx.IPRange{}, failed("the annotation %s says %s, which is not something that %s hands out; remove the annotation",
			v1alpha1.AddressAnnotation, c.recordText, p.key)
	}
	for _, h := range p.ledger.Overlapping(r) {
		if (h.Source == ledger.Pin && c.hadAddress) || (p.laterThanRecords(h) && c.hasRecord()) {
			continue // the address was its own before
		}
		if !p.blocks(h, c.owner) || p.overridesRecord(c, h) {
			continue
		}
		if h.Source == ledger.Object && c.mayGetAnother() {
			return netipx.IPRange{}, nil // any other
		}
		return netipx.IPRange{}, failed("the address %s, which the annotation %s says this claim was given, is held by %s; "+
			"delete one of the two", poolutil.FormatRange(r), v1alpha1.AddressAnnotation, p.describeHold(h))
	}
	return r, nil
}

// laterThanRecords reports whether a fact keeps addresses whoever remembers them: it came when they were given already.
// What is shared with another pool is, and what is held together with the ranges around it.
func (p *memory) laterThanRecords(h *ledger.Hold) bool {
	return h.Source == ledger.Shared || (h.Source == ledger.Held && h.Owner.Name == "")
}

// mayGetAnother reports whether a claimant may be given another address than it remembers. Where the in-cluster
// provider and we serve a pool by turns, it may have given somebody else what we had granted and nobody was told of: it
// reads no records.
func (c *claimant) mayGetAnother() bool { return c.mirrored && !c.hadAddress }

// winsRecord tells whose record counts of two claims that remember one address, as copies of a manifest
// do: that of the claim which had it, else the older one's.
func (c *claimant) winsRecord(other *claimant) bool {
	if c.hadAddress != other.hadAddress {
		return c.hadAddress
	}
	return older(c, other)
}

// overridesRecord reports whether a fact is the record of a claim that another wins over.
func (p *memory) overridesRecord(c *claimant, h *ledger.Hold) bool {
	other := p.claimants[h.Owner.UID]
	return h.Source == ledger.Record && other != nil && c.winsRecord(other)
}

// blocker returns a fact that keeps a range from an owner, if there is one.
func (p *memory) blocker(r netipx.IPRange, o ledger.Owner) *ledger.Hold {
	for _, h := range p.ledger.Overlapping(r) {
		if p.blocks(h, o) {
			return h
		}
	}
	return nil
}

// blocks reports whether a fact keeps its range from an owner.
func (p *memory) blocks(h *ledger.Hold, o ledger.Owner) bool {
	switch h.Source {
	case ledger.Pin:
		return h.Owner.Name != o.Name || !p.kindOf(o.Kind).traits().pinned
	case ledger.Cooling:
		return h.Owner.Namespace != o.Namespace || h.Owner.Name != o.Name
	case ledger.Record:
		// Anybody can write a record. It does not keep an address from the name that it is kept for.
		c := p.claimants[h.UID]
		return (h.Owner.UID != o.UID || o.UID == "") && (c == nil || c.hasFinalizer || c.hadAddress || !p.pinned(h.Range, o))
	default:
		return h.Owner.UID != o.UID || o.UID == ""
	}
}

// pinned reports whether a range is kept for the name of an owner.
func (p *memory) pinned(r netipx.IPRange, o ledger.Owner) bool {
	if p.layout == nil || !p.kindOf(o.Kind).traits().pinned {
		return false
	}
	pin, is := p.layout.Pin(o.Name)
	return is && r.Contains(pin)
}

// describeHold says whose a fact is.
func (p *memory) describeHold(h *ledger.Hold) string {
	who := h.Owner.Name
	if h.Owner.Namespace != "" {
		who = h.Owner.Namespace + "/" + h.Owner.Name
	}
	switch h.Source {
	case ledger.Object, ledger.Record, ledger.Grant:
		if a := p.kindOf(h.Owner.Kind).traits().attaches; a != nil && h.Source == ledger.Object {
			return a.kind() + " " + who
		}
		return h.Owner.Kind + " " + who
	case ledger.Pin:
		return "a preAllocation for claims named " + who
	case ledger.Cooling:
		if who == "" {
			return "its reuse grace period"
		}
		return "its reuse grace period (released by " + who + ")"
	case ledger.Held:
		return "status.held (released by " + who + ")"
	case ledger.Shared:
		return who + ", which has it too"
	}
	return who
}

// heldByAnother reports which IPAddress, or other object, has what was granted to a claimant: a restore can bring back
// a pool with grants that were given to somebody else since (R10).
func (p *memory) heldByAnother(c *claimant, g *grant) error {
	if h := p.blocker(g.rng, c.owner); h != nil && h.Source == ledger.Object {
		return fmt.Errorf("%s was granted to this %s, but %s has it; delete one of the two", poolutil.FormatRange(g.rng), c.owner.Kind, p.describeHold(h))
	}
	return nil
}
