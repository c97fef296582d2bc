package nodeipam

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

// networkingX returns a ClusterCIDR of node-ipam-controller with a spec.
func networkingX(spec map[string]any, finalizers ...string) *unstructured.Unstructured {
	o := NewNetworkingXClusterCIDR()
	o.SetName("c")
	o.SetUID("uid-x")
	o.SetFinalizers(finalizers)
	o.Object["spec"] = spec
	return o
}

func TestRangeObjectFromNetworkingX(t *testing.T) {
	selects := func(key string) map[string]any {
		return map[string]any{"nodeSelectorTerms": []any{map[string]any{"matchExpressions": []any{map[string]any{"key": key, "operator": "Exists"}}}}}
	}
	of := func(texts ...string) (out []netip.Prefix) {
		for _, text := range texts {
			out = append(out, netip.MustParsePrefix(text))
		}
		return out
	}
	tests := map[string]struct {
		spec map[string]any
		// want are its ranges; none means that it is invalid.
		want    []netip.Prefix
		applies bool // to a Node without labels
	}{
		"both families":                  {spec: map[string]any{"perNodeHostBits": int64(8), "ipv4": "10.1.0.0/16", "ipv6": "fd00:1::/112"}, want: of("10.1.0.0/16", "fd00:1::/112"), applies: true},
		"an empty text is no range":      {spec: map[string]any{"perNodeHostBits": int64(8), "ipv4": "10.1.0.0/16", "ipv6": ""}, want: of("10.1.0.0/16"), applies: true},
		"no range":                       {spec: map[string]any{"perNodeHostBits": int64(8), "ipv4": "", "ipv6": ""}},
		"an empty selector selects all":  {spec: map[string]any{"perNodeHostBits": int64(8), "ipv4": "10.1.0.0/16", "nodeSelector": map[string]any{"nodeSelectorTerms": []any{}}}, want: of("10.1.0.0/16"), applies: true},
		"a selector":                     {spec: map[string]any{"perNodeHostBits": int64(8), "ipv4": "10.1.0.0/16", "nodeSelector": selects("a")}, want: of("10.1.0.0/16")},
		"a selector that nothing can be": {spec: map[string]any{"perNodeHostBits": int64(8), "ipv4": "10.1.0.0/16", "nodeSelector": selects("a b")}},
		"bits beyond the prefix":         {spec: map[string]any{"perNodeHostBits": int64(8), "ipv4": "10.1.2.3/16"}, want: of("10.1.0.0/16"), applies: true},
		"zeros in front":                 {spec: map[string]any{"perNodeHostBits": int64(8), "ipv4": "010.001.0.0/16"}, want: of("10.1.0.0/16"), applies: true},
		"no CIDR":                        {spec: map[string]any{"perNodeHostBits": int64(8), "ipv4": "10.1.0.0"}},
		"too many host bits":             {spec: map[string]any{"perNodeHostBits": int64(17), "ipv4": "10.1.0.0/16"}},
		"not what the schema says":       {spec: map[string]any{"perNodeHostBits": "eight", "ipv4": "10.1.0.0/16"}},
		"no spec":                        {},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			o := RangeObjectFromNetworkingX(networkingX(tt.spec, NetworkingXFinalizer))
			if (o.Range == nil) != (len(tt.want) == 0) || (o.Range == nil) != (len(o.ValidationErrors) > 0) {
				t.Fatalf("%v, invalid: %v", o.Range, o.ValidationErrors)
			}
			if want := (podcidr.Ref{Kind: "ClusterCIDR.networking.x-k8s.io", Name: "c", UID: "uid-x"}); o.Ref != want || !o.HasFinalizer || o.Closing {
				t.Errorf("it is %+v", o)
			}
			if o.Range == nil {
				return
			}
			if !slices.Equal(o.Range.CIDRs(), tt.want) || o.Range.Ref != o.Ref {
				t.Errorf("%v of %v, want %v", o.Range.CIDRs(), o.Range.Ref, tt.want)
			}
			if applies := len(podcidr.RangesForNode([]*podcidr.Range{o.Range}, &podcidr.Node{})) > 0; applies != tt.applies {
				t.Errorf("applies to any Node: %v", applies)
			}
		})
	}
}

// TestKindsAreProtected checks that each kind has its own finalizer, added and removed on the version that was read.
func TestKindsAreProtected(t *testing.T) { // K16
	_, c := newTestSite(t, newRange())
	x := fake.NewClientBuilder().WithScheme(runtime.NewScheme()).WithObjects(networkingX(map[string]any{})).Build()
	k := ProtectorByKind{"ClusterCIDR": ClusterCIDRProtector{Client: c, Live: c}, NetworkingXKind: NetworkingXProtector{Client: x, Live: x}}
	read := func() *unstructured.Unstructured {
		o := NewNetworkingXClusterCIDR()
		if err := client.IgnoreNotFound(x.Get(t.Context(), client.ObjectKey{Name: "c"}, o)); err != nil {
			t.Fatal(err)
		}
		return o
	}
	protected := func(want bool) {
		t.Helper()
		if protected, err := k.HasProtectedObjects(t.Context()); protected != want || err != nil {
			t.Errorf("any is protected: %v, %v", protected, err)
		}
	}
	protected(false)
	ref := RefForNetworkingX(read())
	for range 2 { // the second time it is there
		if err := k.ProtectObject(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
	}
	if got := read().GetFinalizers(); !slices.Equal(got, []string{NetworkingXFinalizer}) {
		t.Errorf("it has %q", got)
	}
	protected(true)
	if err := k.UnprotectObject(t.Context(), ref, ""); err != nil || len(read().GetFinalizers()) == 0 {
		t.Errorf("it was released though it is not being deleted: %v", err)
	}
	if err := x.Delete(t.Context(), read()); err != nil {
		t.Fatal(err)
	}
	if err := k.ProtectObject(t.Context(), ref); !errors.Is(err, errClosing) {
		t.Errorf("it is protected though it is being deleted: %v", err)
	}
	if err := k.UnprotectObject(t.Context(), ref, ""); err != nil || read().GetUID() != "" {
		t.Errorf("it was not released: %v", err)
	}
	if err := k.UnprotectObject(t.Context(), ref, ""); err != nil {
		t.Errorf("it is gone: %v", err)
	}
	if err := k.ProtectObject(t.Context(), RefForClusterCIDR(newRange())); err != nil {
		t.Error(err)
	}
	protected(true)
}

// TestKindsOfOneName checks that two objects of one name and range, but of different kinds, are separate: one is
// closed, the other is granted from.
func TestKindsOfOneName(t *testing.T) {
	c, now := newRange(), time.Now()
	ours := RangeObjectFromClusterCIDR(c)
	foreign := RangeObjectFromNetworkingX(networkingX(map[string]any{"perNodeHostBits": int64(c.Spec.PerNodeHostBits), "ipv4": c.Spec.IPv4}))
	foreign.Closing = true
	m := newNodeState(ClusterKey{}, 0)
	m.setRangeObjects([]RangeObject{foreign, ours})
	m.observeNode(&podcidr.Node{Name: "a", UID: "uid-a", CreatedAt: metav1.Now().Time}, "1", now)
	if protect, _ := m.planner.planGrants(now); !slices.Equal(protect, []podcidr.Ref{ours.Ref}) {
		t.Errorf("is to be protected: %v", protect)
	}
}
