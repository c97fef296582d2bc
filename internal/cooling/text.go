// Package cooling keeps the addresses that rest after their release, in the least room: with every grant the whole
// status of the pool is written, and an object in a list takes the API server some four times as long as its text.
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

// steps are the moments within a grace at which rests end, and so the groups in a status, but for one or two more; up
// to twice as many with a grace of less than 16 seconds, since they end on whole seconds.
const steps = 8

// Rest is a range that nobody may have until a time, but a claim of one name.
type Rest struct {
	Range netipx.IPRange
	Until time.Time
	// For is the claim that released the range. Its name is empty where it is not on record any more.
	For types.NamespacedName
}

// Step is what lies between the ends of rests: an eighth of the grace, in whole seconds, and a second at least.
func Step(grace time.Duration) time.Duration {
	return max((grace / steps).Truncate(time.Second), time.Second)
}

// Until is when what begins to rest now may be given to somebody else: not before the grace is over, and less than a
// step later.
func Until(now time.Time, grace time.Duration) time.Time {
	step := Step(grace)
	until := now.Add(grace)
	if whole := until.Truncate(step); !whole.Equal(until) {
		until = whole.Add(step)
	}
	return until
}

// Format writes rests as a status has them: a group for each moment at which some end, in this order, and in it the
// ranges in theirs.
func Format(rests []Rest) []v1alpha1.CoolingGroup {
	rests = slices.Clone(rests)
	slices.SortFunc(rests, func(a, b Rest) int {
		return cmp.Or(a.Until.Compare(b.Until), a.Range.From().Compare(b.Range.From()), a.Range.To().Compare(b.Range.To()))
	})
	var out []v1alpha1.CoolingGroup
	for _, r := range rests {
		if last := len(out) - 1; last >= 0 && out[last].Until.Time.Equal(r.Until) {
			out[last].Addresses += separator + textOf(r)
			continue
		}
		out = append(out, v1alpha1.CoolingGroup{Until: metav1.NewTime(r.Until), Addresses: textOf(r)})
	}
	return out
}

const separator = ", "

// HasRoom reports whether a status has room for another range of the longest addresses, without a name: else deleted
// claims may wait for it.
func HasRoom(groups []v1alpha1.CoolingGroup) bool {
	size := len("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
	for _, g := range groups {
		size += len(g.Addresses) + len(separator)
	}
	return size <= MaxText
}

func textOf(r Rest) string {
	text := poolutil.ShowRange(r.Range)
	if r.For.Name != "" {
		text += " " + r.For.String()
	}
	return text
}

// Parse reads what Format writes. What cannot be read is left out, and the first of it is the error.
func Parse(groups []v1alpha1.CoolingGroup) (out []Rest, err error) {
	for _, g := range groups {
		for text := range strings.SplitSeq(g.Addresses, ",") {
			r, parseErr := parse(strings.TrimSpace(text))
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

func parse(text string) (r Rest, err error) {
	addresses, name, _ := strings.Cut(text, " ")
	r.For.Namespace, r.For.Name, _ = strings.Cut(name, "/")
	r.Range, err = poolutil.ParseRange(addresses)
	return r, err
}
