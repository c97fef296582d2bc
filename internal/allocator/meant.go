package allocator

import (
	"cmp"
	"fmt"
	"slices"

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

// slips counts the characters that are added, left out, replaced or swapped with their neighbour between two names, as far as
// mostSlips. Names of up to mostSlips characters are never near to each other.
func slips(a, b string) int {
	if a == b {
		return 0
	}
	if min(len(a), len(b)) <= mostSlips || max(len(a), len(b))-min(len(a), len(b)) > mostSlips {
		return mostSlips + 1
	}
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			changed := 1
			if a[i-1] == b[j-1] {
				changed = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+changed)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
