package allocator

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/agext/levenshtein"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// suggestPoolName returns in parentheses which pool the name of a missing one may mean: that of the other kind, or one
// of the same namespace whose name is within maxEditDistance. Of a pool in another namespace it reveals no more than
// that there is one: it may be another tenant's. Empty means that none is known.
func (o *overlapIndex) suggestPoolName(missing pools.Key) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var near []pools.Key
	elsewhere := false
	for key, declaration := range o.specs {
		if declaration.mirroredPool != "" {
			continue // claims name the pool that it mirrors
		}
		isGlobal := key.Kind == v1alpha1.GlobalNetworkPoolKind
		switch {
		case isGlobal || key.Namespace == missing.Namespace:
			if editDistance(key.Name, missing.Name) <= maxEditDistance {
				near = append(near, key)
			}
		case key.Name == missing.Name:
			elsewhere = true
		}
	}
	if len(near) > 0 {
		best := slices.MinFunc(near, func(a, b pools.Key) int {
			return cmp.Or(cmp.Compare(editDistance(a.Name, missing.Name), editDistance(b.Name, missing.Name)), a.Compare(b))
		})
		return fmt.Sprintf(" (did you mean %s?)", best)
	}
	if elsewhere && missing.Kind == v1alpha1.NetworkPoolKind {
		return fmt.Sprintf(" (another namespace has a pool of that name; only a %s is for all namespaces)", v1alpha1.GlobalNetworkPoolKind)
	}
	return ""
}

// NearestName returns the name of among that is nearest to another one, within maxEditDistance; the first one of
// several; empty if there is none.
func NearestName(to string, among []string) string {
	nearest, least := "", maxEditDistance+1
	for _, name := range among {
		if n := editDistance(name, to); n < least {
			nearest, least = name, n
		}
	}
	return nearest
}

// maxEditDistance is the largest edit distance between two names that are near to each other.
const maxEditDistance = 2

// editDistance returns the number of characters that are added, removed or replaced between two names, up to
// maxEditDistance+1. Names of up to maxEditDistance characters are never near to each other.
func editDistance(a, b string) int {
	if a != b && min(len(a), len(b)) <= maxEditDistance {
		return maxEditDistance + 1
	}
	return levenshtein.Distance(a, b, levenshtein.NewParams().MaxCost(maxEditDistance))
}
