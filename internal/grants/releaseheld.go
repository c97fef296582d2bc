package grants

import (
	"fmt"
	"strings"

	"go4.org/netipx"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// heldEntry is how the annotation release-held names an entry of status.held.
type heldEntry struct {
	addresses netipx.IPRange
	id        string
}

// ReleaseOf is what the annotation release-held has of an entry: the range for who reads it, the id for that very entry.
// It is empty for one that no manager has given an id yet.
func ReleaseOf(h v1alpha1.HeldRange) string {
	r, err := poolutil.ParseRange(h.First + "-" + h.Last)
	if err != nil || h.ID == "" {
		return ""
	}
	return poolutil.ShowRange(r) + "@" + h.ID
}

// Releases reads the annotation release-held: RANGE@ID, separated by commas.
func Releases(annotation string) ([]string, error) {
	var out []string
	for _, part := range releaseParts(annotation) {
		e, err := parseHeldEntry(part)
		if err != nil {
			return nil, err
		}
		out = append(out, poolutil.ShowRange(e.addresses)+"@"+e.id)
	}
	return out, nil
}

func releaseParts(annotation string) []string {
	return strings.FieldsFunc(annotation, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\t' })
}

func parseHeldEntry(part string) (heldEntry, error) {
	addresses, id, found := strings.Cut(part, "@")
	r, err := poolutil.ParseRange(addresses)
	if !found || id == "" || err != nil {
		return heldEntry{}, fmt.Errorf("%q is not RANGE@ID, as in 10.40.0.10-10.40.0.19@x7k2p9qd, with the range and the id of an entry of status.held", text.Shorten(part, 80))
	}
	return heldEntry{r, id}, nil
}

// ReleaseHeld drops the entries of status.held that the annotation of the pool names; the next commit puts that on
// record, together with what it grants of them. An entry is named by its range and its id, so an annotation that stays,
// or that comes from another cluster, releases nothing that it was not written for. What is being moved still is held
// again at once, under a new id.
func (m *Memory) ReleaseHeld() {
	if len(m.held) == 0 || annotations.HasPaused(m.Base) {
		return
	}
	dropped := false
	for _, part := range releaseParts(m.Base.GetAnnotations()[v1alpha1.ReleaseHeldAnnotation]) {
		e, err := parseHeldEntry(part)
		if h, is := m.held[e.addresses]; err == nil && is && h.ID == e.id {
			m.dropHeld(e.addresses)
			dropped = true
		}
	}
	if dropped {
		m.keepAllMoved()
	}
}

// badRelease says what the annotation release-held has that cannot be read, empty if nothing.
func (m *Memory) badRelease() string {
	if _, err := Releases(m.Base.GetAnnotations()[v1alpha1.ReleaseHeldAnnotation]); err != nil {
		return fmt.Sprintf("the annotation %s has an entry that releases nothing: %v", v1alpha1.ReleaseHeldAnnotation, err)
	}
	return ""
}
