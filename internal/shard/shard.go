// Package shard distributes work over several managers by the names of the objects.
package shard

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
)

// Shard is one of several equal parts of all objects. The zero value is all of them.
type Shard struct{ index, count int }

// Parse parses a shard, for example "2/3" for the second of three. The empty string means all objects.
func Parse(text string) (Shard, error) {
	if text == "" {
		return Shard{}, nil
	}
	i, n, _ := strings.Cut(text, "/")
	index, err := strconv.Atoi(i)
	count, err2 := strconv.Atoi(n)
	if err != nil || err2 != nil || index < 1 || index > count {
		return Shard{}, fmt.Errorf("%q is not a shard: 1/3 is the first of three", text)
	}
	return Shard{index, count}, nil
}

// Has reports whether an object belongs to the shard. It uses rendezvous hashing, so that a change of the number of
// shards moves as few objects as possible. namespace is empty for cluster-scoped objects.
func (s Shard) Has(kind, namespace, name string) bool {
	if s.count < 2 {
		return true
	}
	best, highest := 0, uint64(0)
	for i := 1; i <= s.count; i++ {
		// None of the three contains a slash.
		sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s/%s/%d", kind, namespace, name, i))
		if weight := binary.BigEndian.Uint64(sum[:]); best == 0 || weight > highest {
			best, highest = i, weight
		}
	}
	return best == s.index
}

// IsWhole reports whether the shard is all objects: no other manager serves a part.
func (s Shard) IsWhole() bool { return s.count < 2 }

// LeaseNameSuffix returns the suffix for the names of leader election Leases, so that each shard has its own leader.
func (s Shard) LeaseNameSuffix() string {
	if s.count < 2 {
		return ""
	}
	return fmt.Sprintf("-%d-of-%d", s.index, s.count)
}

// Count returns the number of shards.
func (s Shard) Count() int { return max(s.count, 1) }
