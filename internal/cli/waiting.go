package cli

import (
	"cmp"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/inspect"
)

func (p *plugin) waitingCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:     "waiting",
		Short:   "Show the claims, blocks and leases that wait, and why",
		Long:    "Show the claims, blocks and leases of the namespace that have no address, the oldest first, and their\nconditions. `explain` shows the details of one.",
		Example: "  kubectl butler-ipam waiting\n  kubectl butler-ipam waiting -A -o json",
		Args:    noArgs("waiting shows all that wait; for one, use `explain claim/NAME`"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, namespace, err := p.connectToNamespace(all)
			if err != nil {
				return err
			}
			found, err := readObjects(cmd.Context(), c, namespace)
			if err != nil {
				return err
			}
			rows := inspect.ListWaiting(found)
			return p.printOutput(itemList[inspect.WaitingClaimant]{rows}, func() string {
				switch {
				case len(rows) > 0:
					return p.formatWaitingTable(rows)
				case all:
					return "Nothing waits.\n"
				}
				return "Nothing waits in namespace " + namespace + "; -A lists all namespaces.\n"
			})
		},
	}
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "Show those of all namespaces.")
	return cmd
}

func (env Env) formatWaitingTable(rows []inspect.WaitingClaimant) string {
	t := &table{}
	t.addRow("NAMESPACE", "KIND", "NAME", "POOL", "AGE", "REASON", "MESSAGE")
	for _, r := range rows {
		t.addRow(r.Namespace, r.Kind, r.Name, r.Pool, duration.HumanDuration(env.Now().Sub(r.Since)), tableCell{cmp.Or(r.Reason, "-"), env.red}, r.Message)
	}
	return t.String()
}
