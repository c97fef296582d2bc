// Package cooling stores the addresses that cool down after their release in as little space as possible: each grant
// writes the whole status of the pool, and an object in a list costs the API server about four times as much as its
// text.
package cooling

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// stepsPerGrace is the number of moments within a grace period at which entries end, and so the number of groups in a
// status, plus one or two. With a grace period of less than 16 seconds there are up to twice as many, because entries
// end on whole seconds.
const stepsPerGrace = 8

// Entry is a range that is reserved until a time for claims of one name.
type Entry struct {
	Range netipx.IPRange
	Until time.Time
	// Claim is the claim that released the range. Its name is empty if it is not on record any more.
	Claim types.NamespacedName
}

// StepForGrace returns the distance between the ends of entries: an eighth of the grace period, in whole seconds, at
// least one second.
func StepForGrace(grace time.Duration) time.Duration {
	return max((grace / stepsPerGrace).Truncate(time.Second), time.Second)
}

// EndOfCooling returns the time when a range that is released at now may be granted to any claim: not before the end
// of the grace period, and less than a step after it.
func EndOfCooling(now time.Time, grace time.Duration) time.Time {
	step := StepForGrace(grace)
	until := now.Add(grace)
	if whole := until.Truncate(step); !whole.Equal(until) {
		until = whole.Add(step)
	}
	return until
}

// FormatGroups formats entries for a status: one group for each time at which entries end, in the order of these
// times, and in each group the ranges in the order of their addresses.
func FormatGroups(rests []Entry) []v1alpha1.CoolingGroup {
	rests = slices.Clone(rests)
	slices.SortFunc(rests, func(a, b Entry) int {
		return cmp.Or(a.Until.Compare(b.Until), a.Range.From().Compare(b.Range.From()), a.Range.To().Compare(b.Range.To()))
	})
	var out []v1alpha1.CoolingGroup
	for _, r := range rests {
		if last := len(out) - 1; last >= 0 && out[last].Until.Time.Equal(r.Until) {
			out[last].Addresses += separator + formatEntry(r)
			continue
		}
		out = append(out, v1alpha1.CoolingGroup{Until: metav1.NewTime(r.Until), Addresses: formatEntry(r)})
	}
	return out
}

const separator = ", "

// HasRoomForEntry reports whether a status has room for another range of the longest possible addresses, without a
// name. Without that room, deleted claims may have to wait for it.
func HasRoomForEntry(groups []v1alpha1.CoolingGroup) bool {
	size := len("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
	for _, g := range groups {
		size += len(g.Addresses) + len(separator)
	}
	return size <= MaxTextSize
}

func formatEntry(r Entry) string {
	text := poolutil.ShowRange(r.Range)
	if r.Claim.Name != "" {
		text += " " + r.Claim.String()
	}
	return text
}

// ParseGroups parses the result of FormatGroups. It leaves out entries that cannot be parsed, and returns the error
// of the first of them.
func ParseGroups(groups []v1alpha1.CoolingGroup) (out []Entry, err error) {
	for _, g := range groups {
		for text := range strings.SplitSeq(g.Addresses, ",") {
			r, parseErr := parseEntry(strings.TrimSpace(text))
			if parseErr != nil {
				err = cmp.Or(err, fmt.Errorf("status.cooling: %w", parseErr))
				continue
			}
			r.Until = g.Until.Time
			out = append(out, r)
		}
	}
	return out, err
}

func parseEntry(text string) (r Entry, err error) {
	addresses, name, _ := strings.Cut(text, " ")
	r.Claim.Namespace, r.Claim.Name, _ = strings.Cut(name, "/")
	r.Range, err = poolutil.ParseRange(addresses)
	return r, err
}
