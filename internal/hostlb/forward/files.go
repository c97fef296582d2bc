//go:build linux

package forward

import (
	"fmt"
	"math"
	"sync"
	"syscall"
)

const (
	// filesPerConnection is how many files a TCP connection has at most: the socket of the client, that of the backend,
	// and both ends of a pipe for each direction.
	filesPerConnection = 6
	// filesPerSession is how many files a UDP client has: its socket to the backend.
	filesPerSession = 1
)

// FileLimit returns how many files a Forwarder may use in this process: 0.8 of RLIMIT_NOFILE, which Go raises to the
// hard limit when it starts.
func FileLimit() (int64, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("reading how many files may be open: %w", err)
	}
	return int64(min(limit.Cur, math.MaxInt32)) * 8 / 10, nil
}

// fileBudget counts the files in use, in all and by owner.
type fileBudget struct {
	mu          sync.Mutex
	used        int64
	usedByOwner map[string]int64
	// ownerCount is the number of owners.
	ownerCount int64
}

// setOwnerCount sets the number of owners.
func (f *fileBudget) setOwnerCount(owners int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ownerCount = int64(owners)
}

// tryAcquire reports whether an owner may use n more files, and if so counts them. The owner may use its share of one
// half of the limit, whatever others use, and of the other half what no other owner uses. A limit of 0 means no limit.
func (f *fileBudget) tryAcquire(n, limit int64, owner string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if limit > 0 {
		share := limit / 2 / max(f.ownerCount, 1)
		beyond := max(f.usedByOwner[owner]+n-share, 0)
		for other, used := range f.usedByOwner {
			if other != owner {
				beyond += max(used-share, 0)
			}
		}
		if f.used+n > limit || (f.usedByOwner[owner]+n > share && beyond > limit-share*f.ownerCount) {
			return false
		}
	}
	if f.usedByOwner == nil {
		f.usedByOwner = map[string]int64{}
	}
	f.usedByOwner[owner] += n
	f.used += n
	return true
}

func (f *fileBudget) release(n int64, owner string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.used -= n
	if f.usedByOwner[owner] -= n; f.usedByOwner[owner] <= 0 {
		delete(f.usedByOwner, owner)
	}
}
