// Package poolutil is the arithmetic of address pools: ranges of addresses, and the free space among
// them. It knows nothing of Kubernetes.
//
// A range is a netipx.IPRange, inclusive at both ends, so that the last address of a family needs no
// special case. Nothing is enumerated unless it is asked for: a range costs the same whether it holds
// one address or all of IPv6. Counts are exact up to math.MaxInt64 and stay there beyond it.
package poolutil
