package allocator

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unique"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

const (
	// ClaimFinalizer keeps a claim until its address is released. The name is the in-cluster
	// provider's, which consumers and tools know.
	ClaimFinalizer = "ipam.cluster.x-k8s.io/ReleaseAddress"
	// AddressFinalizer protects an IPAddress while its claim lives. The in-cluster provider's name.
	AddressFinalizer = "ipam.cluster.x-k8s.io/ProtectAddress"

	// DeleteForMoveAnnotation is what clusterctl puts on an object before it force-deletes it on the source
	// of a move (cluster-api cmd/clusterctl/api/v1alpha3).
	DeleteForMoveAnnotation = "clusterctl.cluster.x-k8s.io/delete-for-move"

	claimKind = "IPAddressClaim"

	// conditionsField is the name of the conditions in a status.
	conditionsField = "conditions"
)

// PoolKey names a pool. Namespace is empty for a GlobalNetworkPool.
type PoolKey struct{ Kind, Namespace, Name string }

// String returns kind, namespace and name as a person reads them.
func (k PoolKey) String() string {
	if k.Namespace == "" {
		return k.Kind + " " + k.Name
	}
	return k.Kind + " " + k.Namespace + "/" + k.Name
}

// Get reads the pool, of whichever kind it is.
func (k PoolKey) Get(ctx context.Context, from client.Reader) (v1alpha1.Pool, error) {
	var pool v1alpha1.Pool = &v1alpha1.NetworkPool{}
	if k.Kind == v1alpha1.GlobalNetworkPoolKind {
		pool = &v1alpha1.GlobalNetworkPool{}
	}
	return pool, from.Get(ctx, client.ObjectKey{Namespace: k.Namespace, Name: k.Name}, pool)
}

func (k PoolKey) ref() ipamv1.IPPoolReference {
	return ipamv1.IPPoolReference{APIGroup: v1alpha1.GroupVersion.Group, Kind: k.Kind, Name: k.Name}
}

// KeyOf names the pool that an object is.
func KeyOf(p v1alpha1.Pool) PoolKey {
	if _, ok := p.(*v1alpha1.GlobalNetworkPool); ok {
		return PoolKey{Kind: v1alpha1.GlobalNetworkPoolKind, Name: p.GetName()}
	}
	return PoolKey{Kind: v1alpha1.NetworkPoolKind, Namespace: p.GetNamespace(), Name: p.GetName()}
}

// keyOfRef names the pool a reference in a namespace means; false if it is not a pool of ours: group
// and kind both decide. A pool of the in-cluster provider means the one that mirrors it.
func keyOfRef(namespace string, ref ipamv1.IPPoolReference) (PoolKey, bool) {
	kind, name, mirrored := incluster.MirrorOf(ref)
	if !mirrored {
		kind, name = ref.Kind, ref.Name
	}
	switch {
	case !mirrored && ref.APIGroup != v1alpha1.GroupVersion.Group:
	case kind == v1alpha1.NetworkPoolKind:
		return PoolKey{Kind: kind, Namespace: namespace, Name: name}, true
	case kind == v1alpha1.GlobalNetworkPoolKind:
		return PoolKey{Kind: kind, Name: name}, true
	}
	return PoolKey{}, false
}

// keyOf is keyOfRef for a manager that may leave the pools of the in-cluster provider to that.
func (a *Allocator) keyOf(namespace string, ref ipamv1.IPPoolReference) (PoolKey, bool) {
	if !a.InClusterPools && incluster.Is(ref) {
		return PoolKey{}, false
	}
	return keyOfRef(namespace, ref)
}

// KeyOfAllocation names the pool that an IPAllocation means.
func KeyOfAllocation(a *v1alpha1.IPAllocation) PoolKey {
	return KeyOfPool(a.Namespace, a.Spec.PoolRef)
}

// KeyOfPool names the pool that a reference of ours in a namespace means.
func KeyOfPool(namespace string, ref v1alpha1.PoolReference) PoolKey {
	key, _ := keyOfRef(namespace, ipamv1.IPPoolReference{
		APIGroup: v1alpha1.GroupVersion.Group, Kind: cmp.Or(ref.Kind, v1alpha1.NetworkPoolKind), Name: ref.Name,
	})
	return key
}

// maxAnnotation is what is remembered of an annotation that says an address, a prefix or a range: more than the longest of them has.
// Users write annotations of up to 256 KiB.
const maxAnnotation = 128

// annotation returns what is remembered of an annotation, in memory of its own.
func annotation(o client.Object, name string) string {
	text := o.GetAnnotations()[name]
	return strings.Clone(text[:min(len(text), maxAnnotation)])
}

// claim is what the allocator remembers of an IPAddressClaim, or of an IPAllocation, which is a claim of
// a block: enough to decide and to write without reading it again.
type claim struct {
	// block is nil for an IPAddressClaim.
	block   *block
	owner   ledger.Owner
	created time.Time
	rv      string
	// others are its finalizers but ours.
	others []string
	// status is nil for the many whose status says nothing yet, or Ready and nothing else.
	status     *shownStatus
	recordText string
	record     netipx.IPRange
	requested  string
	// cluster is the name of its Cluster, empty if it names none.
	cluster    string
	watchLabel string
	// mirrored: it names the pool of the in-cluster provider that its pool mirrors.
	mirrored bool
	// hasFinalizer: our finalizer is on it.
	hasFinalizer bool
	paused       bool
	deleting     bool
	moved        bool
	// pause is what pauses it, as was found last, and pauseTold what its status says of that; empty: nothing.
	pause, pauseTold string
	// statusDone: the status names the address and is Ready, in both generations of conditions.
	statusDone bool
	// hadAddress: the status names an address, Ready or not.
	hadAddress bool

	// counted: it counts towards the quota of its Cluster.
	counted bool
	// waits: it has a grant, and may not be served now.
	waits bool
	// busy: a job works on the claim.
	busy bool
	// failures counts errors in a row; nothing is tried before retryAt.
	failures int
	retryAt  time.Time
	// lostAddress is its IPAddress that was forced away: the next one is like it, whatever the spec says now.
	lostAddress *address
}

// shownStatus is what the status of a claim says: its conditions, of both generations.
type shownStatus struct {
	conditions []metav1.Condition
	legacy     clusterv1.Conditions
	// refusal is the reason and message of Ready=False, so that nothing is said twice.
	refusal refusal
}

// clusterKey names the Cluster of a claim that has one.
func (c *claim) clusterKey() types.NamespacedName {
	if c.block != nil {
		return types.NamespacedName{Namespace: c.block.clusterNamespace, Name: c.cluster}
	}
	return types.NamespacedName{Namespace: c.owner.Namespace, Name: c.cluster}
}

// shownRefusal is the refusal that the claim's status shows, the zero one if none.
func (c *claim) shownRefusal() refusal {
	if c.status == nil {
		return refusal{}
	}
	return c.status.refusal
}

// inUse reports whether somebody else's finalizer keeps a deleted IPAddressClaim: the consumer that has put it there uses the address
// still. Those of the garbage collector wait for the IPAddress, and say nothing of its use.
func (c *claim) inUse() bool {
	return c.block == nil && slices.ContainsFunc(c.others, func(f string) bool {
		return f != metav1.FinalizerDeleteDependents && f != metav1.FinalizerOrphanDependents
	})
}

// object is an empty object with the kind and the name of a claim.
func (c *claim) object() client.Object {
	meta := metav1.ObjectMeta{Namespace: c.owner.Namespace, Name: c.owner.Name}
	if c.block != nil {
		return &v1alpha1.IPAllocation{ObjectMeta: meta}
	}
	return &ipamv1.IPAddressClaim{ObjectMeta: meta}
}

// finalizer is ours, for the kind of the claim.
func (c *claim) finalizer() string {
	if c.block != nil {
		return v1alpha1.IPAllocationFinalizer
	}
	return ClaimFinalizer
}

// observed returns what is remembered of an IPAddressClaim or an IPAllocation, and the pool it names, if
// that is one of ours.
func observed(o client.Object) (*claim, PoolKey) {
	switch o := o.(type) {
	case *ipamv1.IPAddressClaim:
		key, _ := keyOfRef(o.Namespace, o.Spec.PoolRef)
		return claimOf(o), key
	case *v1alpha1.IPAllocation:
		return claimOfAllocation(o), KeyOfAllocation(o)
	}
	return nil, PoolKey{}
}

// withStatus returns an IPAddressClaim with the conditions of c, to set one on.
func (c *claim) withStatus() *ipamv1.IPAddressClaim {
	out := &ipamv1.IPAddressClaim{}
	if c.status != nil {
		out.Status.Conditions = withoutPause(c.status.conditions)
		out.SetV1Beta1Conditions(slices.Clone(c.status.legacy))
	}
	return out
}

// ClusterOf is the name of the Cluster that a claim is for, empty if it names none: an empty label counts as none:
// CAPV copies a label that may be missing.
func ClusterOf(c *ipamv1.IPAddressClaim) string {
	return cmp.Or(c.Spec.ClusterName, c.Labels[clusterv1.ClusterNameLabel])
}

func claimOf(c *ipamv1.IPAddressClaim) *claim {
	out := &claim{
		owner:      ledger.Owner{Namespace: intern(c.Namespace), Name: c.Name, UID: c.UID},
		created:    c.CreationTimestamp.Time,
		rv:         c.ResourceVersion,
		recordText: annotation(c, v1alpha1.AddressAnnotation),
		requested:  annotation(c, v1alpha1.RequestedAddressAnnotation),
		cluster:    intern(ClusterOf(c)),
		watchLabel: intern(c.Labels[clusterv1.WatchLabel]),
		deleting:   c.DeletionTimestamp != nil,
		mirrored:   incluster.Is(c.Spec.PoolRef),
		pauseTold:  pauseIn(c.Status.Conditions),
	}
	out.hasFinalizer, out.others = split(c.Finalizers, ClaimFinalizer)
	_, out.paused = c.Annotations[clusterv1.PausedAnnotation]
	out.moved = moved(c)
	out.record, _ = parseRecord(out.recordText)
	out.hadAddress = c.Status.AddressRef.Name != ""
	ready := ptr.Deref(meta.FindStatusCondition(c.Status.Conditions, ipamv1.IPAddressClaimReadyCondition), metav1.Condition{})
	out.statusDone = c.Status.AddressRef.Name == c.Name && ready.Status == metav1.ConditionTrue && legacyReady(c)
	legacy := c.GetV1Beta1Conditions()
	if n := len(c.Status.Conditions) + len(legacy); n > 2 || (n > 0 && !out.statusDone) {
		out.status = &shownStatus{conditions: c.Status.Conditions, legacy: legacy}
	}
	if ready.Status == metav1.ConditionFalse {
		out.status.refusal = refusal{ready.Reason, ready.Message}
	}
	return out
}

// moved reports whether clusterctl is deleting an object that it has moved to another cluster. The annotation alone says nothing: clusterctl
// writes it before the delete and may end between the two, and whoever may write the object may write it.
func moved(o client.Object) bool {
	_, marked := o.GetAnnotations()[DeleteForMoveAnnotation]
	return marked && o.GetDeletionTimestamp() != nil
}

func legacyReady(c *ipamv1.IPAddressClaim) bool {
	for _, cond := range c.GetV1Beta1Conditions() {
		if cond.Type == clusterv1.ReadyV1Beta1Condition {
			return cond.Status == "True"
		}
	}
	return false
}

// hasRecord reports whether the claim has a record of a manager's: it is written together with our
// finalizer. Users can write the annotation too.
func (c *claim) hasRecord() bool { return c.record.IsValid() && c.hasFinalizer }

// intern returns an equal string that is kept once: thousands of claims have few namespaces.
func intern(s string) string { return unique.Make(s).Value() }

// split tells whether our finalizer is among those of an object, and returns the rest.
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

// address is what the allocator remembers of an IPAddress. Once observed it never changes: jobs read it
// without the pool's lock.
type address struct {
	namespace, name string
	uid             types.UID
	rv              string
	claimUID        types.UID
	// ip is invalid where the object's address cannot be parsed: one bad object concerns only
	// itself.
	ip      netip.Addr
	gateway string
	// others are its finalizers but ours.
	others []string
	// owners are those that are neither claims nor pools.
	owners []metav1.OwnerReference
	prefix int32
	// mirrored: it names the pool of the in-cluster provider that its pool mirrors.
	mirrored bool
	// protected: our finalizer is on it.
	protected bool
	deleting  bool
	moved     bool
	// poolUID is the UID of the pool among its owners.
	poolUID types.UID
}

// orphan is an IPAddress without a claim that we know.
type orphan struct {
	*address
	// since is when a live read first showed that it has none.
	since time.Time
	// inTheWay: a claim of another pool needs its name.
	inTheWay bool
	// provenOrphan: it was proven that nobody has it, and that it is to go.
	provenOrphan bool
	busy         bool
	retryAt      time.Time
}

func addressOf(a *ipamv1.IPAddress) *address {
	out := &address{
		namespace: intern(a.Namespace),
		name:      a.Name,
		uid:       a.UID,
		rv:        a.ResourceVersion,
		deleting:  a.DeletionTimestamp != nil,
		prefix:    ptr.Deref(a.Spec.Prefix, 0),
		gateway:   intern(a.Spec.Gateway),
		mirrored:  incluster.Is(a.Spec.PoolRef),
	}
	out.protected, out.others = split(a.Finalizers, AddressFinalizer)
	out.moved = moved(a)
	for _, ref := range a.OwnerReferences {
		switch ref.Kind {
		case claimKind:
			if ref.Name == a.Spec.ClaimRef.Name {
				out.claimUID = ref.UID
			}
		case a.Spec.PoolRef.Kind:
			out.poolUID = types.UID(intern(string(ref.UID)))
		default:
			out.owners = append(out.owners, ref)
		}
	}
	if ip, err := netip.ParseAddr(a.Spec.Address); err == nil && ip.Zone() == "" {
		out.ip = ip.Unmap()
	}
	return out
}

// byHand tells whether an IPAddress is of nobody's making that we know: it names neither a claim nor a pool
// as its owner. The garbage collector takes the reference to a claim that is gone off an IPAddress, and leaves
// the IPAddress because its pool owns it too.
func (a *address) byHand() bool { return a.claimUID == "" && a.poolUID == "" }

func (a *address) key() types.NamespacedName {
	return types.NamespacedName{Namespace: a.namespace, Name: a.name}
}

func (a *address) owner() ledger.Owner {
	return ledger.Owner{Namespace: a.namespace, Name: a.name, UID: a.claimUID}
}

// Newer tells whether resource version a is newer than b; an unreadable one counts as newer.
func Newer(a, b string) bool {
	if b == "" {
		return true
	}
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil || c > 0
}
