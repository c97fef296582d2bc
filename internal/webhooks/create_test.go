package webhooks

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// refusal is what a user learns from a rejection: the object, and the fields to correct.
type refusal struct {
	Kind, Name string
	Fields     []string
}

func refusalOf(t *testing.T, err error) refusal {
	t.Helper()
	var status *apierrors.StatusError
	if !errors.As(err, &status) || !apierrors.IsInvalid(err) {
		t.Fatalf("want a refusal of an invalid object, got %v", err)
	}
	details := status.ErrStatus.Details
	if details.Group != v1alpha1.GroupVersion.Group {
		t.Errorf("the refusal is of group %q", details.Group)
	}
	out := refusal{Kind: details.Kind, Name: details.Name}
	for _, cause := range details.Causes {
		out.Fields = append(out.Fields, cause.Field)
	}
	return out
}

func TestValidateCreate(t *testing.T) {
	tests := map[string]struct {
		reason string
		spec   spec
		want   []string // the fields that are rejected; none: allowed
	}{
		"Valid":   {reason: "a pool that can be served", spec: spec{CIDR: "10.0.0.0/24", Gateway: "10.0.0.1"}},
		"Nothing": {reason: "a pool has addresses", want: []string{"spec"}},
		"Gateway": { // W13
			reason: "a gateway lies in the network",
			spec:   spec{CIDR: "10.0.0.0/24", Gateway: "10.9.0.1"},
			want:   []string{"spec.gateway"},
		},
		"Reserved": { // W13
			reason: "a reservation takes addresses of the pool",
			spec:   spec{CIDR: "10.0.0.0/24", Reserved: []v1alpha1.ReservedRange{{Addresses: "10.9.0.0/28"}}},
			want:   []string{"spec.reserved[0].addresses"},
		},
		"Several": {
			reason: "a user with several errors sees them at once",
			spec:   spec{CIDR: "10.0.0.0/24", Gateway: "10.9.0.1", PreAllocations: map[string]string{"vip": "10.9.0.2"}},
			want:   []string{"spec.gateway", "spec.preAllocations[vip]"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			all, use := stored(t), &fakeHolderLister{}
			warnings, err := (&PoolValidator[*v1alpha1.NetworkPool]{Holders: use, PoolReader: all}).ValidateCreate(t.Context(), pool("p", tc.spec))
			_, globalErr := (&PoolValidator[*v1alpha1.GlobalNetworkPool]{Holders: use, PoolReader: all}).ValidateCreate(t.Context(), global("p", tc.spec))
			if len(warnings) > 0 || len(use.asked) > 0 {
				t.Errorf("%s: warnings %v, and %d look-ups of holders that a new pool cannot have", tc.reason, warnings, len(use.asked))
			}
			if tc.want == nil {
				if err != nil || globalErr != nil {
					t.Errorf("%s: refused: %v, %v", tc.reason, err, globalErr)
				}
				return
			}
			want := []refusal{{v1alpha1.NetworkPoolKind, "p", tc.want}, {v1alpha1.GlobalNetworkPoolKind, "p", tc.want}}
			if diff := cmp.Diff(want, []refusal{refusalOf(t, err), refusalOf(t, globalErr)}); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// TestValidateDelete checks that a pool may be deleted: the finalizer keeps a pool that is in use, and its condition
// names the claims. A rejection would block clusterctl move (U18).
func TestValidateDelete(t *testing.T) {
	v := &PoolValidator[*v1alpha1.NetworkPool]{Holders: &fakeHolderLister{err: errors.New("must not be asked")}, PoolReader: stored(t)}
	if warnings, err := v.ValidateDelete(t.Context(), pool("p", spec{CIDR: "10.0.0.0/24"})); err != nil || len(warnings) > 0 {
		t.Errorf("ValidateDelete = %v, %v", warnings, err)
	}
}

// TestWarnsOfNothingLeft checks that a pool that hands out nothing is allowed, as that may be meant, with a warning, as
// it may be a mistake.
func TestWarnsOfNothingLeft(t *testing.T) {
	v := &PoolValidator[*v1alpha1.NetworkPool]{Holders: &fakeHolderLister{}, PoolReader: stored(t)}
	empty := spec{CIDR: "10.0.0.0/28", Reserved: []v1alpha1.ReservedRange{{Addresses: "10.0.0.0/28"}}}
	created, err := v.ValidateCreate(t.Context(), pool("p", empty))
	if err != nil {
		t.Fatal(err)
	}
	updated, err := v.ValidateUpdate(t.Context(), pool("p", spec{CIDR: "10.0.0.0/28"}), pool("p", empty))
	if err != nil {
		t.Fatal(err)
	}
	const want = "the spec leaves nothing to hand out: all of its 16 addresses are reserved, gateways, or the first or last of a subnet; add addresses, or reserve fewer"
	if diff := cmp.Diff([][]string{{want}, {want}}, [][]string{created, updated}); diff != "" {
		t.Error(diff)
	}
}
