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
	// Claim is the claim that had the addresses, where the entry records one.
	Claim string `json:"claim,omitempty"`
	// ID is the id of the entry; empty until the manager has assigned one.
	ID string `json:"id,omitempty"`
	// WillRelease reports whether the annotation releases the entry.
	WillRelease bool `json:"release"`
}

// HeldReleasePlan is the effect of a release of held addresses.
type HeldReleasePlan struct {
	Pool    string      `json:"pool"`
	Entries []HeldEntry `json:"entries"`
	// Annotation is the value for butler.butlerlabs.dev/release-held; empty where nothing is released.
	Annotation string `json:"annotation,omitempty"`
}

// PlanHeldRelease plans the release of the entries of status.held within the ranges, or, without ranges, of all entries
// whose addresses were moved. Entries that the annotation already names remain in it. It returns an error if a range
// covers a part of an entry alone, contains no entry, or an entry has no id yet.
func PlanHeldRelease(pool v1alpha1.Pool, name string, ranges []netipx.IPRange) (HeldReleasePlan, error) {
	out := HeldReleasePlan{Pool: name, Entries: []HeldEntry{}}
	asked, err := grants.ParseHeldReleases(pool.GetAnnotations()[v1alpha1.ReleaseHeldAnnotation])
	if err != nil {
		asked = nil // the manager reports the error; the annotation is written again
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
		named := grants.FormatHeldRelease(h)
		e.WillRelease = slices.Contains(asked, named) || (len(ranges) == 0 && h.Reason == v1alpha1.MovedReason)
		for _, wanted := range ranges {
			switch {
			case wanted.Contains(r.From()) && wanted.Contains(r.To()):
				e.WillRelease = true
			case wanted.Overlaps(r):
				return out, fmt.Errorf("%s is part of the entry %s of status.held, which is released as a whole or not at all: name all of it", poolutil.ShowRange(wanted), e.Range)
			default:
				continue
			}
			unused = slices.DeleteFunc(unused, func(u netipx.IPRange) bool { return u == wanted })
		}
		if e.WillRelease && named == "" {
			return out, fmt.Errorf("the entry %s of status.held has no id yet: the manager gives it one within a minute, so try again then", e.Range)
		}
		if e.WillRelease {
			value = append(value, named)
		}
		out.Entries = append(out.Entries, e)
	}
	if len(unused) > 0 {
		return out, fmt.Errorf("no address in %s is held: see status.held of %s", poolutil.ShowRange(unused[0]), name)
	}
	out.Annotation = strings.Join(value, ",")
	return out, nil
}
