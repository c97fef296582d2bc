//go:build linux

package forward

import (
	"fmt"
	"math"
	"sync"
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

// files are those in use, in all and by owner.
type files struct {
	mu   sync.Mutex
	used int64
	of   map[string]int64
	// owners is how many owners there are.
	owners int64
}

// share sets how many owners there are.
func (f *files) share(owners int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.owners = int64(owners)
}

// take reports whether an owner may use so many more, and counts them then. It may use its share of one half of the limit, whatever
// others use; of the other half, what none of them does. A limit of 0 is none.
func (f *files) take(n, limit int64, owner string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if limit > 0 {
		share := limit / 2 / max(f.owners, 1)
		beyond := max(f.of[owner]+n-share, 0)
		for other, used := range f.of {
			if other != owner {
				beyond += max(used-share, 0)
			}
		}
		if f.used+n > limit || (f.of[owner]+n > share && beyond > limit-share*f.owners) {
			return false
		}
	}
	if f.of == nil {
		f.of = map[string]int64{}
	}
	f.of[owner] += n
	f.used += n
	return true
}

func (f *files) give(n int64, owner string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.used -= n
	if f.of[owner] -= n; f.of[owner] <= 0 {
		delete(f.of, owner)
	}
}
