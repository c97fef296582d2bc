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
		Long:    "Show the claims, blocks and leases of the namespace that have no address, the oldest first, and what their\nconditions say. `explain` says more of one.",
		Example: "  kubectl butler-ipam waiting\n  kubectl butler-ipam waiting -A -o json",
		Args:    noArgs("waiting shows all that wait; for one, use `explain claim/NAME`"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, namespace, err := p.connectIn(all)
			if err != nil {
				return err
			}
			found, err := read(cmd.Context(), c, namespace)
			if err != nil {
				return err
			}
			rows := inspect.WhoWaits(found)
			return p.print(items[inspect.Waiting]{rows}, func() string {
				switch {
				case len(rows) > 0:
					return p.waitingTable(rows)
				case all:
					return "Nothing waits.\n"
				}
				return "Nothing waits in namespace " + namespace + "; -A looks at all namespaces.\n"
			})
		},
	}
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "Show those of all namespaces.")
	return cmd
}

func (p *plugin) waitingTable(rows []inspect.Waiting) string {
	t := &table{}
	t.add("NAMESPACE", "KIND", "NAME", "POOL", "AGE", "REASON", "MESSAGE")
	for _, r := range rows {
		t.add(r.Namespace, r.Kind, r.Name, r.Pool, duration.HumanDuration(p.Now().Sub(r.Since)), cell{cmp.Or(r.Reason, "-"), p.red}, r.Message)
	}
	return t.String()
}
