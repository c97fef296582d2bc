package allocator

import (
	"context"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// direct returns why a claim that names a mirror by its own name is given nothing new, nil where it may be: the pool is
// no mirror, or what it mirrors was handed over for good. The in-cluster provider does not count such a claim's
// IPAddress, so it would give the address again as soon as it is back.
func (p *memory) direct() *refusal {
	ref, mirror := incluster.MirroredBy(p.key.Kind, p.key.Name)
	if !mirror || p.base == nil || incluster.Given(p.base) {
		return nil
	}
	return notReady("%s mirrors %s %s, whose own provider would not know of this address if it came back: name %s %s in an IPAddressClaim, or "+
		"hand it over for good: %s", p.key, ref.Kind, ref.Name, ref.Kind, ref.Name, incluster.HandOverCommand(p.key.Namespace, ref))
}

// missing tells a claim that its pool does not exist. Of a mirror, which nobody is to create, it says what keeps it
// from being there.
func (a *Allocator) missing(ctx context.Context, key pools.Key) *refusal {
	if a.Unmirrored != nil {
		if why := a.Unmirrored(ctx, key); why != "" {
			return notReady("%s does not exist: %s", key, why)
		}
	}
	return notReady("%s does not exist; create it, or create this object again with the right poolRef", key)
}

// farGateway is the gateway that the IPAddresses of a mirror name although it is in no network of the pool; empty where
// there is none.
func (p *memory) farGateway(base v1alpha1.Pool) string {
	if _, mirror := incluster.MirroredBy(p.key.Kind, p.key.Name); !mirror {
		return ""
	}
	return base.GetAnnotations()[incluster.GatewayAnnotation]
}

// mirrorProblem is why a mirror does not have the spec that its pool has now; empty where it does.
func (p *memory) mirrorProblem() string {
	if _, mirror := incluster.MirroredBy(p.key.Kind, p.key.Name); !mirror {
		return ""
	}
	return text.Message(p.base.GetAnnotations()[incluster.ProblemAnnotation])
}

// quarantineAfterOther holds new grants back where the in-cluster provider has served the pool since we last did: of
// its last requests one may still be on its way (R10). It puts its finalizer on a claim before it gives it anything;
// ours comes with a record, in one write. The condition Adopting, which the first commit writes before any record,
// carries the wait over a restart.
func (p *memory) quarantineAfterOther(now time.Time, length time.Duration) {
	since := now
	if c := p.wasAdopting(); c != nil {
		since = c.LastTransitionTime.Time
	}
	for _, c := range p.claimants {
		if c.mirrored && c.hasFinalizer && c.recordText == "" {
			p.quarantineUntil = since.Add(length)
			return
		}
	}
}
