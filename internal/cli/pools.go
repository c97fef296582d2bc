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
			c, namespace, err := p.connectToNamespace(all)
			if err != nil {
				return err
			}
			found, err := readPools(cmd.Context(), c, namespace)
			if err != nil {
				return err
			}
			rows := inspect.DescribePools(found)
			return p.printOutput(itemList[inspect.PoolRow]{rows}, func() string {
				if len(rows) == 0 {
					if all {
						return "There are no pools.\n"
					}
					return "There are no pools in namespace " + namespace + ", and no global ones; -A shows those of all namespaces.\n"
				}
				return p.formatPoolTable(rows)
			})
		},
	}
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "Show the pools of all namespaces.")
	return cmd
}

// maxShownRanges limits the ranges of a pool in the table.
const maxShownRanges = 2

func (env Env) formatPoolTable(rows []inspect.PoolRow) string {
	t := &table{}
	t.addRow("NAMESPACE", "NAME", "KIND", "ADDRESSES", "TOTAL", "FREE", "USED", "LARGEST", "USAGE", "READY")
	for _, r := range rows {
		namespace := r.Namespace
		if namespace == "" {
			namespace = "-"
		}
		addresses := strings.Join(r.Addresses, ",")
		if n := len(r.Addresses) - maxShownRanges; n > 0 {
			addresses = strings.Join(r.Addresses[:maxShownRanges], ",") + ",+" + strconv.Itoa(n)
		}
		ready := tableCell{r.Ready, env.green}
		if r.Ready != "True" {
			ready = tableCell{r.Ready, env.red}
			if r.Reason != "" {
				ready.text += " (" + r.Reason + ")"
			}
		}
		t.addRow(namespace, strings.Repeat("  ", r.Level)+r.Name, r.Kind, addresses, formatAmount(r.Total), formatAmount(r.Free), formatAmount(r.Used), formatAmount(r.LargestFree),
			tableCell{formatUsageBar(r.UsedPercent, env.Unicode), env.usageColour(r.UsedPercent)}, ready)
	}
	return t.String()
}
