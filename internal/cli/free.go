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

// freeAnswer is what `free` found out.
type freeAnswer struct {
	Pool string `json:"pool"`
	// Closed says why the pool grants nothing now, empty where it does.
	Closed string `json:"closed,omitempty"`
	// Count is how many were asked for; Fits: they would be granted, at Range.
	Count int64  `json:"count"`
	Fits  bool   `json:"fits"`
	Range string `json:"range,omitempty"`
	// Free and Largest are of addresses, or of prefixes where the pool hands out prefixes.
	Free    int64 `json:"free"`
	Largest int64 `json:"largestFreeBlock"`
	// FailureDomains are what of it is free for each, where subnets of the pool serve failure domains.
	FailureDomains []allocator.FreeIn `json:"failureDomains,omitempty"`
	// Waiting want something of the pool, and come first.
	Waiting int `json:"waiting"`
	// Ranges are the free ones, the first hundred.
	Ranges []string `json:"ranges"`
	More   int      `json:"more,omitempty"`
}

// maxRanges is how many free ranges are listed.
const maxRanges = 100

func (p *plugin) freeCommand() *cobra.Command {
	var n int64
	where := &namespaceOrCount{namespace: p.flags.Namespace}
	cmd := &cobra.Command{
		Use:   "free POOL",
		Short: "Say what is free in a pool, and where a block would be placed",
		Long: "Say what is free in a pool, and where a block of --count addresses would be placed now. The manager places blocks with\n" +
			"the same code. POOL is the name of a NetworkPool of the namespace, or gnp/NAME for a GlobalNetworkPool.\n" +
			"-n with a number is short for --count.",
		Example: "  kubectl butler-ipam free machines\n  kubectl butler-ipam free gnp/shared --count 8",
		Args:    oneArg("which pool"),
		RunE: func(cmd *cobra.Command, args []string) error {
			where.settle(&n, cmd.Flags().Changed("count"))
			if n < 1 {
				return fmt.Errorf("--count %d: a block has at least one address", n)
			}
			c, err := p.connect()
			if err != nil {
				return err
			}
			key, obj, err := p.readPool(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			v, err := look(cmd.Context(), c, obj)
			if err != nil {
				return err
			}
			answer := freeIn(key, inspect.Closed(obj), v, n)
			return p.answer(answer.Fits, answer, func() string { return p.freeText(answer) })
		},
		ValidArgsFunction: p.completePools,
	}
	cmd.Flags().Int64Var(&n, "count", 1, "How many contiguous addresses to look for.")
	cmd.Flags().VarP(where, "namespace", "n", "The namespace of the pool, or a number, which is short for --count.")
	_ = cmd.RegisterFlagCompletionFunc("namespace", p.completeNamespaces)
	return cmd
}

// freeIn looks into a pool.
func freeIn(key pools.Key, closed string, v *allocator.Snapshot, n int64) freeAnswer {
	counts := v.Counts()
	out := freeAnswer{Pool: key.String(), Closed: closed, Count: n, Free: counts.Available, Largest: counts.LargestFree, Waiting: v.Waiting(), Ranges: []string{}}
	out.FailureDomains = v.FailureDomains()
	var r netipx.IPRange
	if r, out.Fits = v.Place(n); closed != "" {
		out.Fits = false
	} else if out.Fits {
		out.Range = poolutil.ShowRange(r)
	}
	for r := range v.Free() {
		if len(out.Ranges) < maxRanges {
			out.Ranges = append(out.Ranges, poolutil.ShowRange(r))
		} else {
			out.More++
		}
	}
	return out
}

func (p *plugin) freeText(f freeAnswer) string {
	var out strings.Builder
	what := "a claim"
	if len(f.FailureDomains) > 0 {
		what = "a claim without a failure domain"
	}
	if f.Count > 1 {
		what = fmt.Sprintf("a block of %d", f.Count)
	}
	switch {
	case f.Closed != "":
		fmt.Fprintf(&out, "%s %s", f.Pool, p.red(f.Closed))
	case f.Fits:
		fmt.Fprintf(&out, "%s%s would get %s of %s", strings.ToUpper(what[:1]), what[1:], p.green(f.Range), f.Pool)
	default:
		fmt.Fprintf(&out, "%s has %s for %s", f.Pool, p.red("no room"), what)
	}
	if f.Waiting > 0 {
		out.WriteString("; " + text.Count(f.Waiting, "other waits", "others wait") + " for this pool")
	}
	addresses := "addresses are"
	if f.Free == 1 {
		addresses = "address is"
	}
	fmt.Fprintf(&out, ".\n%s %s free; the largest free block has %s.\n", amount(f.Free), addresses, amount(f.Largest))
	for _, in := range f.FailureDomains {
		domain := "for failure domain " + in.FailureDomain
		if in.FailureDomain == "" {
			domain = "without a failure domain"
		}
		fmt.Fprintf(&out, "  %s: %s\n", domain, amount(in.Free))
	}
	for _, r := range f.Ranges {
		fmt.Fprintln(&out, "  "+r)
	}
	if f.More > 0 {
		fmt.Fprintf(&out, "  and %s\n", text.Count(f.More, "more range", "more ranges"))
	}
	return out.String()
}
