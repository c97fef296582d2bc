package migrate

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// infrastructureGroup is the API group of the kinds below, in whatever version an owner was written.
const infrastructureGroup = "infrastructure.cluster.x-k8s.io"

// shown is how many machines a problem names.
const shown = 3

// bound are the kinds of machines whose claims must name the pool that they name now. The other consumers of
// docs/consumers.md look a claim up by its name, and take its address whatever its pool is.
var bound = []struct{ kind, why, do string }{
	{
		kind: "VSphereVM",
		why: "CAPV writes the pool of the network device into the claim at every reconcile, which Cluster API refuses for another pool; " +
			"these machines would fail until they are replaced",
		do: "serve the pool in place, hand it over, and let the machines roll over: docs/in-cluster.md",
	},
	{
		kind: "ProxmoxMachine",
		why:  "CAPMOX can name no other kind of pool, so its next machines would ask the old pool, which would no longer count these addresses",
		do:   "serve the pool in place, and keep its name in the templates: docs/in-cluster.md",
	},
}

// machines are the problems of claims whose machines insist on the pool that is left. Nothing solves them.
func machines(in *found) (out []Problem) {
	for _, b := range bound {
		var names []string
		for i := range in.claims {
			c := &in.claims[i]
			for _, owner := range c.OwnerReferences {
				if name := c.Namespace + "/" + owner.Name; is(owner, b.kind) && !slices.Contains(names, name) {
					names = append(names, name)
				}
			}
		}
		if len(names) == 0 {
			continue
		}
		out = append(out, Problem{fmt.Sprintf("claims of %s: %s", some(b.kind, names), b.why), b.do})
	}
	return out
}

func is(owner metav1.OwnerReference, kind string) bool {
	gv, err := schema.ParseGroupVersion(owner.APIVersion)
	return err == nil && gv.Group == infrastructureGroup && owner.Kind == kind
}

// some counts the objects of a kind and names the first of them.
func some(kind string, names []string) string {
	out := text.Count(len(names), kind, kind+"s") + " (" + strings.Join(names[:min(shown, len(names))], ", ")
	if more := len(names) - shown; more > 0 {
		out += fmt.Sprintf(" and %d more", more)
	}
	return out + ")"
}
