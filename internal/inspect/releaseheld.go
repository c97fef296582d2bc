package inspect

import (
	"fmt"
	"slices"
	"strings"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// HeldEntry is an entry of status.held.
type HeldEntry struct {
	Range  string `json:"range"`
	Reason string `json:"reason"`
	// Claim had the addresses, where that is on record.
	Claim string `json:"claim,omitempty"`
	// ID is that of the entry, empty until the manager has given it one.
	ID string `json:"id,omitempty"`
	// Release: it is released by the annotation.
	Release bool `json:"release"`
}

// HeldRelease is what a release of held addresses would do.
type HeldRelease struct {
	Pool    string      `json:"pool"`
	Entries []HeldEntry `json:"entries"`
	// Annotation is the value of butler.butlerlabs.dev/release-held, empty where nothing is released.
	Annotation string `json:"annotation,omitempty"`
}

// ReleaseHeld plans the release of the entries of status.held that lie in the ranges; without ranges, of all whose
// addresses were moved. The annotation goes on naming the entries that it names already.
func ReleaseHeld(pool v1alpha1.Pool, name string, ranges []netipx.IPRange) (HeldRelease, error) {
	out := HeldRelease{Pool: name, Entries: []HeldEntry{}}
	asked, err := grants.Releases(pool.GetAnnotations()[v1alpha1.ReleaseHeldAnnotation])
	if err != nil {
		asked = nil // the manager says what is wrong with it, and it is written anew
	}
	unused := slices.Clone(ranges)
	var value []string
	for _, h := range pool.PoolStatus().Held {
		r, err := poolutil.ParseRange(h.First + "-" + h.Last)
		if err != nil {
			continue // no manager has written it
		}
		e := HeldEntry{Range: poolutil.ShowRange(r), Reason: h.Reason, Claim: h.Name, ID: h.ID}
		if h.Namespace != "" {
			e.Claim = h.Namespace + "/" + h.Name
		}
		named := grants.ReleaseOf(h)
		e.Release = slices.Contains(asked, named) || (len(ranges) == 0 && h.Reason == v1alpha1.MovedReason)
		for _, wanted := range ranges {
			switch {
			case wanted.Contains(r.From()) && wanted.Contains(r.To()):
				e.Release = true
			case wanted.Overlaps(r):
				return out, fmt.Errorf("%s is part of the entry %s of status.held, which is released as a whole or not at all: name all of it", poolutil.ShowRange(wanted), e.Range)
			default:
				continue
			}
			unused = slices.DeleteFunc(unused, func(u netipx.IPRange) bool { return u == wanted })
		}
		if e.Release && named == "" {
			return out, fmt.Errorf("the entry %s of status.held has no id yet: the manager gives it one within a minute, so try again then", e.Range)
		}
		if e.Release {
			value = append(value, named)
		}
		out.Entries = append(out.Entries, e)
	}
	if len(unused) > 0 {
		return out, fmt.Errorf("nothing in %s is held: look at status.held of %s", poolutil.ShowRange(unused[0]), name)
	}
	out.Annotation = strings.Join(value, ",")
	return out, nil
}
