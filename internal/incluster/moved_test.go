package incluster

import (
	"maps"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

const (
	home    = v1alpha1.ManagementClusterAnnotation
	names   = v1alpha1.ClustersAnnotation
	mirrors = MirrorAnnotation
	taken   = MovedFromAnnotation
)

// TestInitMirrorOrigin checks that a mirror records, from its creation on, the origin of its pool and the loss of a
// previous mirror (C53).
func TestInitMirrorOrigin(t *testing.T) {
	type marks = map[string]string
	for name, tc := range map[string]struct {
		reason     string
		here       string
		pool, want marks
	}{
		"new":        {"nothing is known of it", "here", marks{"any": "thing"}, nil},
		"arrived":    {"its mirror is on its way", "here", marks{home: "there", names: "c", mirrors: "uid"}, marks{home: "there", names: "c"}},
		"taken away": {"clusterctl took it", "here", marks{home: "here", names: "c", mirrors: "uid"}, marks{home: "here", names: "c", taken: "here"}},
		"ended":      {"it had no user any more", "here", marks{home: "here"}, marks{home: "here"}},
		"nowhere":    {"it is unknown which cluster this is", "", marks{home: "here", mirrors: "uid"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			mirror := &metav1.ObjectMeta{}
			InitMirrorOrigin(mirror, &metav1.ObjectMeta{Annotations: tc.pool}, tc.here)
			if !maps.Equal(mirror.Annotations, tc.want) {
				t.Errorf("%s: %v, not %v", tc.reason, mirror.Annotations, tc.want)
			}
		})
	}
}

// TestRecordMirror checks that a pool records its mirror until the end of the mirror is known, however that happens
// (C53).
func TestRecordMirror(t *testing.T) {
	type marks = map[string]string
	now := metav1.Now()
	for name, tc := range map[string]struct {
		reason      string
		annotations marks
		deleting    bool
		want        marks
	}{
		"served":     {"it has one", marks{home: "here", names: "c"}, false, marks{home: "here", names: "c", mirrors: "uid"}},
		"deleted":    {"it goes when nothing of it is in use", marks{home: "here"}, true, marks{home: "here"}},
		"moves":      {"clusterctl takes it away", marks{home: "here", v1alpha1.DeleteForMoveAnnotation: ""}, true, marks{home: "here", mirrors: "uid"}},
		"stripped":   {"as clusterctl leaves it before it goes", marks{v1alpha1.DeleteForMoveAnnotation: ""}, true, marks{mirrors: "before"}},
		"on its way": {"it is not served here yet", marks{home: "there"}, false, marks{mirrors: "before"}},
	} {
		t.Run(name, func(t *testing.T) {
			mirror, pool := &metav1.ObjectMeta{UID: "uid", Annotations: tc.annotations}, &metav1.ObjectMeta{Annotations: marks{mirrors: "before"}}
			if tc.deleting {
				mirror.DeletionTimestamp = &now
			}
			RecordMirror(pool, mirror, "here")
			if !maps.Equal(pool.Annotations, tc.want) {
				t.Errorf("%s: %v, not %v", tc.reason, pool.Annotations, tc.want)
			}
			if RemoveMirrorRecord(pool); len(pool.Annotations) > 0 || HasMirrorRecord(pool) {
				t.Errorf("%s: %v is left", tc.reason, pool.Annotations)
			}
		})
	}
}
