package ending

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

func TestIsMovedAndHasOnlyFinalizers(t *testing.T) {
	const ours, foreign = "butler.example/ours", "consumer.example/theirs"
	tests := map[string]struct {
		living, marked bool
		finalizers     []string
		moved, left    bool
		reason         string
	}{
		"lives":                       {living: true, finalizers: []string{ours}},
		"lives without finalizers":    {living: true},
		"is marked for a move, lives": {living: true, marked: true, reason: "each user who may write it may mark it"},
		"is moved":                    {marked: true, finalizers: []string{foreign}, moved: true},
		"is moved, with ours alone":   {marked: true, finalizers: []string{ours}, moved: true, left: true},
		"is used":                     {finalizers: []string{ours, foreign}},
		"is used, the collector waits": {
			finalizers: []string{metav1.FinalizerDeleteDependents, foreign}, reason: "the collector alone does not end a use",
		},
		"is ours":          {finalizers: []string{ours}, left: true},
		"is the collector": {finalizers: []string{metav1.FinalizerDeleteDependents}, left: true},
		"is of both": {
			finalizers: []string{metav1.FinalizerOrphanDependents, ours, metav1.FinalizerDeleteDependents}, left: true,
			reason: "what the collector waits for would wait for the collector",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := &metav1.ObjectMeta{Finalizers: tc.finalizers}
			if !tc.living {
				o.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
			}
			if tc.marked {
				o.Annotations = map[string]string{v1alpha1.DeleteForMoveAnnotation: ""}
			}
			if moved, left := IsMoved(o), HasOnlyFinalizers(o, ours); moved != tc.moved || left != tc.left {
				t.Errorf("moved %v, left %v; want %v, %v (%s)", moved, left, tc.moved, tc.left, tc.reason)
			}
		})
	}
}
