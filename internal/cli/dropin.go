package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/dropin"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

func (p *plugin) dropInCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "drop-in",
		Short: "Show which pools of the in-cluster provider could be served in its place",
		Long: "Show the in-cluster provider's pools of the namespace and its global ones, and whether a manager with\n" +
			"--serve-in-cluster-pools would serve them. Run this before you swap the two providers, and again afterwards: it also\n" +
			"says whether the in-cluster provider runs. Exits with 1 if a pool would not be served, or if the in-cluster provider\n" +
			"runs beside a manager that serves its pools. Read docs/in-cluster.md.",
		Example: "  kubectl butler-ipam drop-in\n  kubectl butler-ipam drop-in -A -o yaml",
		Args:    noArgs("drop-in shows all pools of the namespace"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, namespace, err := p.connectToNamespace(all)
			if err != nil {
				return err
			}
			found, err := dropin.CheckPools(cmd.Context(), c, namespace)
			if err != nil {
				return err
			}
			if len(found) == 0 && requireKind(c, incluster.GroupVersion.WithKind(incluster.IPPoolKind)) != nil {
				if err := requirePoolKind(c); err != nil {
					return err
				}
			}
			both, err := p.warnInClusterRunning(cmd.Context(), c)
			if err != nil {
				return err
			}
			right := !both
			for i := range found {
				right = right && found[i].Served
			}
			return p.printResult(right, itemList[dropin.PoolCheck]{found}, func() string { return p.formatDropInTable(found) })
		},
	}
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "Show the pools of all namespaces.")
	return cmd
}

// warnInClusterRunning prints a note for each workload of the in-cluster provider that runs, with the next step. It
// reports whether a manager serves the provider's pools at the same time.
func (p *plugin) warnInClusterRunning(ctx context.Context, c client.Client) (both bool, err error) {
	runs, err := dropin.ListRunning(ctx, c, dropin.ProviderInCluster)
	if apierrors.IsForbidden(err) {
		p.printNotes([]string{"whether the in-cluster provider runs is not known: " + err.Error()})
		return false, nil
	}
	if err != nil || len(runs) == 0 {
		return false, err
	}
	all, err := pools.List(ctx, c, "")
	if err != nil && !apierrors.IsForbidden(err) && !meta.IsNoMatchError(err) { // before a swap, our kinds are not installed yet
		return false, fmt.Errorf("listing the pools: %w", err)
	}
	if dropin.HasServedMirror(all) {
		p.printNotes(formatProviderConflicts(runs))
		return true, nil
	}
	for _, workload := range runs {
		p.printNotes([]string{"the in-cluster provider runs (" + workload + "); before you swap: " + dropin.StopAdvice(workload)})
	}
	return false, nil
}

// formatProviderConflicts returns a message for each workload of the in-cluster provider that runs beside a manager
// that serves its pools, with the next step.
func formatProviderConflicts(runs []string) (out []string) {
	for _, workload := range runs {
		out = append(out, "the in-cluster provider runs ("+workload+") beside a manager that serves its pools, and would give an address twice: "+
			dropin.StopAdvice(workload)+", and have nothing start it again (docs/in-cluster.md)")
	}
	return out
}

func (env Env) formatDropInTable(found []dropin.PoolCheck) string {
	if len(found) == 0 {
		return "There are no pools of the in-cluster provider here.\n"
	}
	t := &table{}
	t.addRow("NAMESPACE", "NAME", "KIND", "SERVED")
	var notes strings.Builder
	for _, pool := range found {
		namespace, served := pool.Namespace, tableCell{"yes", env.green}
		if namespace == "" {
			namespace = "-"
		}
		if !pool.Served {
			served = tableCell{"no", env.red}
			fmt.Fprintf(&notes, "%s %s/%s: %s\n", pool.Kind, namespace, pool.Name, pool.Reason)
		}
		for _, note := range pool.Notes {
			fmt.Fprintf(&notes, "%s %s/%s: %s\n", pool.Kind, namespace, pool.Name, note)
		}
		t.addRow(namespace, pool.Name, pool.Kind, served)
	}
	return t.String() + notes.String()
}

func (p *plugin) handBackCommand() *cobra.Command {
	var apply, withoutRests bool
	cmd := &cobra.Command{
		Use:   "hand-back",
		Short: "Give the pools of the in-cluster provider back to it",
		Long: "Check that the in-cluster provider can serve its pools again without granting an address twice, list the obstacles, and\n" +
			"remove the mirrors of the pools. Prints the plan and writes nothing, unless --apply is given. Read docs/in-cluster.md.",
		Example: "  kubectl butler-ipam hand-back\n  kubectl butler-ipam hand-back --apply",
		Args:    noArgs("hand-back gives all pools back: the in-cluster provider serves all of its own"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.connectToCluster()
			if err != nil {
				return err
			}
			h := &dropin.HandBack{
				Client: c, Now: p.Now, IgnoreCooling: withoutRests,
				Reportf: func(format string, args ...any) { fmt.Fprintf(p.ErrOut, format+"\n", args...) },
			}
			if !apply {
				plan, err := h.Plan(cmd.Context())
				if err != nil {
					return err
				}
				return p.printResult(len(plan.Problems) == 0, plan, func() string { return p.formatHandBackPlan(plan) })
			}
			plan, err := h.Apply(cmd.Context())
			if errors.Is(err, dropin.ErrProblems) {
				return p.printResult(false, plan, func() string { return p.formatHandBackPlan(plan) })
			}
			if err != nil {
				return err
			}
			return p.printOutput(handBackResult{Plan: plan, HandedBack: true}, func() string {
				return text.FormatCount(len(plan.Pools), "pool is", "pools are") + " handed back: start the in-cluster provider.\n"
			})
		},
	}
	cmd.Flags().BoolVar(&apply, "apply", false, "Hand the pools back, or resume a hand-back that was interrupted.")
	cmd.Flags().BoolVar(&withoutRests, "without-rests", false, "Hand back even if released addresses are still in their reuse grace period; the in-cluster provider may then reuse them at once.")
	return cmd
}

// handBackResult is a hand-back plan that was carried out.
type handBackResult struct {
	*dropin.Plan

	HandedBack bool `json:"handedBack"`
}

func (env Env) formatHandBackPlan(plan *dropin.Plan) string {
	var out strings.Builder
	for _, key := range plan.EndedMirrors {
		fmt.Fprintln(&out, env.yellow("note:"), key, "is a pool of its own, since the pool of the in-cluster provider that it mirrored has ended: it stays")
	}
	if len(plan.Pools) == 0 && len(plan.Problems) == 0 {
		return out.String() + "There is nothing to hand back.\n"
	}
	fmt.Fprintf(&out, "%s handed back to the in-cluster provider:\n", text.FormatCount(len(plan.Pools), "pool is", "pools are"))
	for _, pool := range plan.Pools {
		fmt.Fprintln(&out, "  "+pool)
	}
	for _, referrer := range plan.Waiting {
		fmt.Fprintln(&out, env.yellow("note:"), referrer, "names a mirror, and will not be served after the hand-back: delete it")
	}
	if len(plan.Problems) == 0 {
		fmt.Fprintln(&out, env.green("There are no obstacles.")+" Nothing has been written yet: run again with --apply.")
		return out.String()
	}
	fmt.Fprintln(&out, env.red("Obstacles:"))
	for _, problem := range plan.Problems {
		fmt.Fprintf(&out, "  %s\n    to do: %s\n", problem.Message, problem.Advice)
	}
	return out.String()
}
