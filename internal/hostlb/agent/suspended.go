//go:build linux

package agent

import (
	"time"

	"golang.org/x/sys/unix"
)

// suspended is for how long the machine was suspended since it was booted: the clock that everything here is measured by stands
// still then, as does that of the lifetimes of addresses.
func suspended() time.Duration {
	return clock(unix.CLOCK_BOOTTIME) - clock(unix.CLOCK_MONOTONIC)
}

func clock(id int32) time.Duration {
	var is unix.Timespec
	if err := unix.ClockGettime(id, &is); err != nil {
		return 0 // there is no such Linux
	}
	return time.Duration(is.Nano())
}
