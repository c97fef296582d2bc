package page

import (
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// severity is the severity of a state, by which the page colours it.
type severity string

// The severities, the worst last.
const (
	severityNone     severity = ""
	severityWarning  severity = "warn"
	severityCritical severity = "bad"
)

// The shares of use from which a pool is yellow and red.
const (
	warningShare  = 0.85
	criticalShare = 0.95
)

// usageSeverity returns the severity of the usage of a pool. A parent of carved pools is full when all of it is in
// blocks, which is its purpose: that is no problem as long as nothing waits for it.
func usageSeverity(v grants.PoolView, isParent bool) severity {
	used := usedShare(v)
	switch {
	case isParent && v.WaitingCount == 0, used < warningShare:
		return severityNone
	case used < criticalShare:
		return severityWarning
	}
	return severityCritical
}

// poolSeverity returns the severity of all problems of a pool. Its usage has a severity of its own: a pool that is not
// ready need not be full.
func poolSeverity(v grants.PoolView, isParent bool) severity {
	full := usageSeverity(v, isParent)
	switch {
	case v.ReadyCondition.Status == "False", v.WaitingCount > 0, full == severityCritical:
		return severityCritical
	case full == severityWarning, v.Counts.OutOfRange > 0:
		return severityWarning
	}
	return severityNone
}

// usedShare returns the used share of a pool, from 0 to 1.
func usedShare(v grants.PoolView) float64 {
	if v.Counts.Total == 0 {
		return 0
	}
	return float64(v.Counts.Allocated) / float64(v.Counts.Total)
}

// parentPools returns the pools from which others are carved.
func parentPools(all []grants.PoolView) map[pools.Key]bool {
	out := map[pools.Key]bool{}
	for _, v := range all {
		if v.ParentKey != (pools.Key{}) {
			out[v.ParentKey] = true
		}
	}
	return out
}
