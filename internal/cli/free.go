package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/allocator"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/inspect"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// freeResult is the result of the command `free`.
type freeResult struct {
	Pool string `json:"pool"`
	// ClosedReason gives the reason why the pool grants nothing now; empty where it grants.
	ClosedReason string `json:"closed,omitempty"`
	// Count is the number of addresses that the user asks for. Fits reports whether they would be granted, at Range.
	Count int64  `json:"count"`
	Fits  bool   `json:"fits"`
	Range string `json:"range,omitempty"`
	// Free and LargestFree count addresses, or prefixes where the pool hands out prefixes.
	Free        int64 `json:"free"`
	LargestFree int64 `json:"largestFreeBlock"`
	// FailureDomains has the free addresses of each failure domain, where subnets of the pool serve failure domains.
	FailureDomains []allocator.FailureDomainFree `json:"failureDomains,omitempty"`
	// Waiting counts the claimants that wait for the pool; they come first.
	Waiting int `json:"waiting"`
	// Ranges lists the free ranges, the first hundred; More counts the others.
	Ranges []string `json:"ranges"`
	More   int      `json:"more,omitempty"`
}

// maxFreeRanges limits the free ranges that are listed.
const maxFreeRanges = 100

func (p *plugin) freeCommand() *cobra.Command {
	var n int64
	where := &namespaceOrCount{namespace: p.flags.Namespace}
	cmd := &cobra.Command{
		Use:   "free POOL",
		Short: "Show what is free in a pool, and where a block would be placed",
		Long: "Show what is free in a pool, and where a block of --count addresses would be placed now. The manager places blocks with\n" +
			"the same code. POOL is the name of a NetworkPool of the namespace, or gnp/NAME for a GlobalNetworkPool.\n" +
			"-n with a number is short for --count.",
		Example: "  kubectl butler-ipam free machines\n  kubectl butler-ipam free gnp/shared --count 8",
		Args:    exactlyOneArg("which pool"),
		RunE: func(cmd *cobra.Command, args []string) error {
			where.resolveNumber(&n, cmd.Flags().Changed("count"))
			if n < 1 {
				return fmt.Errorf("--count %d: a block has at least one address", n)
			}
			c, err := p.connectToCluster()
			if err != nil {
				return err
			}
			key, obj, err := p.readPool(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			v, err := loadPoolSnapshot(cmd.Context(), c, obj)
			if err != nil {
				return err
			}
			answer := newFreeResult(key, inspect.ClosedReason(obj), v, n)
			return p.printResult(answer.Fits, answer, func() string { return p.formatFreeResult(answer) })
		},
		ValidArgsFunction: p.completePools,
	}
	cmd.Flags().Int64Var(&n, "count", 1, "How many contiguous addresses to look for.")
	cmd.Flags().VarP(where, "namespace", "n", "The namespace of the pool, or a number, which is short for --count.")
	_ = cmd.RegisterFlagCompletionFunc("namespace", p.completeNamespaces)
	return cmd
}

// newFreeResult computes the result for n contiguous addresses from a snapshot of a pool. closed is the reason why the
// pool grants nothing, or "".
func newFreeResult(key pools.Key, closed string, v *allocator.Snapshot, n int64) freeResult {
	counts := v.Counts()
	out := freeResult{Pool: key.String(), ClosedReason: closed, Count: n, Free: counts.Available, LargestFree: counts.LargestFree, Waiting: v.WaitingCount(), Ranges: []string{}}
	out.FailureDomains = v.FreeByFailureDomain()
	var r netipx.IPRange
	if r, out.Fits = v.FindPlacement(n); closed != "" {
		out.Fits = false
	} else if out.Fits {
		out.Range = poolutil.ShowRange(r)
	}
	for r := range v.FreeRanges() {
		if len(out.Ranges) < maxFreeRanges {
			out.Ranges = append(out.Ranges, poolutil.ShowRange(r))
		} else {
			out.More++
		}
	}
	return out
}

func (env Env) formatFreeResult(f freeResult) string {
	var out strings.Builder
	request := "a claim"
	if len(f.FailureDomains) > 0 {
		request = "a claim without a failure domain"
	}
	if f.Count > 1 {
		request = fmt.Sprintf("a block of %d", f.Count)
	}
	switch {
	case f.ClosedReason != "":
		fmt.Fprintf(&out, "%s %s", f.Pool, env.red(f.ClosedReason))
	case f.Fits:
		fmt.Fprintf(&out, "%s%s would get %s of %s", strings.ToUpper(request[:1]), request[1:], env.green(f.Range), f.Pool)
	default:
		fmt.Fprintf(&out, "%s has %s for %s", f.Pool, env.red("no room"), request)
	}
	if f.Waiting > 0 {
		out.WriteString("; " + text.FormatCount(f.Waiting, "other waits", "others wait") + " for this pool")
	}
	addresses := "addresses are"
	if f.Free == 1 {
		addresses = "address is"
	}
	fmt.Fprintf(&out, ".\n%s %s free; the largest free block has %s.\n", formatAmount(f.Free), addresses, formatAmount(f.LargestFree))
	for _, in := range f.FailureDomains {
		domain := "for failure domain " + in.FailureDomain
		if in.FailureDomain == "" {
			domain = "without a failure domain"
		}
		fmt.Fprintf(&out, "  %s: %s\n", domain, formatAmount(in.Free))
	}
	for _, r := range f.Ranges {
		fmt.Fprintln(&out, "  "+r)
	}
	if f.More > 0 {
		fmt.Fprintf(&out, "  and %s\n", text.FormatCount(f.More, "more range", "more ranges"))
	}
	return out.String()
}
