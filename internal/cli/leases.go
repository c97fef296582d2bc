package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/inspect"
)

func (p *plugin) leasesCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:     "leases",
		Short:   "Show the leases, and which Service has which port",
		Long:    "Show the leases of the namespace: the address of each, the pool, which Service has which port, and why one has\nno address or is not released.",
		Example: "  kubectl butler-ipam leases\n  kubectl butler-ipam leases -A -o yaml",
		Args:    noArgs("leases shows all leases; for one, use `explain iplease/NAME`"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, namespace, err := p.connectToNamespace(all)
			if err != nil {
				return err
			}
			found := &v1alpha1.IPLeaseList{}
			if err := listObjects(cmd.Context(), c, namespace, found); err != nil {
				return err
			}
			if len(found.Items) == 0 {
				if err := requirePoolKind(c); err != nil {
					return err
				}
			}
			rows := inspect.DescribeLeases(found.Items)
			return p.printOutput(itemList[inspect.LeaseRow]{rows}, func() string {
				switch {
				case len(rows) > 0:
					return p.formatLeaseTable(rows)
				case all:
					return "There are no leases.\n"
				}
				return "There are no leases in namespace " + namespace + "; -A shows those of all namespaces.\n"
			})
		},
	}
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "Show the leases of all namespaces.")
	return cmd
}

func (env Env) formatLeaseTable(rows []inspect.LeaseRow) string {
	t := &table{}
	t.addRow("NAMESPACE", "NAME", "ADDRESS", "POOL", "PORTS", "READY")
	for _, r := range rows {
		ready := tableCell{r.Ready, env.green}
		switch {
		case r.DrainingReason != "":
			ready = tableCell{"Draining: " + r.DrainingReason, env.yellow}
		case r.NotAnnouncedReason != "":
			ready = tableCell{"Not announced: " + r.NotAnnouncedReason, env.red}
		case r.Ready != "True":
			ready = tableCell{r.Ready, env.red}
			if r.Reason != "" {
				ready.text += " (" + r.Reason + ")"
			}
		}
		var ports []string
		for _, port := range r.Ports {
			ports = append(ports, port.Port+" "+port.Service)
		}
		t.addRow(r.Namespace, r.Name, r.Address, r.Pool, strings.Join(ports, ", "), ready)
	}
	return t.String()
}
