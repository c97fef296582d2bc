package allocator

import "github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"

// takesUp reports whether a claim takes up an IPAddress of its name that somebody made by hand, as the in-cluster provider does: in the
// place of that, where both name its pool and the pool hands the address out. What a claim has already, it keeps.
func (p *pool) takesUp(c *claim, addr *address) bool {
	return c.mirrored && addr.mirrored && addr.byHand() && !addr.deleting && (!c.hasRecord() || c.mayGetAnother()) &&
		addr.ip.IsValid() && p.ledger.InSpace(p.ledger.Unit(addr.ip))
}

// nameTaken says which IPAddress keeps a claim from having one of its name.
func (p *pool) nameTaken(c *claim, addr *address) *refusal {
	if !addr.byHand() {
		return failed("IPAddress %s still belongs to an earlier claim of this name; waiting until it is gone%s", addr.key(), addr.keptBy())
	}
	why := "somebody made it by hand"
	switch {
	case !c.mirrored:
	case !addr.mirrored:
		why += ", for another pool"
	case !addr.ip.IsValid():
		why += ", and what it says is no address"
	case !p.ledger.InSpace(p.ledger.Unit(addr.ip)):
		why += ", with an address that " + p.key.String() + " does not hand out"
	default:
		for _, h := range p.ledger.Overlapping(p.ledger.Unit(addr.ip)) {
			if h.UID != addr.uid && h.Source.Uses() && h.Owner.UID != c.owner.UID {
				why += ", with " + poolutil.FormatRange(h.Range) + ", which " + describeHold(h) + " has"
				break
			}
		}
	}
	return failed("IPAddress %s has the name of this claim: %s; delete it if nobody uses it, or create the claim under another name", addr.key(), why)
}
