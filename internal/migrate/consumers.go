package migrate

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// infrastructureGroup is the API group of the kinds below, in any version that an owner reference may have.
const infrastructureGroup = "infrastructure.cluster.x-k8s.io"

// maxNamedMachines limits the machines that a problem names.
const maxNamedMachines = 3

// poolBoundKinds lists the kinds of machines whose claims must keep their current pool. The other consumers of
// docs/consumers.md get a claim by its name, and use its address whatever its pool is.
var poolBoundKinds = []struct{ kind, why, do string }{
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

// findPoolBoundMachines returns the problems of claims whose machines require the old pool. They have no solution.
func findPoolBoundMachines(in *planInput) (out []Problem) {
	for _, b := range poolBoundKinds {
		var names []string
		for i := range in.claims {
			c := &in.claims[i]
			for _, owner := range c.OwnerReferences {
				if name := c.Namespace + "/" + owner.Name; isInfrastructureOwner(owner, b.kind) && !slices.Contains(names, name) {
					names = append(names, name)
				}
			}
		}
		if len(names) == 0 {
			continue
		}
		out = append(out, Problem{fmt.Sprintf("claims of %s: %s", summarizeNames(b.kind, names), b.why), b.do})
	}
	return out
}

func isInfrastructureOwner(owner metav1.OwnerReference, kind string) bool {
	gv, err := schema.ParseGroupVersion(owner.APIVersion)
	return err == nil && gv.Group == infrastructureGroup && owner.Kind == kind
}

// summarizeNames formats the number of objects of a kind and the names of the first of them.
func summarizeNames(kind string, names []string) string {
	return fmt.Sprintf("%s (%s)", text.FormatCount(len(names), kind, kind+"s"), text.JoinNames(names, maxNamedMachines))
}
