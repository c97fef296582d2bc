package allocator

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// R4: what the API server has tells what became of a write without an answer.
func TestVerdictOn(t *testing.T) {
	granted := v1alpha1.Grant{UID: "a", First: "10.0.0.1", Last: "10.0.0.1"}
	pool := func(version string, change ...func(*v1alpha1.NetworkPool)) *v1alpha1.NetworkPool {
		out := &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{UID: "pool", ResourceVersion: version}}
		out.Status.Allocator = &v1alpha1.AllocatorStatus{Holder: "me", Term: 3}
		for _, c := range change {
			c(out)
		}
		return out
	}
	granting := func(p *v1alpha1.NetworkPool) { p.Status.Allocator.InFlight = []v1alpha1.Grant{granted} }
	free := func(p *v1alpha1.NetworkPool) { p.Status.AvailableIPs = 7 }
	by := func(holder string, term int64) func(*v1alpha1.NetworkPool) {
		return func(p *v1alpha1.NetworkPool) { p.Status.Allocator.Holder, p.Status.Allocator.Term = holder, term }
	}
	named := map[verdict]string{mayLand: "mayLand", hasLanded: "hasLanded", neverLands: "neverLands", termLost: "termLost"}
	for name, tc := range map[string]struct {
		sent, live *v1alpha1.NetworkPool
		want       verdict
	}{
		"nothing changed":                        {sent: pool("1", granting), live: pool("1"), want: mayLand},
		"the granting are there":                   {sent: pool("1", granting), live: pool("2", granting), want: hasLanded},
		"the granting are there, then edited":      {sent: pool("1", granting, free), live: pool("3", granting), want: hasLanded},
		"edited":                                 {sent: pool("1", granting), live: pool("2"), want: neverLands},
		"another holder":                         {sent: pool("1", granting), live: pool("2", by("you", 4)), want: termLost},
		"another holder, who kept the granting":    {sent: pool("1", granting), live: pool("3", granting, by("you", 4)), want: termLost},
		"the same holder in a later term":        {sent: pool("1", granting), live: pool("3", by("me", 5)), want: termLost},
		"the record is gone":                     {sent: pool("1", granting), live: pool("2", func(p *v1alpha1.NetworkPool) { p.Status.Allocator = nil }), want: termLost},
		"another pool of the name":               {sent: pool("1", granting), live: pool("1", func(p *v1alpha1.NetworkPool) { p.UID = types.UID("new") }), want: termLost},
		"no grant, the counts are there":         {sent: pool("1", free), live: pool("2", free), want: hasLanded},
		"no grant, edited: the counts are not":   {sent: pool("1", free), live: pool("2"), want: neverLands},
		"nothing was sent, edited by a user":     {sent: pool("1"), live: pool("2", free), want: neverLands},
		"nothing was sent, by another manager":   {sent: pool("1"), live: pool("2", by("you", 4)), want: termLost},
		"nothing was sent, only a label differs": {sent: pool("1"), live: pool("2"), want: hasLanded},
	} {
		t.Run(name, func(t *testing.T) {
			if got := verdictOn(pool("1"), tc.sent, tc.live); got != tc.want {
				t.Errorf("%s, not %s", named[got], named[tc.want])
			}
		})
	}
}
