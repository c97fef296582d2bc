package grants

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// Direct returns why a claim that names a mirror by its own name is given nothing new, nil where it may be: the pool is
// no mirror, or what it mirrors was handed over for good. The in-cluster provider does not count such a claim's
// IPAddress, so it would give the address again as soon as it is back.
func (m *Memory) Direct() *Refusal {
	ref, mirror := incluster.MirroredBy(m.Key.Kind, m.Key.Name)
	if !mirror || m.Base == nil || incluster.Given(m.Base) || incluster.Ended(m.Base) {
		return nil
	}
	return NotReady("%s mirrors %s %s, and the in-cluster provider, if started again, would not know of this address; "+
		"name %s %s in an IPAddressClaim instead, or hand that pool over for good: %s", m.Key, ref.Kind, ref.Name, ref.Kind, ref.Name, incluster.HandOverCommand(m.Key.Namespace, ref))
}

// Indirect returns why a claim that names what a mirror mirrors is given nothing new, nil where it may be: nothing has
// ended, and nothing is about to. Else what has ended would be named for ever.
func (m *Memory) Indirect() *Refusal {
	ref, mirror := incluster.MirroredBy(m.Key.Kind, m.Key.Name)
	if !mirror || m.Base == nil {
		return nil
	}
	is := "is being deleted"
	switch {
	case incluster.Ended(m.Base):
		is = "has ended"
	case m.Ending() == "":
		return nil
	}
	return NotReady("%s %s %s, and %s has its addresses; create this object again with a poolRef that names that, as its template has to",
		ref.Kind, ref.Name, is, m.Key)
}

// Ending says who keeps what a mirror mirrors, where that was handed over and is being deleted.
func (m *Memory) Ending() string {
	if _, mirror := incluster.MirroredBy(m.Key.Kind, m.Key.Name); !mirror {
		return ""
	}
	return text.Message(m.Base.GetAnnotations()[incluster.EndingAnnotation])
}

// NamesMirrored returns the first of the claims, and of what is attached to none, that name what a mirror mirrors; empty:
// none is known.
func (m *Memory) NamesMirrored() string {
	var names []string
	for _, c := range m.Claimants {
		if c.Mirrored {
			names = append(names, c.Kind.Traits().Name+" "+c.Owner.Namespace+"/"+c.Owner.Name)
		}
	}
	if len(names) == 0 {
		for _, a := range m.Attached {
			if a.Mirrored {
				names = append(names, a.Text())
			}
		}
	}
	if len(names) == 0 {
		return ""
	}
	return slices.Min(names)
}

// FarGateway is the gateway that the IPAddresses of a mirror name although it is in no network of the pool; empty where
// there is none.
func (m *Memory) FarGateway(base v1alpha1.Pool) string {
	if _, mirror := incluster.MirroredBy(m.Key.Kind, m.Key.Name); !mirror {
		return ""
	}
	return base.GetAnnotations()[incluster.GatewayAnnotation]
}

// mirrorProblem is why a mirror does not have the spec that its pool has now; empty where it does. What another writer
// writes into its spec is in no pool of the in-cluster provider, so nothing of it is granted.
func (m *Memory) mirrorProblem() string {
	source := m.mirroredPool()
	if source == "" {
		return ""
	}
	if problem := m.Base.GetAnnotations()[incluster.ProblemAnnotation]; problem != "" {
		return text.Message(problem)
	}
	if !incluster.Sealed(m.Base) {
		return fmt.Sprintf("the spec of this pool is not that of %s, which it mirrors, and nothing of it is granted; change %s, the manager writes that spec here", source, source)
	}
	return ""
}

// mirroredPool names the pool of the in-cluster provider that a pool mirrors, and whose spec is to be changed; empty:
// it mirrors none.
func (m *Memory) mirroredPool() string {
	if m.Base == nil {
		return ""
	}
	return MirroredPool(m.Base)
}

// MirroredPool names what a pool mirrors, with its namespace; empty: nothing. What a person changes is that: the manager
// puts back what is changed of a mirror.
func MirroredPool(pool v1alpha1.Pool) string {
	ref, is := incluster.MirroredPool(pool)
	if !is {
		return ""
	}
	return pools.Key{Kind: ref.Kind, Namespace: pool.GetNamespace(), Name: ref.Name}.String()
}

// ThePool is how a message names the pool whose spec is to be changed.
func (m *Memory) ThePool() string { return cmp.Or(m.mirroredPool(), "the pool") }

// pausedBy names the pool of which the annotation has to be removed that pauses a pool; empty: its own. A mirror is
// paused with its pool until that is handed over.
func pausedBy(pool v1alpha1.Pool) string {
	if incluster.Given(pool) {
		return ""
	}
	return MirroredPool(pool)
}

// takenAwayMessage is what a mirror says that was made anew in the middle of a move.
const takenAwayMessage = "the mirror before this one was taken away by clusterctl move, or by force, and what was in use of it elsewhere is not known here; " +
	"end the move, which takes this one away, too; if no move is under way, and no other management cluster uses addresses of this pool, remove the annotation " +
	incluster.MovedFromAnnotation + " from it"

// wasTakenAway reports whether the mirror before this one was taken away here by force: what it withheld, because it had
// moved to another management cluster, is not known.
func (m *Memory) wasTakenAway() bool {
	from := m.Base.GetAnnotations()[incluster.MovedFromAnnotation]
	return from != "" && from == m.ManagementCluster
}

// QuarantineAfterOther holds new grants back where the in-cluster provider has served the pool since we last did: of
// its last requests one may still be on its way (R10). It puts its finalizer on a claim before it gives it anything;
// ours comes with a record, in one write. The condition Adopting, which the first commit writes before any record,
// carries the wait over a restart.
func (m *Memory) QuarantineAfterOther(now time.Time, length time.Duration) {
	since := now
	if c := m.WasAdopting(); c != nil {
		since = m.waitBegan(c, now)
	}
	for _, c := range m.Claimants {
		if c.Mirrored && c.HasFinalizer && c.RecordText == "" {
			m.closeUntil(since.Add(length))
			return
		}
	}
}

// IsStrangers reports whether another provider has written an IPAddress of a claim while this manager served the pool.
// Ours come after a record. What a user made by hand has no owners, and what was restored has those of before; what
// clusterctl moves arrives while the Cluster is paused, and its claim was told so.
func (m *Memory) IsStrangers(c *Claimant, a *Attached) bool {
	return a.Mirrored && !a.ByHand && a.ClaimantUID == c.Owner.UID && c.Pause == "" && c.PauseTold == "" &&
		!m.AloneSince.IsZero() && a.Created > m.atAPI(m.AloneSince).Unix()
}
