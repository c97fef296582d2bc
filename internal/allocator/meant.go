package allocator

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/agext/levenshtein"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// meant says in parentheses which pool may be meant by the name of one that does not exist: that of the other kind, or one of
// the same namespace whose name is a slip away. Of a pool in another namespace it says no more than that there is one: it may be
// another tenant's. Empty: none is known.
func (o *overlaps) meant(missing pools.Key) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var near []pools.Key
	elsewhere := false
	for key, is := range o.specs {
		if is.mirrored != "" {
			continue // claims name what it mirrors
		}
		isGlobal := key.Kind == v1alpha1.GlobalNetworkPoolKind
		switch {
		case isGlobal || key.Namespace == missing.Namespace:
			if slips(key.Name, missing.Name) <= mostSlips {
				near = append(near, key)
			}
		case key.Name == missing.Name:
			elsewhere = true
		}
	}
	if len(near) > 0 {
		best := slices.MinFunc(near, func(a, b pools.Key) int {
			return cmp.Or(cmp.Compare(slips(a.Name, missing.Name), slips(b.Name, missing.Name)), a.Compare(b))
		})
		return fmt.Sprintf(" (did you mean %s?)", best)
	}
	if elsewhere && missing.Kind == v1alpha1.NetworkPoolKind {
		return fmt.Sprintf(" (another namespace has a pool of that name; only a %s is for all namespaces)", v1alpha1.GlobalNetworkPoolKind)
	}
	return ""
}

// Nearest returns the name that is nearest to another one, where it is a slip away, the first one of several; empty: none is.
func Nearest(to string, among []string) string {
	nearest, least := "", mostSlips+1
	for _, name := range among {
		if n := slips(name, to); n < least {
			nearest, least = name, n
		}
	}
	return nearest
}

// mostSlips is how many slips two names may be apart.
const mostSlips = 2

// slips counts the characters that are added, left out or replaced between two names, as far as mostSlips. Names of up to
// mostSlips characters are never near to each other.
func slips(a, b string) int {
	if a != b && min(len(a), len(b)) <= mostSlips {
		return mostSlips + 1
	}
	return levenshtein.Distance(a, b, levenshtein.NewParams().MaxCost(mostSlips))
}
