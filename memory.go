package main

import (
	"os"
	"runtime/debug"
)

// boundGarbage lets garbage grow to a tenth of what lives, headroom included: some megabytes, in a small
// fleet as in a large one. A percentage alone collects all the time in the one, or wastes in the other.
// The headroom is to be kept and never touched: so it takes address space alone. GOGC in the environment
// is respected.
func boundGarbage() (headroom []byte) {
	if os.Getenv("GOGC") != "" {
		return nil
	}
	debug.SetGCPercent(10)
	headroom = make([]byte, 20<<20)
	untouch(headroom)
	return headroom
}
