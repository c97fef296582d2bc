//go:build linux

package agent

import (
	"time"

	"golang.org/x/sys/unix"
)

// suspendedDuration returns for how long the machine was suspended since its boot. The clock that everything here is
// measured by stops meanwhile, as does that of the lifetimes of addresses.
func suspendedDuration() time.Duration {
	return readClock(unix.CLOCK_BOOTTIME) - readClock(unix.CLOCK_MONOTONIC)
}

func readClock(id int32) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		return 0 // every Linux has both clocks
	}
	return time.Duration(ts.Nano())
}
