package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/inspect"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/claims"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

func (p *plugin) explainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "explain KIND/NAME",
		Short: "Say why a claim, a block, a lease or a Node waits, or a pool gives nothing, and what to do",
		Long: "Say why an IPAddressClaim (claim/NAME), an IPAllocation (ipallocation/NAME) or an IPLease (iplease/NAME) waits, or why a\n" +
			"pool (np/NAME, gnp/NAME) grants nothing, and what to do about it; why a Node of the cluster (node/NAME) has its pod CIDRs or none, and which Nodes use a\n" +
			"ClusterCIDR (cc/NAME) and which wait for it. Exit code 1 where it waits, or grants nothing.",
		Example: "  kubectl butler-ipam explain claim/worker-0\n  kubectl butler-ipam explain ipallocation/team-a-prod-lb -n default\n  kubectl butler-ipam explain node/worker-0",
		Args:    exactlyOneArg("which claim, allocation, lease, pool, Node or ClusterCIDR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.connectToCluster()
			if err != nil {
				return err
			}
			e, err := p.explainObject(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			err = p.printResult(e.Served, e, func() string { return p.formatExplanation(e) })
			p.printNotes(e.Notes)
			return err
		},
		ValidArgsFunction: p.completeExplainTargets,
	}
}

// explainObject explains the object that the user names as KIND/NAME.
func (p *plugin) explainObject(ctx context.Context, c client.Client, arg string) (inspect.Explanation, error) {
	namespace, _, err := p.currentNamespace()
	if err != nil {
		return inspect.Explanation{}, err
	}
	kind, name, _ := strings.Cut(arg, "/")
	switch strings.ToLower(kind) {
	case "claim", "ipaddressclaim", "ipaddressclaims":
		return explainClaim(ctx, c, namespace, name, p.Now())
	case "ipallocation", "ipallocations", "ipa", "allocation":
		return explainAllocation(ctx, c, namespace, name, p.Now())
	case "iplease", "ipleases", "ipl", "lease":
		return explainLease(ctx, c, namespace, name, p.Now())
	case "np", "networkpool", "networkpools", "gnp", "globalnetworkpool", "globalnetworkpools":
		return p.explainPool(ctx, c, arg)
	case "node", "nodes", "no":
		return explainNode(ctx, c, name, p.Now())
	case "cc", "clustercidr", "clustercidrs":
		return explainClusterCIDR(ctx, c, name, p.Now())
	}
	return inspect.Explanation{}, fmt.Errorf("%q cannot be explained: write claim/NAME, ipallocation/NAME, iplease/NAME, np/NAME, gnp/NAME, node/NAME or cc/NAME", arg)
}

func (env Env) formatExplanation(e inspect.Explanation) string {
	var out strings.Builder
	paint := env.yellow
	if e.Served {
		paint = env.green
	}
	fmt.Fprintf(&out, "%s %s\n", e.Subject, paint(e.Summary))
	for _, f := range e.Findings {
		fmt.Fprintf(&out, "  why:    %s\n", f.Message)
		if f.Advice != "" {
			fmt.Fprintf(&out, "  to do:  %s\n", f.Advice)
		}
	}
	for _, d := range e.Details {
		before := d.Label + ":"
		for i, line := range d.Lines {
			if i == maxDetailLines {
				line = fmt.Sprintf("and %d more; -o yaml has them all", len(d.Lines)-i)
			}
			fmt.Fprintf(&out, "  %-7s %s\n", before, line)
			if before = ""; i == maxDetailLines {
				break
			}
		}
	}
	return out.String()
}

// maxDetailLines limits the lines of a list in text output.
const maxDetailLines = 20

func (p *plugin) explainPool(ctx context.Context, from client.Client, arg string) (inspect.Explanation, error) {
	key, err := p.parsePoolKey(arg)
	if err != nil {
		return inspect.Explanation{}, err
	}
	pool, err := key.GetPool(ctx, from)
	if err != nil {
		return inspect.Explanation{}, fmt.Errorf("reading %s: %w", key, err)
	}
	if !inspect.IsPoolFull(pool) {
		return inspect.ExplainPool(pool, nil), nil
	}
	v, err := loadPoolSnapshot(ctx, from, pool)
	if err != nil {
		return inspect.Explanation{}, err
	}
	return inspect.ExplainPool(pool, v.WaitingClaimants()), nil
}

func explainClaim(ctx context.Context, from client.Client, namespace, name string, now time.Time) (inspect.Explanation, error) {
	claim := &ipamv1.IPAddressClaim{}
	if err := from.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, claim); err != nil {
		return inspect.Explanation{}, fmt.Errorf("reading the claim: %w", err)
	}
	ref, isOwn, err := resolveServingPool(ctx, from, claim)
	if err != nil {
		return inspect.Explanation{}, err
	}
	c := inspect.ClaimantInfo{
		Kind: "IPAddressClaim", Namespace: namespace, Name: name, Object: claim, Conditions: claim.Status.Conditions, PoolRef: ref,
		ClusterName: claims.ClusterNameForClaim(claim), NamesOwnPool: isOwn,
	}
	if c.MissingForeignPool, err = missingInClusterPool(ctx, from, claim, isOwn); err != nil {
		return inspect.Explanation{}, err
	}
	address := &ipamv1.IPAddress{}
	err = from.Get(ctx, client.ObjectKey{Namespace: namespace, Name: cmp.Or(claim.Status.AddressRef.Name, name)}, address)
	if client.IgnoreNotFound(err) != nil {
		return inspect.Explanation{}, fmt.Errorf("reading the IPAddress: %w", err)
	}
	allocated := fmt.Sprintf("%s of %s %s", address.Spec.Address, c.PoolRef.Kind, c.PoolRef.Name)
	published := claim.Status.AddressRef.Name != ""
	if err == nil && published {
		c.GrantedAddress, c.Address = allocated, address
	}
	e, explained := explainClaimant(ctx, from, c, claim.UID, types.NamespacedName{Namespace: namespace, Name: c.ClusterName}, now)
	if err == nil && !published && address.Spec.ClaimRef.Name == name && claim.DeletionTimestamp == nil {
		// clusterctl move and a restore bring objects without their status.
		e.Summary = "has " + allocated + ", which its status does not show yet: its requester waits"
	}
	return e, explained
}

// resolveServingPool returns the reference to the pool that serves a claim, and reports whether that is one of ours.
// For a claim that names a pool of the in-cluster provider it is the mirror of that pool, where there is one.
func resolveServingPool(ctx context.Context, from client.Client, claim *ipamv1.IPAddressClaim) (ref ipamv1.IPPoolReference, isOwn bool, err error) {
	ref = claim.Spec.PoolRef
	key, isOwn := pools.KeyFromIPPoolReference(claim.Namespace, ref)
	if !isOwn || !incluster.IsInClusterRef(ref) {
		return ref, isOwn, nil
	}
	switch _, err := key.GetPool(ctx, from); {
	case apierrors.IsNotFound(err):
		return ref, false, nil
	case err != nil:
		return ref, false, fmt.Errorf("reading %s: %w", key, err)
	}
	return key.PoolReference(), true, nil
}

// missingInClusterPool returns the key of the in-cluster provider's pool that a claim names where that pool does not
// exist. It returns "" where the claim names no pool of that provider, or the pool exists.
func missingInClusterPool(ctx context.Context, from client.Client, claim *ipamv1.IPAddressClaim, mirrored bool) (string, error) {
	kind, ok := incluster.KindForRef(claim.Spec.PoolRef)
	if !ok || mirrored {
		return "", nil
	}
	key := pools.Key{Kind: kind.Name, Namespace: claim.Namespace, Name: claim.Spec.PoolRef.Name}
	if kind.IsGlobal {
		key.Namespace = ""
	}
	err := from.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: key.Name}, kind.NewPool())
	switch {
	case apierrors.IsNotFound(err):
		return key.String(), nil
	case err != nil && !meta.IsNoMatchError(err):
		return "", fmt.Errorf("reading %s: %w", key, err)
	}
	return "", nil
}

func explainAllocation(ctx context.Context, from client.Client, namespace, name string, now time.Time) (inspect.Explanation, error) {
	a := &v1alpha1.IPAllocation{}
	if err := from.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, a); err != nil {
		return inspect.Explanation{}, fmt.Errorf("reading the allocation: %w", err)
	}
	c := inspect.ClaimantInfo{
		Kind: v1alpha1.IPAllocationKind, Namespace: namespace, Name: name, Object: a, Conditions: a.Status.Conditions, NamesOwnPool: true,
		PoolRef:     toClaimPoolRef(a.Spec.PoolRef),
		ClusterName: a.Spec.TenantClusterRef.Name,
	}
	if child, ok := pools.ChildPoolKey(a); ok {
		_, err := child.GetPool(ctx, from)
		c.ChildPoolGone = apierrors.IsNotFound(err)
	}
	if a.Status.Phase == v1alpha1.AllocationAllocated {
		c.GrantedAddress = fmt.Sprintf("%s of %s %s", a.Status.CIDR, c.PoolRef.Kind, c.PoolRef.Name)
	}
	return explainClaimant(ctx, from, c, a.UID, a.Spec.TenantClusterRef.NamespacedName(), now)
}

// toClaimPoolRef converts a reference to a pool of ours to the form that claims use.
func toClaimPoolRef(ref v1alpha1.PoolReference) ipamv1.IPPoolReference {
	return ipamv1.IPPoolReference{APIGroup: v1alpha1.GroupVersion.Group, Kind: cmp.Or(ref.Kind, v1alpha1.NetworkPoolKind), Name: ref.Name}
}

func explainLease(ctx context.Context, from client.Client, namespace, name string, now time.Time) (inspect.Explanation, error) {
	l := &v1alpha1.IPLease{}
	if err := from.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, l); err != nil {
		return inspect.Explanation{}, fmt.Errorf("reading the lease: %w", err)
	}
	c := inspect.ClaimantInfo{
		Kind: v1alpha1.IPLeaseKind, Namespace: namespace, Name: name, Object: l, Conditions: l.Status.Conditions, NamesOwnPool: true, PoolRef: toClaimPoolRef(l.Spec.PoolRef),
	}
	if l.Status.Address != "" {
		c.GrantedAddress = fmt.Sprintf("%s of %s %s", l.Status.Address, c.PoolRef.Kind, c.PoolRef.Name)
	}
	return explainClaimant(ctx, from, c, l.UID, types.NamespacedName{}, now)
}

// explainClaimant reads the Cluster, the pool and the planned grant of a claimant of any kind, and explains the
// claimant.
func explainClaimant(ctx context.Context, from client.Client, c inspect.ClaimantInfo, uid types.UID, clusterKey types.NamespacedName, now time.Time) (inspect.Explanation, error) {
	if c.ClusterName != "" {
		c.ClusterNamespace = clusterKey.Namespace
		cluster := &clusterv1.Cluster{}
		switch err := from.Get(ctx, clusterKey, cluster); {
		case err == nil:
			c.ClusterObject = cluster
		case !apierrors.IsNotFound(err):
			return inspect.Explanation{}, fmt.Errorf("reading Cluster %s: %w", clusterKey, err)
		}
	}
	if !c.NamesOwnPool {
		return inspect.ExplainClaimant(c), nil
	}
	key := pools.KeyFromPoolReference(c.Namespace, v1alpha1.PoolReference{Kind: c.PoolRef.Kind, Name: c.PoolRef.Name})
	pool, err := key.GetPool(ctx, from)
	if apierrors.IsNotFound(err) {
		if other := otherKindKey(c.Namespace, key); canReadPool(ctx, from, other) {
			c.SameNamePool = other.String()
		}
		return inspect.ExplainClaimant(c), nil
	}
	if err != nil {
		return inspect.Explanation{}, fmt.Errorf("reading %s: %w", key, err)
	}
	c.Pool = pool
	v, err := loadPoolSnapshot(ctx, from, pool)
	if err != nil {
		return inspect.Explanation{}, err
	}
	c.WaitingCount, c.FreeCount, c.LargestFree, c.Cooling = v.WaitingCount(), v.Counts().Available, v.Counts().LargestFree, v.CoolingGroups()
	if answer, waits := v.PlanGrants(ctx, from, now)[uid]; waits {
		c.PlannedGrant = &answer
	}
	return inspect.ExplainClaimant(c), nil
}

// otherKindKey returns the key of the pool with the same name and the other kind (NetworkPool or GlobalNetworkPool).
func otherKindKey(namespace string, key pools.Key) pools.Key {
	if key.Kind == v1alpha1.NetworkPoolKind {
		return pools.Key{Kind: v1alpha1.GlobalNetworkPoolKind, Name: key.Name}
	}
	return pools.Key{Kind: v1alpha1.NetworkPoolKind, Namespace: namespace, Name: key.Name}
}

// canReadPool reports whether a pool exists and can be read. It serves a hint only, so other errors count as no.
func canReadPool(ctx context.Context, from client.Client, key pools.Key) bool {
	_, err := key.GetPool(ctx, from)
	return err == nil
}
