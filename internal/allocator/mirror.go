package allocator

import (
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
)

// direct returns why a claim that names a mirror by its own name is given nothing new, nil where it may be: the pool
// is no mirror, or what it mirrors was handed over for good. The in-cluster provider does not count such a claim's IPAddress,
// so it would give the address again as soon as it is back.
func (p *pool) direct() *refusal {
	ref, mirror := incluster.MirroredBy(p.key.Kind, p.key.Name)
	if !mirror || p.base == nil || incluster.Given(p.base) {
		return nil
	}
	return notReady("%s mirrors %s %s, whose own provider would not know of this address if it came back: name %s %s in an IPAddressClaim, or "+
		"hand it over for good: %s", p.key, ref.Kind, ref.Name, ref.Kind, ref.Name, incluster.HandOverCommand(p.key.Namespace, ref))
}

// quarantineAfterOther holds new grants back where the in-cluster provider has served the pool since we last did: of its last
// requests one may still be on its way (R10). It puts its finalizer on a claim before it gives it anything; ours comes with a record,
// in one write. The condition Adopting, which the first commit writes before any record, carries the wait over a restart.
func (p *pool) quarantineAfterOther(now time.Time, length time.Duration) {
	if p.adopting {
		return // and counted from its beginning
	}
	for _, c := range p.claims {
		if c.mirrored && c.finalized && c.recordText == "" {
			p.quarantineUntil = now.Add(length)
			return
		}
	}
}
