package tenancy

import (
	"slices"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// DecideGrowthBlock decides which pool the next block of a Cluster that needs s.Count more addresses comes from, and
// how large that block is. Pools are asked in the same way as by DecideInitialBlock. If no pool has that many
// contiguous addresses, it asks for fewer, down to one; the remainder is left to the next block. s.Current is the
// block that was requested and is not granted yet.
//
// A pool without room for a count has none for a larger one, so attempts are remembered across all sizes. When every
// pool has refused a single address, the Cluster waits with a request for one at the first pool. A pool that reports
// room is asked for as much of the missing count as it reports.
func DecideGrowthBlock(s AllocationRequest) Decision {
	at := s.Current
	switch {
	case at != nil && at.Deleting:
		return Decision{Action: ActionWait, Attempts: s.Attempts, Reason: v1alpha1.ReconcilingReason, Message: "a block that was not granted is being given up"}
	case at != nil && s.Count <= 0:
		return Decision{Action: ActionReplace, Reason: v1alpha1.ReconcilingReason, Message: "no Service needs the block"}
	case s.Count <= 0:
		return Decision{Action: ActionDone, Reason: v1alpha1.ReadyReason}
	case len(s.Pools) == 0:
		return Decision{Action: ActionExhausted, Reason: v1alpha1.ValidationFailedReason, Message: noPoolsMessage}
	case at != nil && at.Phase != v1alpha1.AllocationFailed && at.isServedByAny(s.Pools):
		return at.waitDecision(s.Attempts)
	}
	known := smallestFailedAttempts(s)
	for n := s.Count; ; n = nextSmallerCount(n, s.Pools) {
		f := &poolFailover{AllocationRequest: s, isGrowth: true, recordedAttempts: known}
		f.Count = n
		for _, a := range known {
			if a.Count <= n {
				f.failedAttempts = WithAttempt(f.failedAttempts, a)
			}
		}
		f.addCurrentAttempt()
		if d, found := f.nextPool(); found {
			return d
		}
		if n == 1 {
			return f.returnToFirstPool()
		}
	}
}

// isServedByAny reports whether the pool of the allocation is one of pools and may still grant it.
func (s CurrentAllocation) isServedByAny(pools []Pool) bool {
	return slices.ContainsFunc(pools, func(p Pool) bool { return p.Ref == withDefaultKind(s.Pool) && p.MayGrant() })
}

// smallestFailedAttempts returns the known attempts at listed pools, for each pool the one with the smallest count
// that failed.
func smallestFailedAttempts(s AllocationRequest) []PoolAttempt {
	var out []PoolAttempt
	note := func(a PoolAttempt) {
		listed := slices.ContainsFunc(s.Pools, func(p Pool) bool { return p.Ref == a.Pool })
		less := slices.ContainsFunc(out, func(b PoolAttempt) bool { return b.Pool == a.Pool && b.Count < a.Count })
		if listed && !less {
			out = WithAttempt(out, a)
		}
	}
	for _, a := range s.Attempts {
		note(a)
	}
	if at := s.Current; at != nil && at.Phase == v1alpha1.AllocationFailed {
		note(PoolAttempt{Pool: withDefaultKind(at.Pool), Count: at.Count, Reason: at.Reason})
	}
	return out
}

// nextSmallerCount returns the next size to ask for: the largest contiguous free block that an open pool reports, if
// that is smaller than n, else half of n. A report that was wrong has been tried by then, so the number of steps is
// at most that of halving.
func nextSmallerCount(n int32, pools []Pool) int32 {
	reported := int64(0)
	for _, p := range pools {
		if p.Availability == PoolOpen {
			reported = max(reported, p.LargestFreeBlock)
		}
	}
	if reported > 0 && reported < int64(n) {
		return int32(reported)
	}
	return max(1, n/2)
}
