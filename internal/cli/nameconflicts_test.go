package cli

import (
	"strings"
	"testing"

	m3ipamv1 "github.com/metal3-io/ip-address-manager/api/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// TestMetal3NameConflicts checks that the audit reports an IPPool of Metal3 with the name of a pool that serves its
// namespace (U66).
func TestMetal3NameConflicts(t *testing.T) {
	local := &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p"}}
	global := &v1alpha1.GlobalNetworkPool{ObjectMeta: metav1.ObjectMeta{Name: "g"}}
	for _, c := range []struct {
		namespace, name string
		want            bool
	}{{"a", "p", true}, {"b", "p", false}, {"a", "q", false}, {"b", "g", true}} {
		got := formatMetal3NameConflicts([]v1alpha1.Pool{local, global}, []m3ipamv1.IPPool{{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: c.name}}})
		if len(got) == 1 != c.want || c.want && !strings.Contains(got[0], "IPPool "+c.namespace+"/"+c.name+",") {
			t.Errorf("%s/%s: %q", c.namespace, c.name, got)
		}
	}
	if got := formatMetal3NameConflicts([]v1alpha1.Pool{local, global}, nil); len(got) > 0 { // W29: after its deletion
		t.Errorf("%q", got)
	}
}
