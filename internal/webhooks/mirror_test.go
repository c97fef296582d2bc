package webhooks

import (
	"strings"
	"testing"

	"go4.org/netipx"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
)

// TestUpdateOfAMirror checks that the manager may write the spec of a mirror, whatever that cuts off, and that a change
// by a user is rejected with the name of the pool to change instead.
func TestUpdateOfAMirror(t *testing.T) {
	wide, narrow := spec{Addresses: []string{"10.0.0.10-10.0.0.200"}, AllowOverlap: true}, spec{Addresses: []string{"10.0.0.10"}, AllowOverlap: true}
	holders := []poolspec.Holder{{Kind: "IPAddressClaim", Namespace: "ns", Name: "a", Range: netipx.MustParseIPRange("10.0.0.200-10.0.0.200")}}
	for name, c := range map[string]struct {
		was, updated spec
		edit         func(*v1alpha1.NetworkPool)
		refused      bool
	}{
		"by a person":                      {was: narrow, updated: wide, refused: true},
		"by the manager":                   {was: narrow, updated: wide, edit: func(p *v1alpha1.NetworkPool) { incluster.SealSpec(p) }},
		"back, while an address is in use": {was: wide, updated: narrow, edit: func(p *v1alpha1.NetworkPool) { incluster.SealSpec(p) }},
		"an annotation alone":              {was: narrow, updated: narrow, edit: func(p *v1alpha1.NetworkPool) { p.Annotations["a"] = "b" }},
		"of what has ended":                {was: narrow, updated: wide, edit: func(p *v1alpha1.NetworkPool) { incluster.EndMirror(p) }},
	} {
		t.Run(name, func(t *testing.T) {
			was := pool("p.in-cluster", c.was)
			incluster.SealSpec(was)
			updated := was.DeepCopy()
			updated.Spec = c.updated
			if c.edit != nil {
				c.edit(updated)
			}
			v := &PoolValidator[*v1alpha1.NetworkPool]{Holders: &fakeHolderLister{holders: holders}, PoolReader: stored(t)}
			_, err := v.ValidateUpdate(t.Context(), was, updated)
			if refused := apierrors.IsInvalid(err); refused != c.refused || (err != nil && !strings.Contains(err.Error(), "this pool mirrors InClusterIPPool ns/p")) {
				t.Errorf("%v", err)
			}
		})
	}
}
