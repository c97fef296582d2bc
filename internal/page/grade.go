package page

import (
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// grade is how bad something is, as the page colours it.
type grade string

// The grades, the worst last.
const (
	well grade = ""
	warn grade = "warn"
	bad  grade = "bad"
)

// The shares from which a pool is yellow and red.
const (
	warnShare = 0.85
	badShare  = 0.95
)

// fullness is how bad it is that so much of a pool is used. A pool from which others are carved is full where all of it is in
// blocks, which is what it is for: that is no trouble as long as nothing waits for it.
func fullness(v grants.View, isParent bool) grade {
	used := share(v)
	switch {
	case isParent && v.Waiting == 0, used < warnShare:
		return well
	case used < badShare:
		return warn
	}
	return bad
}

// gradeOf is how much a pool is in trouble, for whatever reason. How full it is has a colour of its own: a pool that is not
// ready need not be full.
func gradeOf(v grants.View, isParent bool) grade {
	full := fullness(v, isParent)
	switch {
	case v.Ready.Status == "False", v.Waiting > 0, full == bad:
		return bad
	case full == warn, v.Counts.OutOfRange > 0:
		return warn
	}
	return well
}

// share is how much of a pool is used, from 0 to 1.
func share(v grants.View) float64 {
	if v.Counts.Total == 0 {
		return 0
	}
	return float64(v.Counts.Allocated) / float64(v.Counts.Total)
}

// parentsAmong are the pools from which others are carved.
func parentsAmong(all []grants.View) map[pools.Key]bool {
	out := map[pools.Key]bool{}
	for _, v := range all {
		if v.Parent != (pools.Key{}) {
			out[v.Parent] = true
		}
	}
	return out
}
