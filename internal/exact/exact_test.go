package exact

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// deleteRecorder is an API server that records the options of a delete.
type deleteRecorder struct {
	client.Writer

	options *client.DeleteOptions
}

func (d *deleteRecorder) Delete(_ context.Context, _ client.Object, opts ...client.DeleteOption) error {
	d.options = (&client.DeleteOptions{}).ApplyOptions(opts)
	return nil
}

func TestDeleteWithPreconditions(t *testing.T) { // R3 (every write carries what it was decided on)
	tests := map[string]struct {
		uid, version string
		refused      bool
	}{
		"as it was read":    {uid: "u", version: "7"},
		"without a UID":     {version: "7", refused: true},
		"without a version": {uid: "u", refused: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			api := &deleteRecorder{}
			o := WithUIDAndVersion(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}, types.UID(tc.uid), tc.version)
			err := DeleteWithPreconditions(t.Context(), api, o, client.PropagationPolicy(metav1.DeletePropagationBackground))
			if (err != nil) != tc.refused || (api.options == nil) != tc.refused {
				t.Fatalf("it is refused: %v, and deleted by %+v", err, api.options)
			}
			if tc.refused {
				return
			}
			if p := api.options.Preconditions; p == nil || *p.UID != "u" || *p.ResourceVersion != "7" || api.options.PropagationPolicy == nil {
				t.Errorf("it is deleted by %+v", api.options)
			}
		})
	}
}
