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
		Long:    "Show the leases of the namespace: the address of each, the pool, which Service has which port, and why one has\nno address or is not given back.",
		Example: "  kubectl butler-ipam leases\n  kubectl butler-ipam leases -A -o yaml",
		Args:    noArgs("leases shows all leases; for one, use `explain iplease/NAME`"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, namespace, err := p.connectIn(all)
			if err != nil {
				return err
			}
			found := &v1alpha1.IPLeaseList{}
			if err := list(cmd.Context(), c, namespace, found); err != nil {
				return err
			}
			if len(found.Items) == 0 {
				if err := hasPools(c); err != nil {
					return err
				}
			}
			rows := inspect.Leases(found.Items)
			return p.print(items[inspect.Lease]{rows}, func() string {
				switch {
				case len(rows) > 0:
					return p.leaseTable(rows)
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

func (p *plugin) leaseTable(rows []inspect.Lease) string {
	t := &table{}
	t.add("NAMESPACE", "NAME", "ADDRESS", "POOL", "PORTS", "READY")
	for _, r := range rows {
		ready := cell{r.Ready, p.green}
		switch {
		case r.Draining != "":
			ready = cell{"Draining: " + r.Draining, p.yellow}
		case r.NotAnnounced != "":
			ready = cell{"Not announced: " + r.NotAnnounced, p.red}
		case r.Ready != "True":
			ready = cell{r.Ready, p.red}
			if r.Reason != "" {
				ready.text += " (" + r.Reason + ")"
			}
		}
		var ports []string
		for _, has := range r.Ports {
			ports = append(ports, has.Port+" "+has.Service)
		}
		t.add(r.Namespace, r.Name, r.Address, r.Pool, strings.Join(ports, ", "), ready)
	}
	return t.String()
}
