package main

import (
	"os"
	"runtime/debug"
)

// headroom counts as memory that lives and is never touched: it takes address space alone.
var headroom []byte

// boundGarbage lets garbage grow to a tenth of what lives, headroom included: some megabytes, in a small
// fleet as in a large one. A percentage alone collects all the time in the one, or wastes in the other.
// GOGC in the environment is respected.
func boundGarbage() {
	if os.Getenv("GOGC") != "" {
		return
	}
	headroom = make([]byte, 40<<20)
	debug.SetGCPercent(10)
}
