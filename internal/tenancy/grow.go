package tenancy

import (
	"slices"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Grow decides which pool the next block of a Cluster that lacks Count addresses comes from, and how large it
// is. Pools are asked as by Next. Where none has so many in a row, fewer are asked for, down to one; what is
// lacking then is the next block's. Standing is the block that was asked for and not granted yet.
//
// A pool that had no room for some has none for more: what is tried is remembered for all sizes. When every
// pool has refused a single address, the Cluster waits with that at the first; a pool that reports room is
// asked for as much of what is lacking as it reports.
func Grow(s Situation) Decision {
	at := s.Standing
	switch {
	case at != nil && at.Deleting:
		return Decision{Action: Wait, Tried: s.Tried, Reason: v1alpha1.ReconcilingReason, Message: "a block that was not granted is being given up"}
	case at != nil && s.Count <= 0:
		return Decision{Action: Replace, Reason: v1alpha1.ReconcilingReason, Message: "no Service needs the block any more"}
	case s.Count <= 0:
		return Decision{Action: Done, Reason: v1alpha1.ReadyReason}
	case len(s.Pools) == 0:
		return Decision{Action: Exhausted, Reason: v1alpha1.ValidationFailedReason, Message: noPools}
	case at != nil && at.Phase != v1alpha1.AllocationFailed && at.asksOneOf(s.Pools):
		return at.wait(s.Tried)
	}
	known := remembered(s)
	for n := s.Count; ; n = smaller(n, s.Pools) {
		f := &failover{Situation: s, grows: true, known: known}
		f.Count = n
		for _, a := range known {
			if a.Count <= n {
				f.tried = record(f.tried, a)
			}
		}
		f.ask()
		if d, found := f.next(); found {
			return d
		}
		if n == 1 {
			return f.home()
		}
	}
}

// asksOneOf reports whether a pool will answer.
func (s Standing) asksOneOf(pools []Pool) bool {
	return slices.ContainsFunc(pools, func(p Pool) bool { return p.Ref == withKind(s.Pool) && p.Grants() })
}

// remembered is what is known of the pools of the list: of each the smallest count that it had no room for.
func remembered(s Situation) []Attempt {
	var out []Attempt
	note := func(a Attempt) {
		listed := slices.ContainsFunc(s.Pools, func(p Pool) bool { return p.Ref == a.Pool })
		less := slices.ContainsFunc(out, func(b Attempt) bool { return b.Pool == a.Pool && b.Count < a.Count })
		if listed && !less {
			out = record(out, a)
		}
	}
	for _, a := range s.Tried {
		note(a)
	}
	if at := s.Standing; at != nil && at.Phase == v1alpha1.AllocationFailed {
		note(Attempt{Pool: withKind(at.Pool), Count: at.Count, Reason: at.Reason})
	}
	return out
}

// smaller is the next size to ask for: what a pool reports to have in a row, else half. A report that was
// wrong was tried by then, so there are no more steps than halves.
func smaller(n int32, pools []Pool) int32 {
	reported := int64(0)
	for _, p := range pools {
		if p.State == Open {
			reported = max(reported, p.LargestFreeBlock)
		}
	}
	if reported > 0 && reported < int64(n) {
		return int32(reported)
	}
	return max(1, n/2)
}
