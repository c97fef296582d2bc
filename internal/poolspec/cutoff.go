package poolspec

import (
	"fmt"
	"strings"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// Holder is an object that holds a range now.
type Holder struct {
	Kind, Namespace, Name string
	Range                 netipx.IPRange
}

// namedHolders is how many holders an error names; the rest are counted.
const namedHolders = 5

// CutOff finds the holders of addresses that the old layout covers and the next one would not. A
// nil old layout covers everything: the spec was not valid before.
func CutOff(old, next *Layout, holders []Holder) field.ErrorList {
	var names []string
	n := 0
	for _, h := range holders {
		if covers(next, h.Range) || (old != nil && !covers(old, h.Range)) {
			continue
		}
		if n++; n <= namedHolders {
			names = append(names, fmt.Sprintf("%s (%s %s/%s)", poolutil.FormatRange(h.Range), h.Kind, h.Namespace, h.Name))
		}
	}
	if n == 0 {
		return nil
	}
	message := "would cut off addresses that are in use: " + strings.Join(names, ", ")
	if n > namedHolders {
		message += fmt.Sprintf(" and %d more", n-namedHolders)
	}
	return field.ErrorList{field.Forbidden(field.NewPath("spec"), message+"; delete their claims first, or keep the addresses in the pool")}
}

// covers tells whether a layout may give a range to somebody: by best fit or as a preAllocation.
func covers(l *Layout, r netipx.IPRange) bool {
	if l.Contains(r) {
		return true
	}
	_, pinned := l.PinOwner(r.From())
	return pinned && (r.From() == r.To() || l.unitBits < r.From().BitLen())
}
