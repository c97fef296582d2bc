package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/allocator"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// Explanation is why an object has what it has, or nothing.
type Explanation struct {
	// Subject is the object, as a person names it.
	Subject string `json:"subject"`
	// Verdict is the answer in one sentence.
	Verdict string `json:"verdict"`
	// Served: it has what it asked for.
	Served bool `json:"served"`
	// Findings are what stands in the way, the most important first.
	Findings []Finding `json:"findings,omitempty"`
	// Details are what it is made of, or what uses it.
	Details []Detail `json:"details,omitempty"`
	// Notes are what could not be looked at.
	Notes []string `json:"notes,omitempty"`
}

// Detail is a list of what an explanation goes on about.
type Detail struct {
	What string   `json:"what"`
	Is   []string `json:"is"`
}

// Finding is something that keeps an object from being served, and what to do about it.
type Finding struct {
	What string `json:"what"`
	Do   string `json:"do,omitempty"`
}

// Case is what an explanation is made from.
type Case struct {
	// Kind is IPAddressClaim, IPAllocation or IPLease.
	Kind, Namespace, Name string
	// Ref is the pool that the object names.
	Ref ipamv1.IPPoolReference
	// Ours: the object names a kind of pool of ours.
	Ours bool
	// Missing is the pool of another provider that the object names and that does not exist; empty: it does, or is not looked for.
	Missing string
	// Pool is nil where it does not exist.
	Pool v1alpha1.Pool
	// Cluster is the name of the Cluster of the object, empty if it names none, ClusterNamespace its namespace; ClusterObject is nil
	// where it does not exist.
	Cluster, ClusterNamespace string
	ClusterObject             *clusterv1.Cluster
	// ChildGone: the pool does not exist that the object is a block for.
	ChildGone  bool
	Object     metav1.Object
	Conditions []metav1.Condition
	// Has is what the object was given, empty if nothing.
	Has string
	// Address is the IPAddress of a claim; nil where it has none.
	Address *ipamv1.IPAddress
	// Answer is what the allocator would say now; nil where it does not wait for a grant.
	Answer *allocator.Answer
	// Ahead is the number of objects that wait for the same pool.
	Ahead int
	// Free and Largest are how many addresses, or prefixes, of the pool are free, and how many of them in a row.
	Free, Largest int64
	// Resting are the ranges of the pool that rest after a release.
	Resting []v1alpha1.CoolingGroup
	// Instead is a pool of the same name and the other kind; empty where there is none, or the one that is named exists.
	Instead string
}

// Explain says why an object waits.
func Explain(c Case) Explanation {
	e := Explanation{Subject: fmt.Sprintf("%s %s/%s", c.Kind, c.Namespace, c.Name)}
	ready := meta.FindStatusCondition(c.Conditions, v1alpha1.ReadyCondition)
	deleting := c.Object.GetDeletionTimestamp() != nil
	add := func(what, do string) { e.Findings = append(e.Findings, Finding{what, do}) }
	if c.Has != "" && ready != nil && ready.Status == metav1.ConditionTrue && !deleting {
		e.Served, e.Verdict = true, "has "+c.Has
		if c.Ours && c.Pool == nil {
			add(c.poolName()+" does not exist: nothing keeps another pool from giving away what it has", c.remade())
		}
		if c.Address != nil {
			if text := keptByItsClaim(c.Address); text != "" {
				add(text, "delete the claim, or its machine, to release the address; otherwise nothing has to be done")
			}
		}
		if d := meta.FindStatusCondition(c.Conditions, v1alpha1.DemandSatisfiedCondition); d != nil && d.Status == metav1.ConditionFalse {
			add(fmt.Sprintf("Services of its Cluster wait for more (%s): %s", d.Reason, d.Message), "see docs/elastic.md#what-you-see")
		} else if d != nil && d.Status == metav1.ConditionUnknown {
			e.Served = false
			add(fmt.Sprintf("nobody knows whether its Cluster can use it (%s): %s", d.Reason, d.Message), "see docs/elastic.md#what-you-see")
		}
		if a := meta.FindStatusCondition(c.Conditions, v1alpha1.AnnouncedCondition); a != nil && a.Status == metav1.ConditionFalse {
			add(fmt.Sprintf("it is not announced (%s): %s", a.Reason, a.Message), "see docs/leases.md#with-metallb")
		}
		if s := meta.FindStatusCondition(c.Conditions, v1alpha1.ClusterSeenCondition); s != nil && s.Status == metav1.ConditionFalse {
			add(s.Message, "create the Cluster, or delete the allocation if it is not needed: the manager deletes an allocation only after it has seen its Cluster")
		}
		if s := c.mayBeMoved(); s != nil {
			add(s.Message, c.afterMove())
		}
		return e
	}
	e.Verdict = "waits"
	if deleting {
		e.Verdict = "is being deleted"
		c.leaving(add)
	}
	if !c.Ours {
		e.Verdict = "names no pool of this provider"
		if c.Ref.APIGroup == v1alpha1.GroupVersion.Group {
			what, do := parted(allocator.NoSuchKind(pools.Key{Kind: c.Ref.Kind}).Message, "")
			add(what, c.anew(do))
			return e
		}
		c.ofAnother(&e, deleting)
		return e
	}
	c.pauses(add)
	if !deleting {
		c.refusals(add, ready)
	}
	if deleting && len(e.Findings) == 0 && ready != nil && ready.Reason == v1alpha1.DeletingReason {
		add(parted(ready.Message, ""))
	}
	if len(e.Findings) == 0 {
		c.silence(add, deleting)
	}
	if c.Answer != nil && c.Answer.Reason == ipamv1.IPAddressClaimReadyPoolExhaustedReason {
		e.Details = resting(c.Resting)
	}
	return e
}

// mayBeMoved is the condition that says that clusterctl may have moved what an allocation is for, and that is gone; nil: it is
// there, or was not paused.
func (c Case) mayBeMoved() *metav1.Condition {
	of, gone := v1alpha1.ClusterSeenCondition, c.Cluster != "" && c.ClusterObject == nil
	if c.ChildGone {
		of, gone = v1alpha1.PoolSeenCondition, true
	}
	if s := meta.FindStatusCondition(c.Conditions, of); gone && s != nil && s.Status == metav1.ConditionUnknown {
		return s
	}
	return nil
}

// afterMove is what to do for an allocation that clusterctl may have left behind.
func (c Case) afterMove() string { return AfterMove(c.Namespace, c.Cluster, c.ClusterNamespace) }

// AfterMove is what to do for an allocation of a namespace that clusterctl may have left behind, by the Cluster that it is for,
// whose name is empty where it is for a pool: clusterctl moves what is in the namespace of the Cluster.
func AfterMove(namespace, cluster, clusterNamespace string) string {
	if cluster != "" && clusterNamespace != namespace {
		return "if the Cluster uses these addresses in another management cluster, leave the allocation: the move of namespace " + clusterNamespace +
			" does not take it along; else delete the allocation"
	}
	return "if clusterctl moves the namespace, resume the move; else delete the allocation"
}

// keptByItsClaim says why an IPAddress is there still that was deleted while its claim lives; empty: it was not.
func keptByItsClaim(a *ipamv1.IPAddress) string {
	if a.DeletionTimestamp == nil {
		return ""
	}
	return fmt.Sprintf("IPAddress %s/%s was deleted, and stays as long as the claim: the finalizer %s keeps it", a.Namespace, a.Name, v1alpha1.AddressFinalizer)
}

// ofAnother explains a claim of a pool of another provider. Whether that serves it, only its address shows.
func (c Case) ofAnother(e *Explanation, deleting bool) {
	what := fmt.Sprintf("its poolRef names %s %s of %q: another provider serves it", c.Ref.Kind, c.Ref.Name, c.Ref.APIGroup)
	switch {
	case c.Missing != "" && c.Has == "" && !deleting:
		e.Verdict = "waits"
		e.Findings = append(e.Findings, Finding{c.Missing + " does not exist", c.anew(
			"create it, or create this claim again with the right poolRef, which is immutable")})
	case deleting:
		e.Findings = append(e.Findings, Finding{what, "ask that provider"})
	case c.Has != "":
		e.Served, e.Verdict = true, "has "+c.Has
		e.Findings = append(e.Findings, Finding{what, "nothing has to be done"})
	case c.meantGroup() != "":
		e.Findings = append(e.Findings, Finding{
			fmt.Sprintf("its poolRef names %s %s of %q, a group that no provider is known for (did you mean %q?)", c.Ref.Kind, c.Ref.Name, c.Ref.APIGroup, c.meantGroup()),
			c.anew(fmt.Sprintf("create the claim again with apiGroup %s: poolRef is immutable", c.meantGroup())),
		})
	default:
		e.Findings = append(e.Findings, Finding{what + ", if there is one", c.anew(fmt.Sprintf(
			"ask that provider; if a pool of this one is meant, set apiGroup %s and kind %s or %s: poolRef is immutable, so create the claim again",
			v1alpha1.GroupVersion.Group, v1alpha1.NetworkPoolKind, v1alpha1.GlobalNetworkPoolKind))})
	}
}

// meantGroup is the group that a poolRef may mean whose own is a slip away from it, or a part of it; empty: none is known.
func (c Case) meantGroup() string {
	ours := v1alpha1.GroupVersion.Group
	group, _, _ := strings.Cut(c.Ref.APIGroup, "/")
	if strings.Contains(group, ".") && strings.HasSuffix(ours, "."+group) {
		return ours
	}
	known := []string{ours, incluster.GroupVersion.Group, "ipam.metal3.io"}
	if slices.Contains(known, c.Ref.APIGroup) {
		return ""
	}
	return allocator.Nearest(group, known)
}

// leaving says who holds an object that is being deleted.
func (c Case) leaving(add func(what, do string)) {
	ours := []string{v1alpha1.ClaimFinalizer, v1alpha1.IPAllocationFinalizer, v1alpha1.IPLeaseFinalizer}
	for _, f := range c.Object.GetFinalizers() {
		switch {
		case f == v1alpha1.TenantPoolFinalizer || f == v1alpha1.CiliumPoolFinalizer:
			text := "the Cluster has not let go of the block yet"
			if d := meta.FindStatusCondition(c.Conditions, v1alpha1.DrainingCondition); d != nil {
				text += ": " + d.Message
			}
			add(text, "see docs/elastic.md: a Cluster that does not answer keeps its block; the component load-balancers takes the finalizer "+f+" off (docs/install.md#removing-load-balancers)")
		case f == v1alpha1.LeaseShownFinalizer:
			text, do := "its address is shown to the world still: the finalizer "+f+" holds it", "delete what shows the address; the controller that set the finalizer takes it off then: the component service-leases or host-load-balancers, or one of yours (docs/install.md#removing-a-component)"
			if d := meta.FindStatusCondition(c.Conditions, v1alpha1.DrainingCondition); d != nil {
				text, do = "its address is shown to the world still: "+d.Message, "see docs/leases.md#with-metallb"
			}
			add(text, do)
		case !slices.Contains(ours, f):
			add("the finalizer "+f+" holds it", "the controller that set it has to remove it")
		}
	}
	if c.Address == nil || c.Address.DeletionTimestamp == nil {
		return
	}
	for _, f := range c.Address.Finalizers {
		if f != v1alpha1.AddressFinalizer {
			add(fmt.Sprintf("IPAddress %s/%s is kept by finalizer %s", c.Address.Namespace, c.Address.Name, f), "ask its owner to remove it")
		}
	}
}

// pauses says what is paused. What is paused is left alone in silence.
func (c Case) pauses(add func(what, do string)) {
	resource := map[string]string{"IPAddressClaim": "ipaddressclaims.ipam.cluster.x-k8s.io", v1alpha1.IPAllocationKind: "ipallocations", v1alpha1.IPLeaseKind: "ipleases"}[c.Kind]
	if annotations.HasPaused(c.Object) {
		add("it is paused by its annotation "+clusterv1.PausedAnnotation,
			fmt.Sprintf("kubectl annotate %s -n %s %s %s-", resource, c.Namespace, c.Name, clusterv1.PausedAnnotation))
	}
	if c.ClusterObject != nil && annotations.IsPaused(c.ClusterObject, c.ClusterObject) {
		add(fmt.Sprintf("its Cluster %s/%s is paused", c.ClusterObject.Namespace, c.ClusterObject.Name),
			fmt.Sprintf("kubectl patch cluster -n %s %s --type=merge -p '{\"spec\":{\"paused\":false}}', or remove the annotation %s",
				c.ClusterObject.Namespace, c.ClusterObject.Name, clusterv1.PausedAnnotation))
	}
	if c.Pool != nil && annotations.HasPaused(c.Pool) {
		add(c.poolName()+" is paused", grants.Resume(c.Pool))
	}
}

// refusals says what the allocator refuses.
func (c Case) refusals(add func(what, do string), ready *metav1.Condition) {
	switch {
	case c.Pool == nil && c.Has != "":
		add(c.poolName()+" does not exist", c.remade())
		return
	case c.Pool == nil:
		do := "create the pool, or create the object again with the right poolRef, which is immutable"
		if c.Instead != "" {
			do = fmt.Sprintf("there is a %s: if that is meant, create the object again with its kind in poolRef, which is immutable; else create the pool", c.Instead)
		}
		add(c.poolName()+" does not exist", c.anew(do))
		return
	case isUnseen(c.Pool):
		add("no manager has looked at "+c.poolName()+" yet", "is the manager running, and does its flag --namespace include the pool?")
	}
	if annotations.HasPaused(c.Pool) {
		return // that was said
	}
	if closed := Closed(c.Pool); closed != "" && c.Has == "" {
		do := adviceFor(c.Pool, closing(c.Pool).Reason)
		if closing(c.Pool).Reason == v1alpha1.DeletingReason {
			do = c.anew(do)
		}
		add(fmt.Sprintf("%s %s", c.poolName(), closed), do)
		return
	}
	switch {
	case c.Answer != nil && c.Answer.Reason != "" && (ready == nil || ready.Reason != v1alpha1.QuotaExceededReason):
		c.refused(add, c.Answer.Reason, c.Answer.Message)
	case ready != nil && ready.Status == metav1.ConditionFalse && (c.Answer == nil || ready.Reason == v1alpha1.QuotaExceededReason):
		c.refused(add, ready.Reason, ready.Message)
	}
}

// refused takes a refusal apart: what is in the way, and what to do about it, which its message ends with.
func (c Case) refused(add func(what, do string), reason, message string) {
	what, do := parted(message, adviceOn[reason])
	if c.Kind == v1alpha1.IPAllocationKind && reason == ipamv1.IPAddressClaimReadyPoolExhaustedReason && c.Free > 0 {
		what += fmt.Sprintf(" (%d free, at most %d in a row)", c.Free, c.Largest)
	}
	add(what, do)
}

// parted cuts the next step off a message.
func parted(message, otherwise string) (what, do string) {
	if i := strings.LastIndex(message, "; "); i >= 0 {
		return message[:i], message[i+len("; "):]
	}
	return message, otherwise
}

// remade is what to do for an object that has something of a pool that does not exist.
func (c Case) remade() string {
	return "create the pool again, with these addresses in it: each stays whose it is (docs/gitops.md#pruning-a-pool-in-use)"
}

// silence explains an object that nothing is wrong with.
func (c Case) silence(add func(what, do string), deleting bool) {
	switch label := c.Object.GetLabels()[clusterv1.WatchLabel]; {
	case deleting:
		what, do := "no finalizer of another controller and no pause holds it", "it should be gone in a moment; if not, check that a manager is running"
		if c.Kind == v1alpha1.IPLeaseKind {
			what = "the finalizer " + v1alpha1.IPLeaseFinalizer + " holds it, and no other and no pause"
			do += ", with the component leases, service-leases or host-load-balancers (docs/install.md#components)"
		}
		add(what, do)
	case c.Answer != nil && c.Answer.Range.IsValid():
		text := fmt.Sprintf("nothing is in its way: it is about to be given %s", poolutil.ShowRange(c.Answer.Range))
		if c.Ahead > 1 {
			text += fmt.Sprintf("; %d wait for this pool, the oldest is served first", c.Ahead)
		}
		do := "if it stays so, no manager serves it: is one running, and does its --watch-filter select the label " + clusterv1.WatchLabel
		if label == "" {
			do += ", which is not set here"
		} else {
			do += "=" + label
		}
		if _, lease := c.Object.(*v1alpha1.IPLease); lease {
			do += ", and is its component leases on (docs/install.md#components)"
		}
		if layout, _ := poolspec.Of(c.Pool); c.Kind == "IPAddressClaim" && layout != nil && layout.HasZones() {
			do += ", and is its component failure-domains on (docs/install.md#components)"
		}
		add(text, do+"?")
	default:
		add("it has been granted "+cmp.Or(c.Has, "something")+", and its status is about to be written", "if this lasts, check that a manager is running")
	}
}

func (c Case) poolName() string {
	return pools.KeyOfPool(c.Namespace, v1alpha1.PoolReference{Kind: c.Ref.Kind, Name: c.Ref.Name}).String()
}

// Closed says that a pool grants nothing now and why, as its Ready condition does; empty where it grants.
func Closed(pool v1alpha1.Pool) string {
	if annotations.HasPaused(pool) {
		return grants.PausedPool // the condition may not say so yet
	}
	if c := closing(pool); c != nil {
		return fmt.Sprintf("grants nothing now (%s): %s", c.Reason, c.Message)
	}
	return ""
}

func closing(pool v1alpha1.Pool) *metav1.Condition {
	c := meta.FindStatusCondition(pool.GetConditions(), v1alpha1.ReadyCondition)
	if c == nil || c.Status != metav1.ConditionFalse {
		return nil
	}
	return c
}

// adviceOn is what to do about the reasons of a claim or an allocation.
var adviceOn = map[string]string{
	ipamv1.IPAddressClaimReadyPoolExhaustedReason:    "`kubectl butler-ipam free` shows what is free; add addresses to the pool, or delete what is not needed",
	ipamv1.IPAddressClaimReadyPoolNotReadyReason:     "correct what the message says about the pool; this object is then served without further action",
	ipamv1.IPAddressClaimReadyAllocationFailedReason: "correct what the message names: the claim, its Cluster, its namespace or the pool (docs/pools.md#when-a-claim-gets-no-address); this object is then served without further action",
	v1alpha1.WriteFailedReason:                       "change the quota, policy, webhook or right that the message names; the manager tries again by itself",
}

// edited is how the pool is named whose spec a person changes: what the manager mirrors is changed in the mirrored pool.
func edited(pool v1alpha1.Pool) string { return cmp.Or(grants.MirroredPool(pool), "the pool") }

// adviceFor is what to do about the reason of a pool.
func adviceFor(pool v1alpha1.Pool, reason string) string {
	if source := grants.MirroredPool(pool); source != "" {
		switch reason {
		case v1alpha1.ValidationFailedReason:
			return "change " + source + " so that the message is true no more"
		case v1alpha1.PoolExhaustedReason:
			return "add addresses to " + source + ", or exclude fewer"
		case v1alpha1.OverlapReason:
			return "change spec.addresses of " + source + ", or have its claims name the other pool, unless these are different networks"
		case v1alpha1.DeletingReason:
			return "have new machines name another InClusterIPPool: " + source + " is served again when all of its addresses are released"
		}
	}
	return adviceOnPool[reason]
}

// adviceOnPool is what to do about the reasons of a pool.
var adviceOnPool = map[string]string{
	v1alpha1.DeletingReason:         "use another pool: this one is being deleted",
	v1alpha1.ValidationFailedReason: "correct the field of the pool that the message names",
	v1alpha1.CopiedReason:           "make sure that the other management cluster gives no address of this pool, then `kubectl annotate globalnetworkpool NAME " + v1alpha1.ManagementClusterAnnotation + "-`",
	v1alpha1.MovedReason:            "make sure that the other management cluster does not use these addresses, then release them: `kubectl butler-ipam release-held` of the pool",
	v1alpha1.AdoptingReason:         "wait until the time that the message names, or do what it says if it names none",
	v1alpha1.PoolExhaustedReason:    "add addresses to the pool, or reserve fewer",
	v1alpha1.OverlapReason:          "give the pool other addresses or another spec.network, or set spec.allowOverlap, after which both may give the same address",
}
