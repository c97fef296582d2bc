package grants

import (
	"fmt"
	"strings"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// heldRelease is an item of the annotation release-held, which identifies an entry of status.held.
type heldRelease struct {
	ipRange netipx.IPRange
	id      string
}

// FormatHeldRelease returns the item of the annotation release-held for an entry: the range for the reader, and the
// id that identifies the entry. It is empty for an entry that has no id from a manager yet.
func FormatHeldRelease(h v1alpha1.HeldRange) string {
	r, err := poolutil.ParseRange(h.First + "-" + h.Last)
	if err != nil || h.ID == "" {
		return ""
	}
	return poolutil.ShowRange(r) + "@" + h.ID
}

// ParseHeldReleases parses the annotation release-held: items RANGE@ID, separated by commas.
func ParseHeldReleases(annotation string) ([]string, error) {
	var out []string
	for _, part := range splitHeldReleases(annotation) {
		e, err := parseHeldRelease(part)
		if err != nil {
			return nil, err
		}
		out = append(out, poolutil.ShowRange(e.ipRange)+"@"+e.id)
	}
	return out, nil
}

func splitHeldReleases(annotation string) []string {
	return strings.FieldsFunc(annotation, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\t' })
}

func parseHeldRelease(part string) (heldRelease, error) {
	addresses, id, found := strings.Cut(part, "@")
	r, err := poolutil.ParseRange(addresses)
	if !found || id == "" || err != nil {
		return heldRelease{}, fmt.Errorf("%q is not RANGE@ID, as in 10.40.0.10-10.40.0.19@x7k2p9qd, with the range and the id of an entry of status.held", text.ShortenText(part, 80))
	}
	return heldRelease{r, id}, nil
}
