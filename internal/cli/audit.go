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

// auditAnswer is what `audit` found.
type auditAnswer struct {
	Pools       int `json:"pools"`
	Claims      int `json:"claims"`
	Addresses   int `json:"addresses"`
	Allocations int `json:"allocations"`
	Leases      int `json:"leases"`
	// Nodes are 0 where they get no pod CIDRs from ClusterCIDRs; NodesUnchecked says why it is not known.
	Nodes          int    `json:"nodes"`
	NodesUnchecked string `json:"nodesUnchecked,omitempty"`
	// Violations are what must never be, Unsettled what must not be once nothing is under way.
	Violations []string `json:"violations"`
	Unsettled  []string `json:"unsettled"`
	// Beside is what runs of the in-cluster provider while a manager serves its pools, and the pools of Metal3 that have the
	// name of one of ours; BesideUnchecked says why the former is not known.
	Beside          []string `json:"beside,omitempty"`
	BesideUnchecked string   `json:"besideUnchecked,omitempty"`
	// Before is what has to go before an older manager may run.
	Before []string `json:"beforeRollback,omitempty"`
	// Stays is what clusterctl move would leave behind, or in two management clusters.
	Stays []string `json:"beforeMove,omitempty"`
	// HalfMoved are moves that have begun, to here or from here, and have not ended; MovesUnchecked says why it is not known.
	HalfMoved      []string `json:"halfMoved,omitempty"`
	MovesUnchecked string   `json:"movesUnchecked,omitempty"`
	// ClustersUnchecked says why it is not known which IPAllocations have outlived their Clusters.
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
			c, err := p.connect()
			if err != nil {
				return err
			}
			o, err := read(cmd.Context(), c, "")
			if err != nil {
				return err
			}
			answer := audit(o)
			if err := answer.addOutlived(cmd.Context(), c, o); err != nil {
				return err
			}
			if err := answer.addNodes(cmd.Context(), c); err != nil {
				return err
			}
			if err := answer.addBeside(cmd.Context(), c, o.Pools); err != nil {
				return err
			}
			if err := answer.addNamesakes(cmd.Context(), c, o.Pools); err != nil {
				return err
			}
			if rollback {
				answer.Before = beforeRollback(o)
			}
			if move {
				answer.Stays = beforeMove(cmd.Context(), c, o)
				if err := answer.addHalfMoved(cmd.Context(), c, o); err != nil {
					return err
				}
			}
			return p.answer(answer.right(strict), answer, func() string { return p.auditText(answer) })
		},
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "Also exit with 1 for findings that may be in flight or were left behind.")
	cmd.Flags().BoolVar(&rollback, "rollback", false,
		"Also say what has to be deleted before a manager of a version without leases may run again, and exit with 1 if there is something.")
	cmd.Flags().BoolVar(&move, "move", false,
		"Also say what clusterctl move would leave behind, or in two management clusters, and which move has begun and not ended, and exit with 1 if there is something.")
	return cmd
}

// right reports whether nothing was found that counts.
func (a *auditAnswer) right(strict bool) bool {
	n := len(a.Violations) + len(a.Beside) + len(a.Before) + len(a.Stays) + len(a.HalfMoved)
	if strict {
		n += len(a.Unsettled)
	}
	return n == 0
}

// beforeRollback names the leases that have an address: to a manager that does not know them, it is free.
func beforeRollback(o pools.Objects) (out []string) {
	for i := range o.Leases {
		l := &o.Leases[i]
		if r, has := leases.AddressOf(l); has {
			out = append(out, fmt.Sprintf("IPLease %s/%s has %s of %s, which an older manager would give to somebody else: delete the lease first",
				l.Namespace, l.Name, r.From(), pools.KeyOfPool(l.Namespace, l.Spec.PoolRef)))
		}
	}
	return out
}

// addBeside adds what runs of the in-cluster provider and must not, where a manager serves its pools.
func (a *auditAnswer) addBeside(ctx context.Context, from client.Reader, all []v1alpha1.Pool) error {
	if !dropin.Served(all) {
		return nil
	}
	runs, err := dropin.Running(ctx, from, dropin.InCluster)
	if apierrors.IsForbidden(err) {
		a.BesideUnchecked = err.Error()
		return nil
	}
	a.Beside = besideTexts(runs)
	return err
}

// audit checks objects against the invariants.
func audit(o pools.Objects) auditAnswer {
	out := auditAnswer{
		Pools: len(o.Pools), Claims: len(o.Claims), Addresses: len(o.Addresses), Allocations: len(o.Allocations), Leases: len(o.Leases),
		Violations: []string{}, Unsettled: []string{},
	}
	seen := map[string]bool{}
	for _, v := range (&invariants.History{}).Moment(o) {
		seen[v] = true
		out.Violations = append(out.Violations, withoutRule(v))
	}
	for _, v := range (&invariants.History{}).AtRest(o) {
		if !seen[v] {
			out.Unsettled = append(out.Unsettled, withoutRule(v))
		}
	}
	out.Unsettled = append(out.Unsettled, invariants.LeftBehind(o)...)
	return out
}

// withoutRule leaves out the number of the rule that tests know a finding by.
func withoutRule(finding string) string {
	if rule, says, ok := strings.Cut(finding, ": "); ok && len(rule) == 2 && rule[0] == 'I' {
		return says
	}
	return finding
}

func (p *plugin) auditText(a auditAnswer) string {
	var out strings.Builder
	seen := []string{
		text.Count(a.Pools, "pool", "pools"), text.Count(a.Claims, "claim", "claims"),
		text.Count(a.Addresses, "IPAddress", "IPAddresses"), text.Count(a.Allocations, "IPAllocation", "IPAllocations"),
	}
	if a.Leases > 0 {
		seen = append(seen, text.Count(a.Leases, "IPLease", "IPLeases"))
	}
	if a.Nodes > 0 {
		seen = append(seen, text.Count(a.Nodes, "Node", "Nodes"))
	}
	out.WriteString(strings.Join(seen, ", "))
	out.WriteString(": ")
	switch {
	case len(a.Violations) > 0:
		fmt.Fprintf(&out, "%s\n", p.red(text.Count(len(a.Violations), "violation", "violations")))
	case len(a.Unsettled) > 0:
		fmt.Fprintf(&out, "%s, %s\n", p.green("nothing is held twice"), p.yellow(text.Count(len(a.Unsettled), "finding", "findings")+", in flight or left behind"))
	default:
		fmt.Fprintf(&out, "%s\n", p.green("nothing is held twice, nothing is lost"))
	}
	for _, v := range a.Violations {
		fmt.Fprintln(&out, "  "+p.red("violated")+"  "+v)
	}
	for _, v := range a.Unsettled {
		fmt.Fprintln(&out, "  "+p.yellow("unsettled")+" "+v)
	}
	for _, v := range a.Beside {
		fmt.Fprintln(&out, "  "+p.red("danger")+"    "+v)
	}
	for _, v := range a.Before {
		fmt.Fprintln(&out, "  "+p.red("rollback")+"  "+v)
	}
	for _, v := range slices.Concat(a.HalfMoved, a.Stays) {
		fmt.Fprintln(&out, "  "+p.yellow("move")+"      "+v)
	}
	if a.BesideUnchecked != "" {
		fmt.Fprintln(&out, "whether the in-cluster provider runs was not checked: "+a.BesideUnchecked)
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
