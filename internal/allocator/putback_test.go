package allocator_test

import (
	"slices"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
)

// TestFinalizerRestoredByWebhook checks that an object whose finalizer of ours is written back by a mutating webhook as
// it is removed does not count as gone.
func TestFinalizerRestoredByWebhook(t *testing.T) {
	for _, kind := range []faults.Kind{faults.Addresses, faults.Claims} {
		t.Run(string(kind), func(t *testing.T) {
			s := scenario{
				name: "put back", spec: Pool("10.0.0.1-10.0.0.1"), capacity: 1, claims: []string{"a"},
				script: []action{remove("a"), add("b")}, want: map[string]string{"b": "10.0.0.1"},
			}
			s.run(t, func(w *world) {
				w.Disturb = func(w *world, r *faults.Request) bool {
					all := w.api.List(kind)
					i := slices.IndexFunc(all, func(o client.Object) bool { return o.GetName() == r.Ref.Name })
					if r.Verb != "patch" || r.Ref.Kind != kind || r.Status || i < 0 || len(w.Script) == len(s.script) {
						return false
					}
					w.Disturb = nil
					w.Answer(r, all[i].DeepCopyObject(), nil) // the answer shows none of its changes
					return true
				}
			})
		})
	}
}
