package grants_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

func TestStatusShowsWhetherClusterWasSeen(t *testing.T) {
	const block = "allocated 4 IPs: 10.0.0.4/30"
	tests := map[string]struct {
		published, found grants.OwnerSeen
		next             grants.OwnerSeen
		ready            string
		seen             string // of the condition; empty: there is none
		reason           string
	}{
		"not looked":              {next: grants.OwnerUnknown, ready: block},
		"not there":               {found: grants.OwnerNeverSeen, next: grants.OwnerNeverSeen, ready: block + "; Cluster team/prod does not exist yet", seen: "False"},
		"still not there":         {published: grants.OwnerNeverSeen, found: grants.OwnerNeverSeen, next: grants.OwnerNeverSeen, ready: block + "; Cluster team/prod does not exist yet", seen: "False"},
		"not there, and not said": {published: grants.OwnerNeverSeen, next: grants.OwnerNeverSeen, ready: block + "; Cluster team/prod does not exist yet", seen: "False"},
		"there":                   {found: grants.OwnerSeenAlive, next: grants.OwnerSeenAlive, ready: block, seen: "True"},
		"there at last":           {published: grants.OwnerNeverSeen, found: grants.OwnerSeenAlive, next: grants.OwnerSeenAlive, ready: block, seen: "True"},
		"gone":                    {published: grants.OwnerSeenAlive, found: grants.OwnerNeverSeen, next: grants.OwnerSeenAlive, ready: block, seen: "True", reason: "once seen is seen for good"},
		"seen, and paused":        {published: grants.OwnerSeenAlive, found: grants.OwnerSeenPaused, next: grants.OwnerSeenPaused, ready: block, seen: "Unknown", reason: "clusterctl may be about to move it"},
		"gone after a pause":      {published: grants.OwnerSeenPaused, found: grants.OwnerNeverSeen, next: grants.OwnerSeenPaused, ready: block, seen: "Unknown", reason: "clusterctl may have moved it"},
		"resumed":                 {published: grants.OwnerSeenPaused, found: grants.OwnerSeenAlive, next: grants.OwnerSeenAlive, ready: block, seen: "True"},
		"paused as it arrives":    {found: grants.OwnerSeenPaused, next: grants.OwnerUnknown, ready: block, reason: "what was not seen is not deleted anyway"},
		"gone as it arrives":      {found: grants.OwnerLeftPaused, next: grants.OwnerNeverSeen, ready: block + "; Cluster team/prod does not exist yet", seen: "False"},
		"gone once more":          {published: grants.OwnerSeenPaused, found: grants.OwnerLeftPaused, next: grants.OwnerSeenPaused, ready: block, seen: "Unknown"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9")
			c := grantstest.ObserveAllocation(p, "x", 4, grantstest.WithBlock("10.0.0.4/30"), grantstest.WithWrittenStatus(t, tt.published))
			if c.PublishedOwnerSeen != tt.published {
				t.Fatalf("%v was published", c.PublishedOwnerSeen)
			}
			next := c.NextOwnerSeen(tt.found)
			o := &v1alpha1.IPAllocation{}
			o.Annotations, o.UID = map[string]string{}, "uid-x"
			grantstest.WithBlock("10.0.0.4/30")(o)
			grantstest.WithWrittenStatus(t, next)(o)
			ready := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ReadyCondition)
			if next != tt.next || ready.Message != tt.ready || ready.Status != "True" {
				t.Errorf("%s: %v, %s", tt.reason, next, ready.Message)
			}
			got := ""
			if s := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ClusterSeenCondition); s != nil {
				got = string(s.Status)
			}
			if got != tt.seen {
				t.Errorf("%s: seen: %q", tt.reason, got)
			}
		})
	}
}
