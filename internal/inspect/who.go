package inspect

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/allocator"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cooling"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// The states of an address in a pool.
const (
	Used     = "used"
	Granted  = "granted"
	Carved   = "carved"
	Reserved = "reserved"
	Kept     = "kept"
	Resting  = "resting"
	Shared   = "shared"
	Held     = "held"
	Free     = "free"
	// NotGranted: nobody has it, and its pool gives nothing away now.
	NotGranted = "not granted"
)

// Standing is what an address, or a prefix, is in a pool or in a ClusterCIDR.
type Standing struct {
	// Pool is the pool or the ClusterCIDR; empty: none has it.
	Pool   string `json:"pool"`
	State  string `json:"state"`
	Detail string `json:"detail,omitempty"`
	// Holders are those that have it: of an address, more than one is what must never be.
	Holders []Holder `json:"holders,omitempty"`
	// Clusters are those that have the range each for itself, and Do is how to look there.
	Clusters []ClusterUse `json:"clusters,omitempty"`
	Do       string       `json:"do,omitempty"`
}

// Holder is an object that has an address.
type Holder struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Range is what it has, where that is more than the address.
	Range string     `json:"range,omitempty"`
	Since *time.Time `json:"since,omitempty"`
	// Cluster is the one it is for, as namespace/name.
	Cluster string `json:"cluster,omitempty"`
	// ChildPool is the carved pool that it is a block for.
	ChildPool string `json:"childPool,omitempty"`
	// Owners lead from the holder upwards.
	Owners []Owner `json:"owners,omitempty"`
	// Services are those of the Cluster that have the address.
	Services []string `json:"services,omitempty"`

	// Object is the claim or the allocation, nil where there is only a reference to one.
	Object metav1.Object `json:"-"`
}

// Owner is an object that owns a holder, directly or not.
type Owner struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

// Who tells what an address, or a prefix, is in every pool that declares it or in which somebody has some of it, and in
// the pools of other providers.
func Who(o pools.Objects, a netip.Prefix) []Standing {
	var out []Standing
	here := map[pools.Key]bool{}
	all := allocator.SnapshotsOf(&o)
	for _, obj := range o.Pools {
		here[pools.KeyOf(obj)] = true
		v := all.Of(pools.KeyOf(obj))
		if s, ok := standing(o, v, obj, a); ok {
			out = append(out, s)
		}
	}
	out = append(out, withoutPool(o, here, a)...)
	// Who has it comes first, where it is free last.
	slices.SortStableFunc(out, func(x, y Standing) int { return cmp.Compare(rank(x), rank(y)) })
	return out
}

func rank(s Standing) int {
	switch {
	case len(s.Holders) > 0 && s.State != Carved:
		return 0
	case s.State != Free && s.State != NotGranted:
		return 1
	}
	return 2
}

func ownerOf(a *ipamv1.IPAddress) ledger.Owner {
	return ledger.Owner{Kind: "IPAddressClaim", Namespace: a.Namespace, Name: a.Name}
}

// standing is what an address, or a prefix, is in one pool; false: nothing.
func standing(o pools.Objects, v *allocator.Snapshot, obj v1alpha1.Pool, a netip.Prefix) (Standing, bool) {
	facts := v.Holds(a)
	s := Standing{Pool: pools.KeyOf(obj).String()}
	seen := map[string]bool{}
	used, refused := holding(facts)
	for _, h := range used {
		if s.State == "" {
			s.State = Used
			if h.Source == ledger.Grant {
				s.State, s.Detail = Granted, "its IPAddress is about to be written"
			}
		}
		if who := h.Owner.Kind + " " + h.Owner.Namespace + "/" + h.Owner.Name; !seen[who] {
			seen[who] = true
			holder := holderOf(o, h.Owner)
			switch {
			case h.Range.From() != h.Range.To():
				holder.Range = poolutil.FormatRange(h.Range)
			case !a.IsSingleIP():
				holder.Range = h.Range.From().String()
			}
			s.Holders = append(s.Holders, holder)
		}
	}
	slices.SortFunc(s.Holders, func(x, y Holder) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	if s.State != "" {
		if !a.IsSingleIP() {
			s.Detail = "" // what is said below is of one address
		} else if len(refused) > 0 {
			s.Detail = rememberedToo(refused)
		} else if len(s.Holders) > 1 {
			s.Detail = "more than one object has it, which must never happen: run kubectl butler-ipam audit"
		} else if child := s.Holders[0].ChildPool; child != "" {
			s.State, s.Detail = Carved, "it is in a block of "+child
		} else if text := deletedByHand(o, s.Holders[0]); text != "" {
			s.Detail = text
		} else if detail, do, is := ofNodes(s.Holders[0], a); is {
			s.Detail, s.Do = detail, do
		}
		return s, true
	}
	layout := v.Layout()
	if !a.IsSingleIP() {
		s.State, s.Detail = Free, "nobody has any of it; `kubectl butler-ipam free` shows what of it can be given"
		if closed := Closed(obj); closed != "" {
			s.State, s.Detail = NotGranted, "nobody has any of it, and the pool "+closed
		}
		return s, layout != nil && layout.Declared().OverlapsPrefix(a)
	}
	slices.SortFunc(facts, func(x, y *ledger.Fact) int { return -cmp.Compare(x.Source, y.Source) })
	for _, h := range facts {
		s.State, s.Detail = atRest(obj, h, a.Addr())
		return s, true
	}
	if layout == nil {
		return s, false
	}
	if !layout.Declared().Contains(a.Addr()) {
		s.State, s.Detail = Reserved, poolspec.Gateway(layout, a.Addr())
		return s, s.Detail != ""
	}
	if v.HandsOut(a.Addr()) {
		s.State = Free
		if closed := Closed(obj); closed != "" {
			s.State, s.Detail = NotGranted, "nobody has it, and the pool "+closed
		}
	} else {
		s.State, s.Detail = Reserved, poolspec.Withheld(obj.PoolSpec(), layout, a.Addr())
	}
	return s, true
}

// holding are the facts by which addresses are in use. Where an address has an object, another claim may remember that it
// was given it, as after a move that left the claim behind: that one is refused, and has nothing. A claim that has the name
// of the object is no other, though a restore or a user may have taken it off the owners of the object.
func holding(facts []*ledger.Fact) (used, refused []*ledger.Fact) {
	for _, h := range facts {
		ofAnother := slices.ContainsFunc(facts, func(o *ledger.Fact) bool {
			return o.Source == ledger.Object && o.Owner.UID != h.Owner.UID && !isNamesake(o.Owner, h.Owner) && o.Range.Overlaps(h.Range)
		})
		switch {
		case !h.Source.Uses():
		case h.Source == ledger.Record && ofAnother:
			refused = append(refused, h)
		default:
			used = append(used, h)
		}
	}
	return used, refused
}

func isNamesake(a, b ledger.Owner) bool {
	return a.Kind == b.Kind && a.Namespace == b.Namespace && a.Name == b.Name
}

// deletedByHand says that the IPAddress of a claim was deleted, and the claim was not; empty: that is not so.
func deletedByHand(o pools.Objects, h Holder) string {
	claim, is := h.Object.(*ipamv1.IPAddressClaim)
	if !is || claim.DeletionTimestamp != nil {
		return ""
	}
	for i := range o.Addresses {
		if a := &o.Addresses[i]; a.Namespace == claim.Namespace && a.Name == claim.Name {
			return keptByItsClaim(a)
		}
	}
	return ""
}

// rememberedToo says who else remembers an address that somebody has.
func rememberedToo(refused []*ledger.Fact) string {
	var who []string
	for _, h := range refused {
		who = append(who, fmt.Sprintf("%s %s/%s", h.Owner.Kind, h.Owner.Namespace, h.Owner.Name))
	}
	return strings.Join(who, ", ") + " remembers it too, and is refused it; find out which of them uses it, and delete the other"
}

// holderOf finds a claim, an allocation or a lease by its name.
func holderOf(o pools.Objects, owner ledger.Owner) Holder {
	h := Holder{Kind: owner.Kind, Namespace: owner.Namespace, Name: owner.Name}
	if owner.Kind == v1alpha1.IPAllocationKind {
		for i := range o.Allocations {
			a := &o.Allocations[i]
			if a.Namespace == owner.Namespace && a.Name == owner.Name {
				h.Object = a
				if child, is := pools.ChildOf(a); is {
					h.ChildPool = child.String()
				}
				if a.Spec.TenantClusterRef.Name != "" {
					h.Cluster = a.Spec.TenantClusterRef.NamespacedName().String()
				}
				h.Since = &a.CreationTimestamp.Time
				if a.Status.AllocatedAt != nil {
					h.Since = &a.Status.AllocatedAt.Time
				}
			}
		}
		return h
	}
	if owner.Kind == v1alpha1.IPLeaseKind {
		for i := range o.Leases {
			if l := &o.Leases[i]; l.Namespace == owner.Namespace && l.Name == owner.Name {
				h.Object, h.Since = l, &l.CreationTimestamp.Time
			}
		}
		return h
	}
	for i := range o.Claims {
		c := &o.Claims[i]
		if c.Namespace == owner.Namespace && c.Name == owner.Name {
			h.Object, h.Since = c, &c.CreationTimestamp.Time
			if name := claims.ClusterOf(c); name != "" {
				h.Cluster = c.Namespace + "/" + name
			}
		}
	}
	for i := range o.Addresses {
		a := &o.Addresses[i]
		if a.Namespace == owner.Namespace && a.Name == owner.Name {
			h.Since = &a.CreationTimestamp.Time
			if h.Object == nil {
				h.Kind, h.Object = "IPAddress", a // made by hand, or its claim is gone
			}
		}
	}
	return h
}

// atRest says what an address is that nobody has and that is not free.
func atRest(obj v1alpha1.Pool, h *ledger.Fact, a netip.Addr) (state, detail string) {
	who := h.Owner.Name
	if h.Owner.Namespace != "" {
		who = h.Owner.Namespace + "/" + who
	}
	switch h.Source {
	case ledger.Pin:
		return Kept, "preAllocations keeps it for claims named " + who
	case ledger.Cooling:
		released := ""
		if h.Owner.Name != "" {
			released = "; " + who + " released it"
		}
		rests, _ := cooling.Parse(obj.PoolStatus().Cooling) // the manager knows no more than can be read
		for _, r := range rests {
			if r.Range.Contains(a) {
				return Resting, "until " + r.Until.UTC().Format(time.RFC3339) + released
			}
		}
		return Resting, "for a while" + released
	case ledger.Shared:
		return Shared, who + " has it too, or may give it: this pool does not give it meanwhile"
	default:
		for _, e := range obj.PoolStatus().Held {
			if r, err := poolutil.ParseRange(e.First + "-" + e.Last); err == nil && r.Contains(a) {
				return Held, fmt.Sprintf("status.held keeps it back (%s)", e.Reason)
			}
		}
		return Held, "status.held keeps it back"
	}
}
