package main

import (
	"context"
	"os"
	"runtime/debug"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// How far garbage may grow, in percent of what lives, headroom included. A start leaves much garbage and somebody
// waits for it: there, collecting it took a third of the time. GOGC in the environment is respected.
const (
	garbageAtStart = 50
	garbage        = 10
)

// boundGarbage lets garbage grow by some megabytes, in a small fleet as in a large one. A percentage alone collects
// all the time in the one, or wastes in the other. The headroom is to be kept and never touched: so it takes address
// space alone.
func boundGarbage() (headroom []byte) {
	if os.Getenv("GOGC") != "" {
		return nil
	}
	debug.SetGCPercent(garbageAtStart)
	headroom = make([]byte, 20<<20)
	untouch(headroom)
	return headroom
}

// tightenGarbage gives back what the start has left once everything that exists was read, and bounds garbage
// tightly from then on.
func tightenGarbage(read func() bool) manager.RunnableFunc {
	return func(ctx context.Context) error {
		err := wait.PollUntilContextCancel(ctx, time.Second, true, func(context.Context) (bool, error) { return read(), nil })
		if err == nil && os.Getenv("GOGC") == "" {
			debug.SetGCPercent(garbage)
			debug.FreeOSMemory()
		}
		return nil // the manager ends
	}
}
