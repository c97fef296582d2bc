package poolutil_test

import (
	"fmt"
	"net/netip"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

func set(texts ...string) *netipx.IPSet {
	var b netipx.IPSetBuilder
	for _, s := range texts {
		r, err := poolutil.ParseRange(s)
		if err != nil {
			panic(err)
		}
		b.AddRange(r)
	}
	s, err := b.IPSet()
	if err != nil {
		panic(err)
	}
	return s
}

func ExampleParseRange() {
	for _, s := range []string{"10.40.0.0/30", "10.40.0.9-10.40.0.1"} {
		r, err := poolutil.ParseRange(s)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(r, poolutil.Size(r))
	}
	// Output:
	// 10.40.0.0-10.40.0.3 4
	// parsing "10.40.0.9-10.40.0.1": end 10.40.0.1 is before start 10.40.0.9
}

func ExampleFormatRange() {
	for _, s := range []string{"10.40.0.0-10.40.0.15", "10.40.0.1-10.40.0.15", "10.40.0.7"} {
		r, _ := poolutil.ParseRange(s)
		fmt.Println(poolutil.FormatRange(r))
	}
	// Output:
	// 10.40.0.0/28
	// 10.40.0.1-10.40.0.15
	// 10.40.0.7/32
}

func ExampleUsable() {
	fmt.Println(poolutil.Usable(netip.MustParsePrefix("10.40.0.0/28")))
	fmt.Println(poolutil.Usable(netip.MustParsePrefix("10.40.0.0/31")))
	// Output:
	// 10.40.0.1-10.40.0.14
	// 10.40.0.0-10.40.0.1
}

func ExampleTrimToPrefixes() {
	s, _ := poolutil.TrimToPrefixes(set("10.40.0.5-10.40.0.63"), 28)
	fmt.Println(s.Ranges())
	// Output: [10.40.0.16-10.40.0.63]
}

func ExampleFree_BestFit() {
	free := poolutil.NewFree(set("10.40.0.0/24", "10.40.2.0/28"))
	fmt.Println(free.BestFit(10))
	fmt.Println(free.BestFit(10))
	fmt.Println(free.BestFit(1000))
	// Output:
	// 10.40.2.0-10.40.2.9 true
	// 10.40.0.0-10.40.0.9 true
	// zero IPRange false
}

func ExampleFree_BestFitPrefix() {
	free := poolutil.NewFree(set("10.40.0.1-10.40.0.255"))
	fmt.Println(free.BestFitPrefix(28))
	// Output: 10.40.0.16/28 true
}

func ExampleFree_Put() {
	free := poolutil.NewFree(set("10.40.0.0/24"))
	r, _ := free.BestFit(8)
	free.BestFit(1)
	free.Put(r)
	for block := range free.All() {
		fmt.Println(poolutil.FormatRange(block))
	}
	fmt.Println(free.Blocks(), free.Largest(), free.FragmentationPercent())
	// Output:
	// 10.40.0.0/29
	// 10.40.0.9-10.40.0.255
	// 2 247 3
}
