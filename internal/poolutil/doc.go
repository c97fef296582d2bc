// Package poolutil implements the arithmetic of address pools: ranges of addresses, and the free space among them. It
// does not depend on Kubernetes.
//
// A range is a netipx.IPRange, inclusive at both ends, so that the last address of a family needs no special case.
// Nothing is enumerated unless the caller asks for it: a range costs the same whether it has one address or all of
// IPv6. Counts are exact up to math.MaxInt64, and saturate there.
package poolutil
