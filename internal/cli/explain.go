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
			"pool (np/NAME, gnp/NAME) grants nothing, and what to do about it; why a Node of the cluster (node/NAME) has its pod CIDRs or none, and who uses a\n" +
			"ClusterCIDR (cc/NAME) and who waits for it. Exit code 1 where it waits, or grants nothing.",
		Example: "  kubectl butler-ipam explain claim/worker-0\n  kubectl butler-ipam explain ipallocation/team-a-prod-lb -n default\n  kubectl butler-ipam explain node/worker-0",
		Args:    oneArg("which claim, allocation, lease, pool, Node or ClusterCIDR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.connect()
			if err != nil {
				return err
			}
			e, err := p.explainObject(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			err = p.answer(e.Served, e, func() string { return p.explainText(e) })
			p.note(e.Notes)
			return err
		},
		ValidArgsFunction: p.completeExplained,
	}
}

// explainObject explains what a person names as KIND/NAME.
func (p *plugin) explainObject(ctx context.Context, c client.Client, arg string) (inspect.Explanation, error) {
	namespace, _, err := p.namespace()
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

func (p *plugin) explainText(e inspect.Explanation) string {
	var out strings.Builder
	paint := p.yellow
	if e.Served {
		paint = p.green
	}
	fmt.Fprintf(&out, "%s %s\n", e.Subject, paint(e.Verdict))
	for _, f := range e.Findings {
		fmt.Fprintf(&out, "  why:    %s\n", f.What)
		if f.Do != "" {
			fmt.Fprintf(&out, "  to do:  %s\n", f.Do)
		}
	}
	for _, d := range e.Details {
		before := d.What + ":"
		for i, is := range d.Is {
			if i == maxDetails {
				is = fmt.Sprintf("and %d more; -o yaml has them all", len(d.Is)-i)
			}
			fmt.Fprintf(&out, "  %-7s %s\n", before, is)
			if before = ""; i == maxDetails {
				break
			}
		}
	}
	return out.String()
}

// maxDetails is how many lines of a list a text has.
const maxDetails = 20

func (p *plugin) explainPool(ctx context.Context, from client.Client, arg string) (inspect.Explanation, error) {
	key, err := p.poolKey(arg)
	if err != nil {
		return inspect.Explanation{}, err
	}
	pool, err := key.Get(ctx, from)
	if err != nil {
		return inspect.Explanation{}, fmt.Errorf("reading %s: %w", key, err)
	}
	if !inspect.IsFull(pool) {
		return inspect.ExplainPool(pool, nil), nil
	}
	v, err := look(ctx, from, pool)
	if err != nil {
		return inspect.Explanation{}, err
	}
	return inspect.ExplainPool(pool, v.Waiters()), nil
}

func explainClaim(ctx context.Context, from client.Client, namespace, name string, now time.Time) (inspect.Explanation, error) {
	claim := &ipamv1.IPAddressClaim{}
	if err := from.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, claim); err != nil {
		return inspect.Explanation{}, fmt.Errorf("reading the claim: %w", err)
	}
	ref, ours, err := servedBy(ctx, from, claim)
	if err != nil {
		return inspect.Explanation{}, err
	}
	c := inspect.Case{
		Kind: "IPAddressClaim", Namespace: namespace, Name: name, Object: claim, Conditions: claim.Status.Conditions, Ref: ref,
		Cluster: claims.ClusterOf(claim), Ours: ours,
	}
	if c.Missing, err = missingSource(ctx, from, claim, ours); err != nil {
		return inspect.Explanation{}, err
	}
	address := &ipamv1.IPAddress{}
	err = from.Get(ctx, client.ObjectKey{Namespace: namespace, Name: cmp.Or(claim.Status.AddressRef.Name, name)}, address)
	if client.IgnoreNotFound(err) != nil {
		return inspect.Explanation{}, fmt.Errorf("reading the IPAddress: %w", err)
	}
	has := fmt.Sprintf("%s of %s %s", address.Spec.Address, c.Ref.Kind, c.Ref.Name)
	told := claim.Status.AddressRef.Name != ""
	if err == nil && told {
		c.Has, c.Address = has, address
	}
	e, explained := explain(ctx, from, c, claim.UID, types.NamespacedName{Namespace: namespace, Name: c.Cluster}, now)
	if err == nil && !told && address.Spec.ClaimRef.Name == name && claim.DeletionTimestamp == nil {
		// A move and a restore bring no status.
		e.Verdict = "has " + has + ", which its status does not say yet: who asked for it waits"
	}
	return e, explained
}

// servedBy returns the pool that serves a claim, and whether that is one of ours: one that mirrors the pool of the
// in-cluster provider which the claim names, where there is such a mirror.
func servedBy(ctx context.Context, from client.Client, claim *ipamv1.IPAddressClaim) (ref ipamv1.IPPoolReference, ours bool, err error) {
	ref = claim.Spec.PoolRef
	key, ours := pools.KeyOfRef(claim.Namespace, ref)
	if !ours || !incluster.Is(ref) {
		return ref, ours, nil
	}
	switch _, err := key.Get(ctx, from); {
	case apierrors.IsNotFound(err):
		return ref, false, nil
	case err != nil:
		return ref, false, fmt.Errorf("reading %s: %w", key, err)
	}
	return key.Ref(), true, nil
}

// missingSource names the pool of the in-cluster provider that a claim names and that does not exist; empty: it names none,
// or that is there.
func missingSource(ctx context.Context, from client.Client, claim *ipamv1.IPAddressClaim, mirrored bool) (string, error) {
	kind, is := incluster.KindOf(claim.Spec.PoolRef)
	if !is || mirrored {
		return "", nil
	}
	key := pools.Key{Kind: kind.Name, Namespace: claim.Namespace, Name: claim.Spec.PoolRef.Name}
	if kind.Global {
		key.Namespace = ""
	}
	err := from.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: key.Name}, kind.New())
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
	c := inspect.Case{
		Kind: v1alpha1.IPAllocationKind, Namespace: namespace, Name: name, Object: a, Conditions: a.Status.Conditions, Ours: true,
		Ref:     ofOurs(a.Spec.PoolRef),
		Cluster: a.Spec.TenantClusterRef.Name,
	}
	if child, is := pools.ChildOf(a); is {
		_, err := child.Get(ctx, from)
		c.ChildGone = apierrors.IsNotFound(err)
	}
	if a.Status.Phase == v1alpha1.AllocationAllocated {
		c.Has = fmt.Sprintf("%s of %s %s", a.Status.CIDR, c.Ref.Kind, c.Ref.Name)
	}
	return explain(ctx, from, c, a.UID, a.Spec.TenantClusterRef.NamespacedName(), now)
}

// ofOurs is a reference to a pool of ours, as claims write it.
func ofOurs(ref v1alpha1.PoolReference) ipamv1.IPPoolReference {
	return ipamv1.IPPoolReference{APIGroup: v1alpha1.GroupVersion.Group, Kind: cmp.Or(ref.Kind, v1alpha1.NetworkPoolKind), Name: ref.Name}
}

func explainLease(ctx context.Context, from client.Client, namespace, name string, now time.Time) (inspect.Explanation, error) {
	l := &v1alpha1.IPLease{}
	if err := from.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, l); err != nil {
		return inspect.Explanation{}, fmt.Errorf("reading the lease: %w", err)
	}
	c := inspect.Case{
		Kind: v1alpha1.IPLeaseKind, Namespace: namespace, Name: name, Object: l, Conditions: l.Status.Conditions, Ours: true, Ref: ofOurs(l.Spec.PoolRef),
	}
	if l.Status.Address != "" {
		c.Has = fmt.Sprintf("%s of %s %s", l.Status.Address, c.Ref.Kind, c.Ref.Name)
	}
	return explain(ctx, from, c, l.UID, types.NamespacedName{}, now)
}

// explain reads what all kinds have in common.
func explain(ctx context.Context, from client.Client, c inspect.Case, uid types.UID, clusterKey types.NamespacedName, now time.Time) (inspect.Explanation, error) {
	if c.Cluster != "" {
		c.ClusterNamespace = clusterKey.Namespace
		cluster := &clusterv1.Cluster{}
		switch err := from.Get(ctx, clusterKey, cluster); {
		case err == nil:
			c.ClusterObject = cluster
		case !apierrors.IsNotFound(err):
			return inspect.Explanation{}, fmt.Errorf("reading Cluster %s: %w", clusterKey, err)
		}
	}
	if !c.Ours {
		return inspect.Explain(c), nil
	}
	key := pools.KeyOfPool(c.Namespace, v1alpha1.PoolReference{Kind: c.Ref.Kind, Name: c.Ref.Name})
	pool, err := key.Get(ctx, from)
	if apierrors.IsNotFound(err) {
		if other := otherKind(c.Namespace, key); isThere(ctx, from, other) {
			c.Instead = other.String()
		}
		return inspect.Explain(c), nil
	}
	if err != nil {
		return inspect.Explanation{}, fmt.Errorf("reading %s: %w", key, err)
	}
	c.Pool = pool
	v, err := look(ctx, from, pool)
	if err != nil {
		return inspect.Explanation{}, err
	}
	c.Ahead, c.Free, c.Largest, c.Resting = v.Waiting(), v.Counts().Available, v.Counts().LargestFree, v.Resting()
	if answer, waits := v.Plan(ctx, from, now)[uid]; waits {
		c.Answer = &answer
	}
	return inspect.Explain(c), nil
}

// otherKind is the pool of the same name and the other kind.
func otherKind(namespace string, key pools.Key) pools.Key {
	if key.Kind == v1alpha1.NetworkPoolKind {
		return pools.Key{Kind: v1alpha1.GlobalNetworkPoolKind, Name: key.Name}
	}
	return pools.Key{Kind: v1alpha1.NetworkPoolKind, Namespace: namespace, Name: key.Name}
}

// isThere reports whether a pool is there and can be read: it is for a hint.
func isThere(ctx context.Context, from client.Client, key pools.Key) bool {
	_, err := key.Get(ctx, from)
	return err == nil
}
