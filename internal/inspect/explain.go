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
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// Explanation gives the reasons why an object is served or waits.
type Explanation struct {
	// Subject names the object as users write it.
	Subject string `json:"subject"`
	// Summary is the answer in one sentence.
	Summary string `json:"verdict"`
	// Served reports whether the object has what it asks for.
	Served bool `json:"served"`
	// Findings lists the obstacles, the most important one first.
	Findings []Finding `json:"findings,omitempty"`
	// Details lists the parts of the object, or its users.
	Details []Detail `json:"details,omitempty"`
	// Notes name the objects that could not be read.
	Notes []string `json:"notes,omitempty"`
}

// Detail is a labelled list of an explanation.
type Detail struct {
	Label string   `json:"what"`
	Lines []string `json:"is"`
}

// Finding is an obstacle that keeps an object from being served, and the advice how to remove it.
type Finding struct {
	Message string `json:"what"`
	Advice  string `json:"do,omitempty"`
}

// ClaimantInfo is the input of ExplainClaimant: a claimant and the objects around it.
type ClaimantInfo struct {
	// Kind is IPAddressClaim, IPAllocation or IPLease.
	Kind, Namespace, Name string
	// PoolRef is the reference to the pool that the object names.
	PoolRef ipamv1.IPPoolReference
	// NamesOwnPool reports whether the object names a kind of pool of ours.
	NamesOwnPool bool
	// MissingForeignPool is the pool of another provider that the object names and that does not exist. It is empty
	// where that pool exists or was not read.
	MissingForeignPool string
	// Pool is nil where it does not exist.
	Pool v1alpha1.Pool
	// ClusterName and ClusterNamespace name the Cluster of the object; ClusterName is empty where it names none.
	// ClusterObject is nil where the Cluster does not exist.
	ClusterName, ClusterNamespace string
	ClusterObject                 *clusterv1.Cluster
	// ChildPoolGone reports whether the object is a block for a carved pool that does not exist.
	ChildPoolGone bool
	Object        metav1.Object
	Conditions    []metav1.Condition
	// GrantedAddress describes the address or block that the object has; empty where it has none.
	GrantedAddress string
	// Address is the IPAddress of a claim; nil where it has none.
	Address *ipamv1.IPAddress
	// PlannedGrant is the allocator's current decision on the object; nil where the object does not wait for a grant.
	PlannedGrant *allocator.PlannedGrant
	// WaitingCount is the number of objects that wait for the same pool.
	WaitingCount int
	// FreeCount counts the free addresses, or prefixes, of the pool; LargestFree counts those of the longest contiguous
	// run.
	FreeCount, LargestFree int64
	// Cooling lists the ranges of the pool that rest after a release.
	Cooling []v1alpha1.CoolingGroup
	// SameNamePool is the pool of the same name and the other kind. It is empty where there is none, or the named pool
	// exists.
	SameNamePool string
}

// ExplainClaimant explains why a claimant waits, or what it has.
func ExplainClaimant(c ClaimantInfo) Explanation {
	e := Explanation{Subject: fmt.Sprintf("%s %s/%s", c.Kind, c.Namespace, c.Name)}
	ready := meta.FindStatusCondition(c.Conditions, v1alpha1.ReadyCondition)
	deleting := c.Object.GetDeletionTimestamp() != nil
	add := func(finding, do string) { e.Findings = append(e.Findings, Finding{finding, do}) }
	if c.GrantedAddress != "" && ready != nil && ready.Status == metav1.ConditionTrue && !deleting {
		e.Served, e.Summary = true, "has "+c.GrantedAddress
		if c.NamesOwnPool && c.Pool == nil {
			add(c.poolName()+" does not exist: nothing keeps another pool from granting its addresses", c.adviseRecreatePool())
		}
		if c.Address != nil {
			if text := describeKeptAddress(c.Address); text != "" {
				add(text, "delete the claim, or its machine, to release the address; otherwise nothing has to be done")
			}
		}
		if d := meta.FindStatusCondition(c.Conditions, v1alpha1.DemandSatisfiedCondition); d != nil && d.Status == metav1.ConditionFalse {
			add(fmt.Sprintf("Services of its Cluster wait for more (%s): %s", d.Reason, d.Message), "see docs/elastic.md#what-you-see")
		} else if d != nil && d.Status == metav1.ConditionUnknown {
			e.Served = false
			add(fmt.Sprintf("it is unknown whether its Cluster can use it (%s): %s", d.Reason, d.Message), "see docs/elastic.md#what-you-see")
		}
		if a := meta.FindStatusCondition(c.Conditions, v1alpha1.AnnouncedCondition); a != nil && a.Status == metav1.ConditionFalse {
			add(fmt.Sprintf("it is not announced (%s): %s", a.Reason, a.Message), "see docs/leases.md#with-metallb")
		}
		if s := meta.FindStatusCondition(c.Conditions, v1alpha1.ClusterSeenCondition); s != nil && s.Status == metav1.ConditionFalse {
			add(s.Message, "create the Cluster, or delete the allocation if it is not needed: the manager deletes an allocation only after it has seen its Cluster")
		}
		if s := c.movedCondition(); s != nil {
			add(s.Message, c.adviseAfterMove())
		}
		return e
	}
	e.Summary = "waits"
	if deleting {
		e.Summary = "is being deleted"
		c.explainDeletion(add)
	}
	if !c.NamesOwnPool {
		e.Summary = "names no pool of this provider"
		if c.PoolRef.APIGroup == v1alpha1.GroupVersion.Group {
			finding, do := splitAdvice(allocator.UnknownPoolKindRefusal(pools.Key{Kind: c.PoolRef.Kind}).Message, "")
			add(finding, c.adviseRecreateObject(do))
			return e
		}
		c.explainForeignClaim(&e, deleting)
		return e
	}
	c.explainPauses(add)
	if !deleting {
		c.explainRefusals(add, ready)
	}
	if deleting && len(e.Findings) == 0 && ready != nil && ready.Reason == v1alpha1.DeletingReason {
		add(splitAdvice(ready.Message, ""))
	}
	if len(e.Findings) == 0 {
		c.explainWithoutFinding(add, deleting)
	}
	if c.PlannedGrant != nil && c.PlannedGrant.Reason == ipamv1.IPAddressClaimReadyPoolExhaustedReason {
		e.Details = coolingDetails(c.Cooling)
	}
	return e
}

// movedCondition returns the condition which records that the Cluster or child pool of an allocation was paused when it
// was last seen, so that clusterctl may have moved it. It returns nil where that Cluster or pool exists, or was not
// paused.
func (c ClaimantInfo) movedCondition() *metav1.Condition {
	of, gone := v1alpha1.ClusterSeenCondition, c.ClusterName != "" && c.ClusterObject == nil
	if c.ChildPoolGone {
		of, gone = v1alpha1.PoolSeenCondition, true
	}
	if s := meta.FindStatusCondition(c.Conditions, of); gone && s != nil && s.Status == metav1.ConditionUnknown {
		return s
	}
	return nil
}

// adviseAfterMove returns the advice for an allocation that clusterctl may have left behind.
func (c ClaimantInfo) adviseAfterMove() string {
	return AdviseAfterMove(c.Namespace, c.ClusterName, c.ClusterNamespace)
}

// AdviseAfterMove returns the advice for an allocation in namespace that clusterctl may have left behind. cluster is
// the name of the Cluster that it is for, empty where it is for a pool. clusterctl moves the objects of the Cluster's
// namespace.
func AdviseAfterMove(namespace, cluster, clusterNamespace string) string {
	if cluster != "" && clusterNamespace != namespace {
		return "if the Cluster uses these addresses in another management cluster, leave the allocation: the move of namespace " + clusterNamespace +
			" does not take it along; else delete the allocation"
	}
	return "if clusterctl moves the namespace, resume the move; else delete the allocation"
}

// describeKeptAddress returns why an IPAddress that was deleted while its claim lives still exists; "" if it was not
// deleted.
func describeKeptAddress(a *ipamv1.IPAddress) string {
	if a.DeletionTimestamp == nil {
		return ""
	}
	return fmt.Sprintf("IPAddress %s/%s was deleted, and stays as long as the claim: the finalizer %s keeps it", a.Namespace, a.Name, v1alpha1.AddressFinalizer)
}

// explainForeignClaim explains a claim of a pool of another provider. Only its address shows whether that provider
// serves it.
func (c ClaimantInfo) explainForeignClaim(e *Explanation, deleting bool) {
	finding := fmt.Sprintf("its poolRef names %s %s of %q: another provider serves it", c.PoolRef.Kind, c.PoolRef.Name, c.PoolRef.APIGroup)
	switch {
	case c.MissingForeignPool != "" && c.GrantedAddress == "" && !deleting:
		e.Summary = "waits"
		e.Findings = append(e.Findings, Finding{c.MissingForeignPool + " does not exist", c.adviseRecreateObject(
			"create it, or create this claim again with the right poolRef, which is immutable")})
	case deleting:
		e.Findings = append(e.Findings, Finding{finding, "ask that provider"})
	case c.GrantedAddress != "":
		e.Served, e.Summary = true, "has "+c.GrantedAddress
		e.Findings = append(e.Findings, Finding{finding, "nothing has to be done"})
	case c.suggestAPIGroup() != "":
		e.Findings = append(e.Findings, Finding{
			fmt.Sprintf("its poolRef names %s %s of %q, a group that no provider is known for (did you mean %q?)", c.PoolRef.Kind, c.PoolRef.Name, c.PoolRef.APIGroup, c.suggestAPIGroup()),
			c.adviseRecreateObject(fmt.Sprintf("create the claim again with apiGroup %s: poolRef is immutable", c.suggestAPIGroup())),
		})
	default:
		e.Findings = append(e.Findings, Finding{finding + ", if there is one", c.adviseRecreateObject(fmt.Sprintf(
			"ask that provider; if a pool of this one is meant, set apiGroup %s and kind %s or %s: poolRef is immutable, so create the claim again",
			v1alpha1.GroupVersion.Group, v1alpha1.NetworkPoolKind, v1alpha1.GlobalNetworkPoolKind))})
	}
}

// suggestAPIGroup returns the group that a poolRef may mean whose own group is nearly that group, or a suffix of ours;
// "" where no known group is similar.
func (c ClaimantInfo) suggestAPIGroup() string {
	ownGroup := v1alpha1.GroupVersion.Group
	group, _, _ := strings.Cut(c.PoolRef.APIGroup, "/")
	if strings.Contains(group, ".") && strings.HasSuffix(ownGroup, "."+group) {
		return ownGroup
	}
	known := []string{ownGroup, incluster.GroupVersion.Group, "ipam.metal3.io"}
	if slices.Contains(known, c.PoolRef.APIGroup) {
		return ""
	}
	return allocator.NearestName(group, known)
}

// explainDeletion adds a finding for each finalizer that delays the deletion of the object.
func (c ClaimantInfo) explainDeletion(add func(finding, do string)) {
	ownFinalizers := []string{v1alpha1.ClaimFinalizer, v1alpha1.IPAllocationFinalizer, v1alpha1.IPLeaseFinalizer}
	for _, f := range c.Object.GetFinalizers() {
		switch {
		case tenancy.IsProjectionFinalizer(f):
			text := "the Cluster has not released the block yet"
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
		case !slices.Contains(ownFinalizers, f):
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

// explainPauses adds a finding for each pause that applies. A claimant that has its address gets no condition Paused
// when its Cluster or pool is paused.
func (c ClaimantInfo) explainPauses(add func(finding, do string)) {
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
		add(c.poolName()+" is paused", grants.ResumeAdvice(c.Pool))
	}
}

// explainRefusals adds the reasons why the allocator grants the object nothing.
func (c ClaimantInfo) explainRefusals(add func(finding, do string), ready *metav1.Condition) {
	switch {
	case c.Pool == nil && c.GrantedAddress != "":
		add(c.poolName()+" does not exist", c.adviseRecreatePool())
		return
	case c.Pool == nil:
		do := "create the pool, or create the object again with the right poolRef, which is immutable"
		if c.SameNamePool != "" {
			do = fmt.Sprintf("there is a %s: if that is meant, create the object again with its kind in poolRef, which is immutable; else create the pool", c.SameNamePool)
		}
		add(c.poolName()+" does not exist", c.adviseRecreateObject(do))
		return
	case isUnobserved(c.Pool):
		add("no manager has reconciled "+c.poolName()+" yet", "is the manager running, and does its flag --namespace include the pool?")
	}
	if annotations.HasPaused(c.Pool) {
		return // explainPauses has reported it
	}
	if closed := ClosedReason(c.Pool); closed != "" && c.GrantedAddress == "" {
		do := adviseOnPoolReason(c.Pool, notReadyCondition(c.Pool).Reason)
		if notReadyCondition(c.Pool).Reason == v1alpha1.DeletingReason {
			do = c.adviseRecreateObject(do)
		}
		add(fmt.Sprintf("%s %s", c.poolName(), closed), do)
		return
	}
	switch {
	case c.PlannedGrant != nil && c.PlannedGrant.Reason != "" && (ready == nil || ready.Reason != v1alpha1.QuotaExceededReason):
		c.addRefusal(add, c.PlannedGrant.Reason, c.PlannedGrant.Message)
	case ready != nil && ready.Status == metav1.ConditionFalse && (c.PlannedGrant == nil || ready.Reason == v1alpha1.QuotaExceededReason):
		c.addRefusal(add, ready.Reason, ready.Message)
	}
}

// addRefusal adds a refusal as a finding. It splits the message into the obstacle and the advice at its end.
func (c ClaimantInfo) addRefusal(add func(finding, do string), reason, message string) {
	finding, do := splitAdvice(message, claimantAdvice[reason])
	if c.Kind == v1alpha1.IPAllocationKind && reason == ipamv1.IPAddressClaimReadyPoolExhaustedReason && c.FreeCount > 0 {
		finding += fmt.Sprintf(" (%d free, at most %d in a row)", c.FreeCount, c.LargestFree)
	}
	add(finding, do)
}

// splitAdvice splits the text after the last "; " off a message, as the advice. A message without one gets otherwise as
// advice.
func splitAdvice(message, otherwise string) (finding, do string) {
	if i := strings.LastIndex(message, "; "); i >= 0 {
		return message[:i], message[i+len("; "):]
	}
	return message, otherwise
}

// adviseRecreatePool returns the advice for an object that has an address of a pool that does not exist.
func (c ClaimantInfo) adviseRecreatePool() string {
	return "create the pool again, with these addresses in it: each keeps its holder (docs/gitops.md#pruning-a-pool-in-use)"
}

// explainWithoutFinding explains an object for which no obstacle was found.
func (c ClaimantInfo) explainWithoutFinding(add func(finding, do string), deleting bool) {
	switch label := c.Object.GetLabels()[clusterv1.WatchLabel]; {
	case deleting:
		finding, do := "no finalizer of another controller and no pause holds it", "it should be gone in a moment; if not, check that a manager is running"
		if c.Kind == v1alpha1.IPLeaseKind {
			finding = "the finalizer " + v1alpha1.IPLeaseFinalizer + " holds it, and no other and no pause"
			do += ", with the component leases, service-leases or host-load-balancers (docs/install.md#components)"
		}
		add(finding, do)
	case c.PlannedGrant != nil && c.PlannedGrant.Range.IsValid():
		text := fmt.Sprintf("nothing is in its way: it is about to be given %s", poolutil.ShowRange(c.PlannedGrant.Range))
		if c.WaitingCount > 1 {
			text += fmt.Sprintf("; %d wait for this pool, the oldest is served first", c.WaitingCount)
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
		if layout, _ := poolspec.CompilePool(c.Pool); c.Kind == "IPAddressClaim" && layout != nil && layout.HasZones() {
			do += ", and is its component failure-domains on (docs/install.md#components)"
		}
		add(text, do+"?")
	default:
		add("it has been granted "+cmp.Or(c.GrantedAddress, "something")+", and its status is about to be written", "if this lasts, check that a manager is running")
	}
}

func (c ClaimantInfo) poolName() string {
	return pools.KeyFromPoolReference(c.Namespace, v1alpha1.PoolReference{Kind: c.PoolRef.Kind, Name: c.PoolRef.Name}).String()
}

// ClosedReason returns why a pool grants nothing now, as its condition Ready records; "" where the pool grants.
func ClosedReason(pool v1alpha1.Pool) string {
	if annotations.HasPaused(pool) {
		return grants.PausedPoolText // the condition may not show the pause yet
	}
	if c := notReadyCondition(pool); c != nil {
		return fmt.Sprintf("grants nothing now (%s): %s", c.Reason, c.Message)
	}
	return ""
}

// claimantAdvice maps reasons of the condition Ready of a claimant to advice.
var claimantAdvice = map[string]string{
	ipamv1.IPAddressClaimReadyPoolExhaustedReason:    "`kubectl butler-ipam free` shows what is free; add addresses to the pool, or delete what is not needed",
	ipamv1.IPAddressClaimReadyPoolNotReadyReason:     "correct what the message says about the pool; this object is then served without further action",
	ipamv1.IPAddressClaimReadyAllocationFailedReason: "correct what the message names: the claim, its Cluster, its namespace or the pool (docs/pools.md#when-a-claim-gets-no-address); this object is then served without further action",
	v1alpha1.WriteFailedReason:                       "change the quota, policy, webhook or right that the message names; the manager tries again by itself",
}

// poolAdvice maps reasons of the conditions of a pool to advice.
var poolAdvice = map[string]string{
	v1alpha1.DeletingReason:         "use another pool: this one is being deleted",
	v1alpha1.ValidationFailedReason: "correct the field of the pool that the message names",
	v1alpha1.CopiedReason:           "make sure that the other management cluster gives no address of this pool, then `kubectl annotate globalnetworkpool NAME " + v1alpha1.ManagementClusterAnnotation + "-`",
	v1alpha1.MovedReason:            "make sure that the other management cluster does not use these addresses, then release them: `kubectl butler-ipam release-held` of the pool",
	v1alpha1.AdoptingReason:         "wait until the time that the message names, or do what it says if it names none",
	v1alpha1.PoolExhaustedReason:    "add addresses to the pool, or reserve fewer",
	v1alpha1.OverlapReason:          "give the pool other addresses or another spec.network, or set spec.allowOverlap, after which both may give the same address",
}
