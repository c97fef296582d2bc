package carve

import (
	"fmt"
	"slices"
)

// MaxDepth is how often addresses may be carved: a pool has at most this many pools above it.
const MaxDepth = 4

// Ancestors returns the pools above a carved pool, its parent first, as far as they are known. parentOf returns the
// pool that a pool is carved from, the zero K if it is not carved, and whether the given pool exists. problem states
// why nothing can be carved for the pool, in a form that ends a sentence.
func Ancestors[K interface {
	comparable
	fmt.Stringer
}](pool K, parentOf func(K) (parent K, exists bool),
) (above []K, problem string) {
	var none K
	at, _ := parentOf(pool)
	for at != none {
		next, exists := parentOf(at)
		switch {
		case !exists && len(above) == 0:
			return nil, fmt.Sprintf("%s, which it is carved from, does not exist", at)
		case !exists:
			return above, ""
		case at == pool, slices.Contains(above, at):
			return nil, fmt.Sprintf("it is carved from itself, by way of %s; one of these pools needs addresses of its own", at)
		case len(above) == MaxDepth:
			return nil, fmt.Sprintf("it is carved more than %d levels below %s; carve it from one that is further up", MaxDepth, at)
		}
		above = append(above, at)
		at = next
	}
	return above, ""
}
