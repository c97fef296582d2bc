package allocator

import (
	"net/netip"
	"strings"
	"time"
	"unique"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// conditionsField is the name of the conditions in a status.
const conditionsField = "conditions"

// keyOf is keyOfRef for a manager that may leave the pools of the in-cluster provider to that.
func (a *Allocator) keyOf(namespace string, ref ipamv1.IPPoolReference) (pools.Key, bool) {
	if !a.InClusterPools && incluster.Is(ref) {
		return pools.Key{}, false
	}
	return pools.KeyOfRef(namespace, ref)
}

// maxAnnotation is what is remembered of an annotation that says an address, a prefix or a range: more than the longest
// of them has. Users write annotations of up to 256 KiB.
const maxAnnotation = 128

// annotation returns what is remembered of an annotation, in memory of its own.
func annotation(o Object, name string) string {
	text := o.GetAnnotations()[name]
	return strings.Clone(text[:min(len(text), maxAnnotation)])
}

// claimant is what the allocator remembers of an object that asks a pool for addresses: enough to decide and to write
// without reading it again.
type claimant struct {
	kind    kind
	owner   ledger.Owner
	created time.Time
	rv      string
	// others are its finalizers but ours.
	others []string
	// status is nil for the many whose status says nothing yet, or Ready and nothing else.
	status     *shownStatus
	recordText string
	record     netipx.IPRange
	// shown is the range that its status says it has, for a kind whose status says that.
	shown netipx.IPRange
	// cluster names its Cluster, if it has one.
	cluster    types.NamespacedName
	watchLabel string
	// mirrored: it names the pool of the in-cluster provider that its pool mirrors.
	mirrored bool
	// hasFinalizer: our finalizer is on it.
	hasFinalizer bool
	paused       bool
	deleting     bool
	moved        bool
	// inUse: the finalizer of a consumer is on it, which uses the addresses as long.
	inUse bool
	// pause is what pauses it, as was found last, and pauseTold what its status says of that; empty: nothing.
	pause, pauseTold string
	// statusDone: the status says all that there is to say of what it has.
	statusDone bool
	// hadAddress: the status says that it has something, Ready or not.
	hadAddress bool
	// own is what only its kind remembers.
	own any

	// told is what its status says of its Cluster, found what was found last.
	told, found sighting
	// orphanSince is when a live read first showed that its Cluster does not exist.
	orphanSince time.Time
	// counted: it counts towards the quota of its Cluster.
	counted bool
	// waits: it has a grant, and may not be served now.
	waits bool
	// busy: a job works on the claimant.
	busy bool
	// failures counts errors in a row; nothing is tried before retryAt.
	failures int
	retryAt  time.Time
	// lost is what was attached to it and was forced away: the next one is like it, whatever the spec says now.
	lost *attached
}

// shownStatus is what the status of a claimant says: its conditions.
type shownStatus struct {
	conditions []metav1.Condition
	// refusal is the reason and message of Ready=False, so that nothing is said twice.
	refusal refusal
}

// claimantOf returns what is remembered of an object of any kind.
func claimantOf(k kind, o Object, own any) *claimant {
	out := &claimant{
		kind:       k,
		owner:      ledger.Owner{Kind: k.traits().name, Namespace: intern(o.GetNamespace()), Name: o.GetName(), UID: o.GetUID()},
		created:    o.GetCreationTimestamp().Time,
		rv:         o.GetResourceVersion(),
		recordText: annotation(o, v1alpha1.AddressAnnotation),
		watchLabel: intern(o.GetLabels()[clusterv1.WatchLabel]),
		deleting:   o.GetDeletionTimestamp() != nil,
		moved:      moved(o),
		own:        own,
	}
	out.hasFinalizer, out.others = split(o.GetFinalizers(), k.traits().finalizer)
	return out
}

// shownRefusal is the refusal that the claimant's status shows, the zero one if none.
func (c *claimant) shownRefusal() refusal {
	if c.status == nil {
		return refusal{}
	}
	return c.status.refusal
}

// object is an empty object with the kind and the name of a claimant.
func (c *claimant) object() Object {
	return named(c.kind.object(), c.owner.Namespace, c.owner.Name)
}

// subject is the object of a claimant, for events.
func (c *claimant) subject() Object {
	out := c.object()
	out.SetUID(c.owner.UID)
	out.SetResourceVersion(c.rv)
	return out
}

func named(o Object, namespace, name string) Object {
	o.SetNamespace(namespace)
	o.SetName(name)
	return o
}

// hasRecord reports whether the claimant has a record of a manager's: it is written together with our
// finalizer. Users can write the annotation too.
func (c *claimant) hasRecord() bool { return c.record.IsValid() && c.hasFinalizer }

// moved reports whether clusterctl is deleting an object that it has moved to another cluster. The annotation alone
// says nothing: clusterctl writes it before the delete and may end between the two, and whoever may write the object
// may write it.
func moved(o Object) bool {
	_, marked := o.GetAnnotations()[v1alpha1.DeleteForMoveAnnotation]
	return marked && o.GetDeletionTimestamp() != nil
}

// intern returns an equal string that is kept once: thousands of claims have few namespaces.
func intern(s string) string { return unique.Make(s).Value() }

// split reports whether our finalizer is among those of an object, and returns the rest.
func split(finalizers []string, ours string) (has bool, others []string) {
	for _, f := range finalizers {
		if f == ours {
			has = true
		} else {
			others = append(others, f)
		}
	}
	return has, others
}

// parseRecord reads an address or a prefix.
func parseRecord(s string) (netipx.IPRange, bool) {
	if s == "" || strings.Contains(s, "-") {
		return netipx.IPRange{}, false
	}
	r, err := poolutil.ParseRange(s)
	return r, err == nil
}

// attached is what the allocator remembers of an object that shows what a claimant was granted, and has its name. Once
// observed it never changes: jobs read it without the pool's lock.
type attached struct {
	// kind is that of the claimant.
	kind            kind
	namespace, name string
	uid             types.UID
	rv              string
	claimantUID     types.UID
	// ip is its address, or the first of its prefix: invalid where the object's cannot be parsed. One bad object
	// concerns only itself.
	ip netip.Addr
	// others are its finalizers but ours.
	others []string
	// protected: our finalizer is on it.
	protected bool
	deleting  bool
	moved     bool
	// byHand: nobody that we know has made it. It names neither a claimant nor a pool as its owner.
	byHand bool
	// mirrored: it names the pool of the in-cluster provider that its pool mirrors.
	mirrored bool
	// own is what only its kind remembers.
	own any
}

// orphan is an attached object without a claimant that we know.
type orphan struct {
	*attached
	// since is when a live read first showed that it has none.
	since time.Time
	// inTheWay: a claimant of another pool needs its name.
	inTheWay bool
	// provenOrphan: it was proven that nobody has it, and that it is to go.
	provenOrphan bool
	busy         bool
	retryAt      time.Time
}

// attachedOf returns what is remembered of an object that is attached to claimants of a kind.
func attachedOf(k kind, o Object, own any) *attached {
	out := &attached{
		kind:      k,
		namespace: intern(o.GetNamespace()),
		name:      o.GetName(),
		uid:       o.GetUID(),
		rv:        o.GetResourceVersion(),
		deleting:  o.GetDeletionTimestamp() != nil,
		moved:     moved(o),
		own:       own,
	}
	out.protected, out.others = split(o.GetFinalizers(), k.traits().attaches.finalizer())
	return out
}

func (a *attached) key() types.NamespacedName {
	return types.NamespacedName{Namespace: a.namespace, Name: a.name}
}

func (a *attached) owner() ledger.Owner {
	return ledger.Owner{Kind: a.kind.traits().name, Namespace: a.namespace, Name: a.name, UID: a.claimantUID}
}

// object is an empty object with the kind and the name of an attached one.
func (a *attached) object() Object {
	return named(a.kind.traits().attaches.object(), a.namespace, a.name)
}

// text names an attached object for a person.
func (a *attached) text() string { return a.kind.traits().attaches.kind() + " " + a.key().String() }

// subject is the claimant of an attached object, or the object where it has none.
func (a *attached) subject() Object {
	if a.claimantUID == "" {
		out := a.object()
		out.SetUID(a.uid)
		return out
	}
	out := named(a.kind.object(), a.namespace, a.name)
	out.SetUID(a.claimantUID)
	return out
}

// Newer reports whether resource version a is newer than b; an unreadable one counts as newer.
func Newer(a, b string) bool {
	if b == "" {
		return true
	}
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil || c > 0
}
