package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/dropin"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/leases"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// auditResult is the result of the command `audit`.
type auditResult struct {
	Pools       int `json:"pools"`
	Claims      int `json:"claims"`
	Addresses   int `json:"addresses"`
	Allocations int `json:"allocations"`
	Leases      int `json:"leases"`
	// Nodes counts the Nodes that were checked. It is 0 where the Nodes get no pod CIDRs from ClusterCIDRs of this
	// cluster; NodesUnchecked gives the reason why the Nodes could not be checked.
	Nodes          int    `json:"nodes"`
	NodesUnchecked string `json:"nodesUnchecked,omitempty"`
	// Violations lists states that must never occur; Unsettled lists states that must not occur once nothing is in
	// flight.
	Violations []string `json:"violations"`
	Unsettled  []string `json:"unsettled"`
	// ProviderConflicts lists the workloads of the in-cluster provider that run while a manager serves its pools, and
	// the pools of Metal3 that have the name of one of ours. ProvidersUnchecked gives the reason why the workloads
	// could not be read.
	ProviderConflicts  []string `json:"beside,omitempty"`
	ProvidersUnchecked string   `json:"besideUnchecked,omitempty"`
	// BeforeRollback lists the objects that must be deleted before an older manager may run.
	BeforeRollback []string `json:"beforeRollback,omitempty"`
	// BeforeMove lists the objects that clusterctl move would leave behind, or would have in two management clusters.
	BeforeMove []string `json:"beforeMove,omitempty"`
	// UnfinishedMoves lists the moves to or from this management cluster that have begun and have not ended.
	// MovesUnchecked gives the reason why they could not be determined.
	UnfinishedMoves []string `json:"halfMoved,omitempty"`
	MovesUnchecked  string   `json:"movesUnchecked,omitempty"`
	// ClustersUnchecked gives the reason why the IPAllocations that have outlived their Clusters could not be
	// determined.
	ClustersUnchecked string `json:"clustersUnchecked,omitempty"`
}

func (p *plugin) auditCommand() *cobra.Command {
	var strict, rollback, move bool
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Check that no address is held twice or lost",
		Long: "Check every pool, claim, IPAddress, IPAllocation and IPLease against the promise of the provider (docs/design.md), and\n" +
			"the pod CIDRs of Nodes where they are from ClusterCIDRs. Exits with 1 if an address is held twice, or may be soon, as the\n" +
			"in-cluster provider runs beside a manager that serves its pools, or Metal3 has a pool of the name of one of ours.\n" +
			"Findings that may be in flight, such as an address without a claim, are shown, and count only with --strict; so are those\n" +
			"that a move, or a backup that was restored, left behind. The kinds are read one after the other: in a busy cluster, repeat\n" +
			"the audit before you act on it.",
		Example: "  kubectl butler-ipam audit\n  kubectl butler-ipam audit --strict -o json\n  kubectl butler-ipam audit --move\n  kubectl butler-ipam audit --rollback",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.connectToCluster()
			if err != nil {
				return err
			}
			o, err := readObjects(cmd.Context(), c, "")
			if err != nil {
				return err
			}
			answer := auditObjects(o)
			if err := answer.addOrphanedAllocations(cmd.Context(), c, o); err != nil {
				return err
			}
			if err := answer.addNodeViolations(cmd.Context(), c); err != nil {
				return err
			}
			if err := answer.addProviderConflicts(cmd.Context(), c, o.Pools); err != nil {
				return err
			}
			if err := answer.addMetal3NameConflicts(cmd.Context(), c, o.Pools); err != nil {
				return err
			}
			if rollback {
				answer.BeforeRollback = listRollbackBlockers(o)
			}
			if move {
				answer.BeforeMove = listMoveBlockers(cmd.Context(), c, o)
				if err := answer.addUnfinishedMoves(cmd.Context(), c, o); err != nil {
					return err
				}
			}
			return p.printResult(answer.isClean(strict), answer, func() string { return p.formatAuditResult(answer) })
		},
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "Also exit with 1 for findings that may be in flight or were left behind.")
	cmd.Flags().BoolVar(&rollback, "rollback", false,
		"Also say what has to be deleted before a manager of a version without leases may run again, and exit with 1 if there is something.")
	cmd.Flags().BoolVar(&move, "move", false,
		"Also say what clusterctl move would leave behind, or in two management clusters, and which move has begun and not ended, and exit with 1 if there is something.")
	return cmd
}

// isClean reports whether the audit has no finding that counts. Unsettled findings count only if strict is set.
func (a *auditResult) isClean(strict bool) bool {
	n := len(a.Violations) + len(a.ProviderConflicts) + len(a.BeforeRollback) + len(a.BeforeMove) + len(a.UnfinishedMoves)
	if strict {
		n += len(a.Unsettled)
	}
	return n == 0
}

// listRollbackBlockers returns a line for each lease that has an address: a manager that does not know leases takes
// that address for free.
func listRollbackBlockers(o pools.Objects) (out []string) {
	for i := range o.Leases {
		l := &o.Leases[i]
		if r, ok := leases.AddressForLease(l); ok {
			out = append(out, fmt.Sprintf("IPLease %s/%s has %s of %s, which an older manager would grant to another claimant: delete the lease first",
				l.Namespace, l.Name, r.From(), pools.KeyFromPoolReference(l.Namespace, l.Spec.PoolRef)))
		}
	}
	return out
}

// addProviderConflicts adds the running workloads of the in-cluster provider where a manager serves its pools, as the
// two must not run at once.
func (a *auditResult) addProviderConflicts(ctx context.Context, from client.Reader, all []v1alpha1.Pool) error {
	if !dropin.HasServedMirror(all) {
		return nil
	}
	runs, err := dropin.ListRunning(ctx, from, dropin.ProviderInCluster)
	if apierrors.IsForbidden(err) {
		a.ProvidersUnchecked = err.Error()
		return nil
	}
	a.ProviderConflicts = formatProviderConflicts(runs)
	return err
}

// auditObjects checks objects against the invariants of internal/invariants.
func auditObjects(o pools.Objects) auditResult {
	out := auditResult{
		Pools: len(o.Pools), Claims: len(o.Claims), Addresses: len(o.Addresses), Allocations: len(o.Allocations), Leases: len(o.Leases),
		Violations: []string{}, Unsettled: []string{},
	}
	seen := map[string]bool{}
	for _, v := range (&invariants.History{}).CheckMoment(o) {
		seen[v] = true
		out.Violations = append(out.Violations, trimRuleNumber(v))
	}
	for _, v := range (&invariants.History{}).CheckAtRest(o) {
		if !seen[v] {
			out.Unsettled = append(out.Unsettled, trimRuleNumber(v))
		}
	}
	out.Unsettled = append(out.Unsettled, invariants.FindAbandonedUse(o)...)
	return out
}

// trimRuleNumber removes the number of the rule ("I1: "), by which tests identify a finding.
func trimRuleNumber(finding string) string {
	if rule, message, ok := strings.Cut(finding, ": "); ok && len(rule) == 2 && rule[0] == 'I' {
		return message
	}
	return finding
}

func (env Env) formatAuditResult(a auditResult) string {
	var out strings.Builder
	seen := []string{
		text.FormatCount(a.Pools, "pool", "pools"), text.FormatCount(a.Claims, "claim", "claims"),
		text.FormatCount(a.Addresses, "IPAddress", "IPAddresses"), text.FormatCount(a.Allocations, "IPAllocation", "IPAllocations"),
	}
	if a.Leases > 0 {
		seen = append(seen, text.FormatCount(a.Leases, "IPLease", "IPLeases"))
	}
	if a.Nodes > 0 {
		seen = append(seen, text.FormatCount(a.Nodes, "Node", "Nodes"))
	}
	out.WriteString(strings.Join(seen, ", "))
	out.WriteString(": ")
	switch {
	case len(a.Violations) > 0:
		fmt.Fprintf(&out, "%s\n", env.red(text.FormatCount(len(a.Violations), "violation", "violations")))
	case len(a.Unsettled) > 0:
		fmt.Fprintf(&out, "%s, %s\n", env.green("nothing is held twice"), env.yellow(text.FormatCount(len(a.Unsettled), "finding", "findings")+", in flight or left behind"))
	default:
		fmt.Fprintf(&out, "%s\n", env.green("nothing is held twice, nothing is lost"))
	}
	for _, v := range a.Violations {
		fmt.Fprintln(&out, "  "+env.red("violated")+"  "+v)
	}
	for _, v := range a.Unsettled {
		fmt.Fprintln(&out, "  "+env.yellow("unsettled")+" "+v)
	}
	for _, v := range a.ProviderConflicts {
		fmt.Fprintln(&out, "  "+env.red("danger")+"    "+v)
	}
	for _, v := range a.BeforeRollback {
		fmt.Fprintln(&out, "  "+env.red("rollback")+"  "+v)
	}
	for _, v := range slices.Concat(a.UnfinishedMoves, a.BeforeMove) {
		fmt.Fprintln(&out, "  "+env.yellow("move")+"      "+v)
	}
	if a.ProvidersUnchecked != "" {
		fmt.Fprintln(&out, "whether the in-cluster provider runs was not checked: "+a.ProvidersUnchecked)
	}
	if a.ClustersUnchecked != "" {
		fmt.Fprintln(&out, "whether the Clusters of IPAllocations are gone was not checked: "+a.ClustersUnchecked)
	}
	if a.MovesUnchecked != "" {
		fmt.Fprintln(&out, "whether a move has begun and not ended was not checked: "+a.MovesUnchecked)
	}
	if a.NodesUnchecked != "" {
		fmt.Fprintln(&out, "the pod CIDRs of Nodes were not checked: "+a.NodesUnchecked)
	}
	return out.String()
}
