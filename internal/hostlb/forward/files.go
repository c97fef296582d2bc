//go:build linux

package forward

import (
	"fmt"
	"math"
	"sync/atomic"
	"syscall"
)

const (
	// filesOfConnection are the files that a connection of TCP has at most: the client's socket, the backend's, and both ends of
	// a pipe for each direction.
	filesOfConnection = 6
	// filesOfSession is the socket to the backend that a client of UDP has.
	filesOfSession = 1
)

// FileLimit is how many files a Forwarder may use in this process: 0.8 of RLIMIT_NOFILE, which Go raises to the hard limit
// when it starts.
func FileLimit() (int64, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("reading how many files may be open: %w", err)
	}
	return int64(min(limit.Cur, math.MaxInt32)) * 8 / 10, nil
}

// files are those in use.
type files struct{ used atomic.Int64 }

// take reports whether so many more may be used, and counts them then. A limit of 0 is none.
func (f *files) take(n, limit int64) bool {
	if used := f.used.Add(n); limit > 0 && used > limit {
		f.used.Add(-n)
		return false
	}
	return true
}

func (f *files) give(n int64) { f.used.Add(-n) }
