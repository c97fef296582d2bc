// Package shard spreads work over several managers by the names of what is worked on.
package shard

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
)

// Shard is one of several equal parts of all there is. The zero value is all of it.
type Shard struct{ index, count int }

// Parse reads a shard as "2/3", the second of three. The empty string is all there is.
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

// Has reports whether something of a kind belongs to the shard: by rendezvous hashing, so that another number of shards
// moves as few as can be. The namespace is empty for what is in none.
func (s Shard) Has(kind, namespace, name string) bool {
	if s.count < 2 {
		return true
	}
	best, highest := 0, uint64(0)
	for i := 1; i <= s.count; i++ {
		// None of the three has a slash.
		sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s/%s/%d", kind, namespace, name, i))
		if weight := binary.BigEndian.Uint64(sum[:]); best == 0 || weight > highest {
			best, highest = i, weight
		}
	}
	return best == s.index
}

// Whole reports whether it is all there is: no other manager serves a part.
func (s Shard) Whole() bool { return s.count < 2 }

// Suffix is what the names of leases end with: one leader each.
func (s Shard) Suffix() string {
	if s.count < 2 {
		return ""
	}
	return fmt.Sprintf("-%d-of-%d", s.index, s.count)
}

// Count is how many shards there are.
func (s Shard) Count() int { return max(s.count, 1) }
