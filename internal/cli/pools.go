package cli

import (
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/inspect"
)

func (p *plugin) poolsCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:     "pools",
		Short:   "Show how full the pools are",
		Long:    "Show the pools of the namespace and the global ones: what they hand out, what is used, what is free, and\nthe largest free block. Pools that are carved from another are below it.",
		Example: "  kubectl butler-ipam pools\n  kubectl butler-ipam pools -A -o yaml",
		Args:    noArgs("pools shows all pools; for one, use `free POOL`"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, namespace, err := p.connectIn(all)
			if err != nil {
				return err
			}
			found, err := readPools(cmd.Context(), c, namespace)
			if err != nil {
				return err
			}
			rows := inspect.Pools(found)
			return p.print(items[inspect.Pool]{rows}, func() string {
				if len(rows) == 0 {
					if all {
						return "There are no pools.\n"
					}
					return "There are no pools in namespace " + namespace + ", and no global ones; -A shows those of all namespaces.\n"
				}
				return p.poolTable(rows)
			})
		},
	}
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "Show the pools of all namespaces.")
	return cmd
}

// shownRanges is how many ranges of a pool the table shows.
const shownRanges = 2

func (p *plugin) poolTable(rows []inspect.Pool) string {
	t := &table{}
	t.add("NAMESPACE", "NAME", "KIND", "ADDRESSES", "TOTAL", "FREE", "USED", "LARGEST", "USAGE", "READY")
	for _, r := range rows {
		namespace := r.Namespace
		if namespace == "" {
			namespace = "-"
		}
		addresses := strings.Join(r.Addresses, ",")
		if n := len(r.Addresses) - shownRanges; n > 0 {
			addresses = strings.Join(r.Addresses[:shownRanges], ",") + ",+" + strconv.Itoa(n)
		}
		ready := cell{r.Ready, p.green}
		if r.Ready != "True" {
			ready = cell{r.Ready, p.red}
			if r.Reason != "" {
				ready.text += " (" + r.Reason + ")"
			}
		}
		t.add(namespace, strings.Repeat("  ", r.Level)+r.Name, r.Kind, addresses, amount(r.Total), amount(r.Free), amount(r.Used), amount(r.LargestFree),
			cell{bar(r.UsedPercent, p.Unicode), p.level(r.UsedPercent)}, ready)
	}
	return t.String()
}
