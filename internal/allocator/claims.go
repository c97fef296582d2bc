package allocator

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// claimKind is the kind of IPAddressClaims.
const claimKind = "IPAddressClaim"

// claims is the kind of IPAddressClaims: each asks for one address, or one prefix, and gets an IPAddress of its name.
type claims struct{}

var claimTraits = &traits{
	name: claimKind, finalizer: v1alpha1.ClaimFinalizer, attaches: addresses{}, counted: true, pinned: true, needsCluster: true,
}

// claimFacts are what is remembered of an IPAddressClaim alone.
type claimFacts struct {
	requested string
	// legacy are the conditions of the older generation, where the status says anything but Ready.
	legacy clusterv1.Conditions
}

func (claims) traits() *traits { return claimTraits }

func (claims) object() Object { return &ipamv1.IPAddressClaim{} }

func (claims) poolOf(o Object) (pools.Key, bool) {
	c, is := o.(*ipamv1.IPAddressClaim)
	if !is {
		return pools.Key{}, false
	}
	key, _ := pools.KeyOfRef(c.Namespace, c.Spec.PoolRef)
	return key, true
}

func (claims) of(o Object) *claimant { return claimOf(o.(*ipamv1.IPAddressClaim)) }

// ClusterOf is the name of the Cluster that a claim is for, empty if it names none: an empty label counts as none:
// CAPV copies a label that may be missing.
func ClusterOf(c *ipamv1.IPAddressClaim) string {
	return cmp.Or(c.Spec.ClusterName, c.Labels[clusterv1.ClusterNameLabel])
}

func claimOf(c *ipamv1.IPAddressClaim) *claimant {
	own := &claimFacts{requested: annotation(c, v1alpha1.RequestedAddressAnnotation)}
	out := claimantOf(claims{}, c, own)
	out.cluster.Name = intern(ClusterOf(c))
	if out.cluster.Name != "" {
		out.cluster.Namespace = out.owner.Namespace
	}
	out.mirrored = incluster.Is(c.Spec.PoolRef)
	out.pauseTold = pauseIn(c.Status.Conditions)
	_, out.paused = c.Annotations[clusterv1.PausedAnnotation]
	// Those of the garbage collector wait for the IPAddress, and say nothing of its use.
	out.inUse = slices.ContainsFunc(out.others, func(f string) bool {
		return f != metav1.FinalizerDeleteDependents && f != metav1.FinalizerOrphanDependents
	})
	out.record, _ = parseRecord(out.recordText)
	out.hadAddress = c.Status.AddressRef.Name != ""
	ready := ptr.Deref(meta.FindStatusCondition(c.Status.Conditions, ipamv1.IPAddressClaimReadyCondition), metav1.Condition{})
	out.statusDone = c.Status.AddressRef.Name == c.Name && ready.Status == metav1.ConditionTrue && legacyReady(c)
	legacy := c.GetV1Beta1Conditions()
	if n := len(c.Status.Conditions) + len(legacy); n > 2 || (n > 0 && !out.statusDone) {
		out.status, own.legacy = &shownStatus{conditions: c.Status.Conditions}, legacy
	}
	if ready.Status == metav1.ConditionFalse {
		out.status.refusal = refusal{reason: ready.Reason, message: ready.Message}
	}
	return out
}

func legacyReady(c *ipamv1.IPAddressClaim) bool {
	for _, cond := range c.GetV1Beta1Conditions() {
		if cond.Type == clusterv1.ReadyV1Beta1Condition {
			return cond.Status == "True"
		}
	}
	return false
}

func ownOf(c *claimant) *claimFacts { return c.own.(*claimFacts) }

func (claims) keep(*claimant, *claimant) {}

// holds returns one unit, whatever a user wrote there.
func (claims) holds(p *memory, c *claimant) (record, shown netipx.IPRange) {
	if c.record.IsValid() {
		record = p.ledger.Unit(c.record.From())
	}
	return record, netipx.IPRange{}
}

func (k claims) need(p *memory, c *claimant) need {
	a := p.attachedTo(c)
	switch {
	case k.confirmed(p, c):
		if k.complete(p, c, a) {
			return needNothing
		}
		return needWrite
	case p.grants[c.owner.UID] != nil, a != nil && p.adoptable(c, a):
		return needWrite
	}
	return needGrant
}

func (claims) confirmed(p *memory, c *claimant) bool {
	a := p.attachedTo(c)
	return a != nil && a.claimantUID == c.owner.UID
}

// complete reports whether nothing is left to write for a claim and its IPAddress.
func (claims) complete(p *memory, c *claimant, a *attached) bool {
	poolKnown := p.base != nil && p.base.GetUID() != ""
	recorded := p.layout == nil || !a.ip.IsValid() || c.recordText == p.recordOf(p.ledger.Unit(a.ip))
	return c.statusDone && c.pauseShown() && c.hasFinalizer && recorded &&
		(a.deleting || a.protected) && (!poolKnown || addressFactsOf(a).poolUID == poolOwner(c, p.base).UID)
}

func (claims) releasable(p *memory, c *claimant) netipx.IPRange {
	switch a := p.attachedTo(c); {
	case a != nil && a.claimantUID == c.owner.UID:
		return p.unitOf(a)
	case c.record.IsValid() && (c.hadAddress || c.lost != nil):
		return p.ledger.Unit(c.record.From())
	}
	return netipx.IPRange{}
}

// designated finds what is meant for a claim: what it remembers, the address pinned to its name, the one it asks for,
// or the one that rests for its name.
func (claims) designated(p *memory, c *claimant) (netipx.IPRange, *refusal) {
	if other := p.attachedTo(c); other != nil && other.claimantUID != c.owner.UID {
		return netipx.IPRange{}, nameTaken(p, c, other)
	}
	if c.record.IsValid() {
		return p.recorded(c, p.ledger.Unit(c.record.From()))
	}
	if pin, ok := p.layout.Pin(c.owner.Name); ok {
		return thisAddress(p, c, pin, "preAllocated")
	}
	if requested := ownOf(c).requested; requested != "" {
		ip, err := netip.ParseAddr(requested)
		if err != nil || ip.Zone() != "" {
			return netipx.IPRange{}, failed("the requested address %q is not an IP address", requested)
		}
		if !p.ledger.InSpace(p.ledger.Unit(ip.Unmap())) {
			return netipx.IPRange{}, failed("the requested address %s is not among those %s hands out (%s); ask for another, or remove the annotation %s",
				ip, p.key, poolspec.Withheld(p.base.PoolSpec(), p.layout, ip.Unmap()), v1alpha1.RequestedAddressAnnotation)
		}
		return thisAddress(p, c, ip.Unmap(), "requested")
	}
	return p.coolingFor(c.owner, func(r netipx.IPRange) bool { return p.ledger.Unit(r.From()) == r }), nil
}

func (claims) size(*memory, *claimant) int64 { return 0 }

// noRoom says no numbers that change all the time: thousands may wait, and each would be told anew whenever one address
// comes to rest.
func (claims) noRoom(p *memory, _ *claimant) *refusal {
	text := fmt.Sprintf("%s has no free address: its spec leaves none; add addresses, or reserve fewer", p.key)
	if p.ledger.Counts().Total > 0 {
		text = fmt.Sprintf("%s has no free address: all are allocated, reserved or resting; add addresses to the pool or delete claims", p.key)
	}
	return &refusal{reason: ipamv1.IPAddressClaimReadyPoolExhaustedReason, message: text}
}

func (claims) use(c *claimant) (Use, time.Time) { return UseClaim, c.created }

// nameTaken says which IPAddress keeps a claim from having one of its name.
func nameTaken(p *memory, c *claimant, a *attached) *refusal {
	if !a.byHand {
		return failed("IPAddress %s still belongs to an earlier claim of this name; waiting until it is gone%s", a.key(), a.keptBy())
	}
	why := "somebody made it by hand"
	switch {
	case !c.mirrored:
	case !a.mirrored:
		why += ", for another pool"
	case !a.ip.IsValid():
		why += ", and what it says is no address"
	case !p.ledger.InSpace(p.ledger.Unit(a.ip)):
		why += ", with an address that " + p.key.String() + " does not hand out"
	default:
		for _, h := range p.ledger.Overlapping(p.ledger.Unit(a.ip)) {
			if h.UID != a.uid && h.Source.Uses() && h.Owner.UID != c.owner.UID {
				why += ", with " + poolutil.FormatRange(h.Range) + ", which " + p.describeHold(h) + " has"
				break
			}
		}
	}
	return failed("IPAddress %s has the name of this claim: %s; delete it if nobody uses it, or create the claim under another name", a.key(), why)
}

func thisAddress(p *memory, c *claimant, ip netip.Addr, what string) (netipx.IPRange, *refusal) {
	r := p.ledger.Unit(ip)
	if h := p.blocker(r, c.owner); h != nil {
		return netipx.IPRange{}, failed("the %s address %s is held by %s", what, ip, p.describeHold(h))
	}
	return r, nil
}
