package allocator

import (
	"fmt"
	"net/netip"
	"time"

	"go4.org/netipx"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/plain"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// refusal is why a claim gets nothing now: a reason of the CAPI contract and what to do about it.
type refusal struct{ reason, message string }

func failed(format string, args ...any) *refusal {
	return &refusal{ipamv1.IPAddressClaimReadyAllocationFailedReason, plain.Message(fmt.Sprintf(format, args...))}
}

func notReady(format string, args ...any) *refusal {
	return &refusal{ipamv1.IPAddressClaimReadyPoolNotReadyReason, plain.Message(fmt.Sprintf(format, args...))}
}

// plan grants addresses to the claims that wait, oldest first, at most room of them, and returns the
// claims that are refused with the reason. One claim's failure never holds up another's.
func (p *pool) plan(now time.Time, room int, admission admit) (granted int, refused map[*claim]*refusal) {
	refused = map[*claim]*refusal{}
	p.full = nil
	var grants []*grant
	p.pending.Scan(func(c *claim) bool {
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
		p.sort(p.claims[g.owner.UID])
	}
	return len(grants), refused
}

// choose takes the address of a claim, or its block: the one that is meant for it, or the best fit. It counts towards the quota of its Cluster.
func (p *pool) choose(c *claim) (netipx.IPRange, *refusal) {
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
	if c.block != nil {
		take = func() (netipx.IPRange, bool) { return p.ledger.TakeBlock(uint64(c.block.size(p.base.PoolSpec()))) }
	}
	if r, ok := take(); ok {
		return r, nil
	}
	return netipx.IPRange{}, p.noRoom(c)
}

// available finds what there is for a claim: what is meant for it, or, where that is nothing at all, any that fits.
func (p *pool) available(c *claim) (netipx.IPRange, *refusal) {
	r, no := p.designated(c)
	if no == nil && !r.IsValid() && !p.hasRoom(c) {
		no = p.noRoom(c)
	}
	return r, no
}

// hasRoom reports whether something is free that a claim would take.
func (p *pool) hasRoom(c *claim) bool {
	if c.block != nil {
		return p.ledger.Counts().LargestFree >= c.block.size(p.base.PoolSpec())
	}
	return p.ledger.HasFree()
}

// noRoom says that nothing is free. It says no numbers that change all the time: thousands may wait, and each would be told anew whenever one
// address comes to rest.
func (p *pool) noRoom(c *claim) *refusal {
	if c.block != nil {
		return noBlock(p.key, c.block.size(p.base.PoolSpec()))
	}
	if p.full == nil {
		text := fmt.Sprintf("%s has no free address: its spec leaves none; add addresses, or reserve fewer", p.key)
		if p.ledger.Counts().Total > 0 {
			text = fmt.Sprintf("%s has no free address: all are allocated, reserved or resting; add addresses to the pool or delete claims", p.key)
		}
		p.full = &refusal{ipamv1.IPAddressClaimReadyPoolExhaustedReason, text}
	}
	return p.full
}

// designated finds what is meant for a claim: what it remembers, the address pinned to its name, the one it asks
// for, or the one that rests for its name. Nothing at all: any will do.
func (p *pool) designated(c *claim) (netipx.IPRange, *refusal) {
	if c.block != nil {
		return p.designatedForBlock(c)
	}
	if other := p.addressOf(c); other != nil && other.claimUID != c.owner.UID {
		return netipx.IPRange{}, p.nameTaken(c, other)
	}
	if c.record.IsValid() {
		return p.recorded(c)
	}
	if pin, ok := p.layout.Pin(c.owner.Name); ok {
		return p.thisAddress(c, pin, "preAllocated")
	}
	if c.requested != "" {
		ip, err := netip.ParseAddr(c.requested)
		if err != nil || ip.Zone() != "" {
			return netipx.IPRange{}, failed("the requested address %q is not an IP address", c.requested)
		}
		if !p.ledger.InSpace(p.ledger.Unit(ip.Unmap())) {
			return netipx.IPRange{}, failed("the requested address %s is not among those %s hands out (%s); ask for another, or remove the annotation %s",
				ip, p.key, poolspec.Withheld(p.base.PoolSpec(), p.layout, ip.Unmap()), v1alpha1.RequestedAddressAnnotation)
		}
		return p.thisAddress(c, ip.Unmap(), "requested")
	}
	return p.coolingFor(c.owner, func(r netipx.IPRange) bool { return p.ledger.Unit(r.From()) == r }), nil
}

// recorded gives a claim what it remembers. Users can write that annotation too: what a claim never had
// must be something that the pool hands out, and nobody else may have it (R1).
func (p *pool) recorded(c *claim) (netipx.IPRange, *refusal) {
	r := c.record
	if c.block == nil {
		r = p.ledger.Unit(r.From())
	}
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
			"delete one of the two", poolutil.FormatRange(r), v1alpha1.AddressAnnotation, describeHold(h))
	}
	return r, nil
}

// laterThanRecords reports whether a fact keeps addresses whoever remembers them: it came when they were given already. What is shared with another
// pool is, and what is held together with the ranges around it.
func (p *pool) laterThanRecords(h *ledger.Hold) bool {
	return h.Source == ledger.Shared || (h.Source == ledger.Held && h.Owner.Name == "")
}

// mayGetAnother tells whether a claim may be given another address than it remembers. Where the in-cluster provider and
// we serve a pool by turns, it may have given somebody else what we had granted and nobody was told of: it
// reads no records.
func (c *claim) mayGetAnother() bool { return c.mirrored && !c.hadAddress }

// winsRecord tells whose record counts of two claims that remember one address, as copies of a manifest
// do: that of the claim which had it, else the older one's.
func (c *claim) winsRecord(other *claim) bool {
	if c.hadAddress != other.hadAddress {
		return c.hadAddress
	}
	return older(c, other)
}

// overridesRecord tells whether a fact is the record of a claim that another wins over.
func (p *pool) overridesRecord(c *claim, h *ledger.Hold) bool {
	other := p.claims[h.Owner.UID]
	return h.Source == ledger.Record && other != nil && c.winsRecord(other)
}

func (p *pool) thisAddress(c *claim, ip netip.Addr, what string) (netipx.IPRange, *refusal) {
	r := p.ledger.Unit(ip)
	if h := p.blocker(r, c.owner); h != nil {
		return netipx.IPRange{}, failed("the %s address %s is held by %s", what, ip, describeHold(h))
	}
	return r, nil
}

// blocker returns a fact that keeps a range from an owner, if there is one.
func (p *pool) blocker(r netipx.IPRange, o ledger.Owner) *ledger.Hold {
	for _, h := range p.ledger.Overlapping(r) {
		if p.blocks(h, o) {
			return h
		}
	}
	return nil
}

// blocks tells whether a fact keeps its range from an owner.
func (p *pool) blocks(h *ledger.Hold, o ledger.Owner) bool {
	switch h.Source {
	case ledger.Pin:
		return h.Owner.Name != o.Name || o.Block
	case ledger.Cooling:
		return h.Owner.Namespace != o.Namespace || h.Owner.Name != o.Name
	case ledger.Record:
		// Anybody can write a record. It does not keep an address from the name that it is kept for.
		c := p.claims[h.UID]
		return (h.Owner.UID != o.UID || o.UID == "") && (c == nil || c.hasFinalizer || c.hadAddress || !p.pinned(h.Range, o))
	default:
		return h.Owner.UID != o.UID || o.UID == ""
	}
}

// pinned tells whether a range is kept for the name of an owner.
func (p *pool) pinned(r netipx.IPRange, o ledger.Owner) bool {
	if p.layout == nil || o.Block {
		return false
	}
	pin, is := p.layout.Pin(o.Name)
	return is && r.Contains(pin)
}

func describeHold(h *ledger.Hold) string {
	who := h.Owner.Name
	if h.Owner.Namespace != "" {
		who = h.Owner.Namespace + "/" + h.Owner.Name
	}
	switch h.Source {
	case ledger.Object, ledger.Record, ledger.Grant:
		if h.Source == ledger.Object && !h.Owner.Block {
			return "IPAddress " + who
		}
		return h.Owner.Kind() + " " + who
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
