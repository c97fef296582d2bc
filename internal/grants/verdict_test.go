package grants_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// TestWriteOutcome checks R4: what the API server has decides the outcome of a write without an answer.
func TestWriteOutcome(t *testing.T) {
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
	named := map[term.WriteOutcome]string{term.WritePending: "mayLand", term.WriteApplied: "hasLanded", term.WriteConflicted: "neverLands", term.TermLost: "termLost"}
	for name, tc := range map[string]struct {
		sent, live *v1alpha1.NetworkPool
		want       term.WriteOutcome
	}{
		"nothing changed":                        {sent: pool("1", granting), live: pool("1"), want: term.WritePending},
		"the grants are there":                   {sent: pool("1", granting), live: pool("2", granting), want: term.WriteApplied},
		"the grants are there, then edited":      {sent: pool("1", granting, free), live: pool("3", granting), want: term.WriteApplied},
		"edited":                                 {sent: pool("1", granting), live: pool("2"), want: term.WriteConflicted},
		"another holder":                         {sent: pool("1", granting), live: pool("2", by("you", 4)), want: term.TermLost},
		"another holder, who kept the grants":    {sent: pool("1", granting), live: pool("3", granting, by("you", 4)), want: term.TermLost},
		"the same holder in a later term":        {sent: pool("1", granting), live: pool("3", by("me", 5)), want: term.TermLost},
		"the record is gone":                     {sent: pool("1", granting), live: pool("2", func(p *v1alpha1.NetworkPool) { p.Status.Allocator = nil }), want: term.TermLost},
		"another pool of the name":               {sent: pool("1", granting), live: pool("1", func(p *v1alpha1.NetworkPool) { p.UID = types.UID("new") }), want: term.TermLost},
		"no grant, the counts are there":         {sent: pool("1", free), live: pool("2", free), want: term.WriteApplied},
		"no grant, edited: the counts are not":   {sent: pool("1", free), live: pool("2"), want: term.WriteConflicted},
		"nothing was sent, edited by a user":     {sent: pool("1"), live: pool("2", free), want: term.WriteConflicted},
		"nothing was sent, by another manager":   {sent: pool("1"), live: pool("2", by("you", 4)), want: term.TermLost},
		"nothing was sent, only a label differs": {sent: pool("1"), live: pool("2"), want: term.WriteApplied},
	} {
		t.Run(name, func(t *testing.T) {
			if got := grants.ReadBackFor(pool("1"), tc.sent, tc.live).Outcome(); got != tc.want {
				t.Errorf("%s, not %s", named[got], named[tc.want])
			}
		})
	}
}
