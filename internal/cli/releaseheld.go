package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"go4.org/netipx"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/inspect"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

func (p *plugin) releaseHeldCommand() *cobra.Command {
	var apply bool
	cmd := &cobra.Command{
		Use:   "release-held POOL [RANGE...]",
		Short: "Release addresses that were moved to another management cluster",
		Long: "Release entries of status.held of a pool: all that were moved with clusterctl, or those in the ranges. Make sure first that\n" +
			"nothing uses these addresses in the other management cluster. Prints the plan and writes nothing, unless --apply is given: then\n" +
			"it writes the annotation " + v1alpha1.ReleaseHeldAnnotation + " of the pool, which you may as well keep in its manifest.\n" +
			"POOL is the name of a NetworkPool of the namespace, or gnp/NAME for a GlobalNetworkPool.",
		Example: "  kubectl butler-ipam release-held machines\n  kubectl butler-ipam release-held gnp/shared 10.40.0.10-10.40.0.19 --apply",
		Args:    atLeastOneArg("which pool"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var ranges []netipx.IPRange
			for _, arg := range args[1:] {
				r, err := poolutil.ParseRange(arg)
				if err != nil {
					return err
				}
				ranges = append(ranges, r)
			}
			c, err := p.connectToCluster()
			if err != nil {
				return err
			}
			key, pool, err := p.readPool(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			plan, err := inspect.PlanHeldRelease(pool, key.String(), ranges)
			if err != nil {
				return err
			}
			if !apply || plan.Annotation == "" {
				return p.printResult(true, plan, func() string { return p.formatHeldReleasePlan(plan) })
			}
			// The patch requires the version that was read: ranges that are held since then are not part of the plan.
			patch := client.MergeFromWithOptions(pool.DeepCopyObject().(client.Object), client.MergeFromWithOptimisticLock{})
			annotations := pool.GetAnnotations()
			if annotations == nil {
				annotations = map[string]string{}
			}
			annotations[v1alpha1.ReleaseHeldAnnotation] = plan.Annotation
			pool.SetAnnotations(annotations)
			if err := c.Patch(cmd.Context(), pool, patch); err != nil {
				return fmt.Errorf("writing the annotation of %s: %w", key, err)
			}
			return p.printOutput(releaseHeldResult{HeldReleasePlan: plan, Annotated: true}, func() string {
				return key.String() + " is annotated: the manager releases the addresses within seconds. If they stay in status.held, its Ready condition says why.\n"
			})
		},
		ValidArgsFunction: p.completePools,
	}
	cmd.Flags().BoolVar(&apply, "apply", false, "Release the addresses.")
	return cmd
}

// releaseHeldResult is a plan that was written to the pool as an annotation.
type releaseHeldResult struct {
	inspect.HeldReleasePlan

	Annotated bool `json:"annotated"`
}

func (env Env) formatHeldReleasePlan(plan inspect.HeldReleasePlan) string {
	var out strings.Builder
	if len(plan.Entries) == 0 {
		return "Nothing of " + plan.Pool + " is held.\n"
	}
	t := &table{}
	t.addRow("RANGE", "REASON", "CLAIM", "RELEASED")
	for _, e := range plan.Entries {
		claim, released := e.Claim, tableCell{"yes", env.yellow}
		if claim == "" {
			claim = "-"
		}
		if !e.WillRelease {
			released = tableCell{"no", nil}
		}
		t.addRow(e.Range, e.Reason, claim, released)
	}
	out.WriteString(t.String())
	if plan.Annotation == "" {
		return out.String()
	}
	fmt.Fprintf(&out, "Nothing has been written yet. When nothing uses these addresses in the other management cluster, run again with --apply, or set\n"+
		"on %s the annotation\n  %s: %s\n", plan.Pool, v1alpha1.ReleaseHeldAnnotation, plan.Annotation)
	return out.String()
}
