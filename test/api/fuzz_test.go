package api_test

import (
	"errors"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/blocks"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework/draw"
)

// The schema and the code agree on a spec: a refusal names the field and the error, and an accepted spec is served or
// refused with a message. They need not agree on everything: CEL cannot compute sets of addresses, and the schema has
// limits of its own.

// refusal returns the error with which the API server refuses an object, or nil if it accepts it.
func refusal(t *testing.T, o client.Object) *apierrors.StatusError {
	t.Helper()
	err := k8s.Create(t.Context(), o, client.DryRunAll)
	var status *apierrors.StatusError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &status) || !apierrors.IsInvalid(err):
		t.Fatalf("%+v: %v", o, err)
	}
	for _, text := range []string{"failed rule", "rule evaluation", "cost", "budget", "no such", "internal"} {
		if strings.Contains(status.ErrStatus.Message, text) {
			t.Errorf("%+v is refused with %q: %v", o, text, err)
		}
	}
	if len(status.ErrStatus.Details.Causes) == 0 || !strings.HasPrefix(status.ErrStatus.Details.Causes[0].Field, "spec") {
		t.Errorf("%+v: %v", o, err)
	}
	return status
}

// stricter are parts of the messages for rules that only the schema has, and Compile does not need.
var stricter = []string{
	"must be in canonical form", "spec.network", "addressReuseGracePeriodSeconds", "should be", "Too long", "start and end must be of one family",
}

func checkPool(t *testing.T, b []byte) {
	t.Helper()
	meta := metav1.ObjectMeta{GenerateName: "p-", Namespace: metav1.NamespaceDefault}
	spec := draw.NewSource(b).PoolSpec()
	layout, errs := poolspec.Compile(spec)
	rejected := refusal(t, &v1alpha1.NetworkPool{ObjectMeta: meta, Spec: *spec})
	meta.Namespace = ""
	if global := refusal(t, &v1alpha1.GlobalNetworkPool{ObjectMeta: meta, Spec: v1alpha1.GlobalNetworkPoolSpec{NetworkPoolSpec: *spec}}); (global == nil) != (rejected == nil) {
		t.Errorf("%+v: NetworkPool %v, GlobalNetworkPool %v", spec, rejected, global)
	}
	if named := refusal(t, emptied(t, spec)); (named == nil) != (rejected == nil) {
		t.Errorf("%+v: %v, with its absent texts empty %v", spec, rejected, named)
	}
	if len(errs) == 0 && rejected != nil {
		for _, cause := range rejected.ErrStatus.Details.Causes {
			known := false
			for _, text := range stricter {
				known = known || strings.Contains(cause.Field+" "+cause.Message, text)
			}
			if !known {
				t.Errorf("%+v is refused, and could be served as %v: %s: %s", spec, layout.Allocatable().Ranges(), cause.Field, cause.Message)
			}
		}
	}
}

// emptied returns a pool whose absent texts are empty, as templates of Helm write fields without a value.
func emptied(t *testing.T, spec *v1alpha1.NetworkPoolSpec) *unstructured.Unstructured {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(spec)
	if err != nil {
		t.Fatal(err)
	}
	fill := func(of map[string]any, fields ...string) {
		for _, f := range fields {
			if _, ok := of[f]; !ok {
				of[f] = ""
			}
		}
	}
	fill(content, "cidr", "gateway", "network")
	subnets, _ := content["subnets"].([]any)
	for _, s := range subnets {
		fill(s.(map[string]any), "gateway")
	}
	u := &unstructured.Unstructured{Object: map[string]any{"spec": content}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.NetworkPoolKind))
	u.SetGenerateName("p-")
	u.SetNamespace(metav1.NamespaceDefault)
	return u
}

func checkAllocation(t *testing.T, b []byte) {
	t.Helper()
	a := &v1alpha1.IPAllocation{ObjectMeta: metav1.ObjectMeta{GenerateName: "a-", Namespace: metav1.NamespaceDefault}, Spec: draw.NewSource(b).AllocationSpec()}
	if _, ok := blocks.RangeForAllocation(a); ok {
		t.Errorf("%+v has a block", a)
	}
	pools.KeyFromAllocation(a)
	// Every text that can be parsed as a range is accepted, unless another field is wrong.
	if rejected, pin := refusal(t, a), a.Spec.PinnedRange; rejected != nil && pin != nil {
		_, err := poolutil.ParseRange(pin.StartAddress + "-" + pin.EndAddress)
		for _, cause := range rejected.ErrStatus.Details.Causes {
			if err == nil && strings.Contains(cause.Field, "pinnedRange") {
				t.Errorf("%+v: %s", a.Spec, cause.Message)
			}
		}
	}
}

func checkProvider(t *testing.T, b []byte) {
	t.Helper()
	c := &v1alpha1.ProviderConfig{ObjectMeta: metav1.ObjectMeta{GenerateName: "c-", Namespace: metav1.NamespaceDefault}}
	c.Spec.Network = draw.NewSource(b).ProviderNetwork()
	_ = refusal(t, c) // a config that is refused now may have been stored earlier
	network := c.Network()
	var pools []tenancy.Pool
	for _, ref := range tenancy.OrderPoolRefs(network.PoolRefs) {
		pools = append(pools, tenancy.NewPool(ref, nil, tenancy.Namespace{}))
	}
	tenancy.EstimateCapacity(network, pools)
	if v := tenancy.ValidateNetwork(network, pools); v.Ready.Message == "" {
		t.Errorf("%+v: nothing is said of it", network)
	}
	if size, err := tenancy.ComputeInitialSize(network, nil); err == nil && size.Message == "" {
		t.Errorf("%+v: %+v", network, size)
	}
}

// drawClusterCIDR draws a spec. Fields without an effect are valid in it, because the schema checks them too.
func drawClusterCIDR(d *draw.Source) v1alpha1.ClusterCIDRSpec {
	text := func(of ...string) string { return of[d.Int(len(of))] }
	bits := func() int32 {
		if d.Int(4) == 3 {
			return int32(d.Int(140)) - 2
		}
		return 4 + int32(d.Int(20))
	}
	prefix := func(colon bool) (p string) {
		for range 3 {
			if p = d.Prefix(); strings.Contains(p, ":") == colon {
				break
			}
		}
		return p
	}
	s := v1alpha1.ClusterCIDRSpec{PerNodeHostBits: bits()}
	families := d.Int(4)
	if families != 1 {
		s.IPv4 = prefix(false)
	}
	if families != 0 {
		s.IPv6 = prefix(true)
	}
	if s.IPv4 != "" && s.IPv6 != "" && d.Int(2) == 1 {
		own := bits()
		s.PerNodeHostBitsIPv6 = &own
	}
	requirements := func(key ...string) (out []corev1.NodeSelectorRequirement) {
		for range d.Int(3) {
			r := corev1.NodeSelectorRequirement{Key: text(key...)}
			r.Operator = corev1.NodeSelectorOperator(text("In", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "in"))
			for range d.Int(3) {
				r.Values = append(r.Values, text("big", "4", "", "-4", "very big", "ü", "9223372036854775808"))
			}
			out = append(out, r)
		}
		return out
	}
	if d.Int(2) == 1 {
		s.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{}}
		for range d.Int(3) {
			s.NodeSelector.NodeSelectorTerms = append(s.NodeSelector.NodeSelectorTerms, corev1.NodeSelectorTerm{
				MatchExpressions: requirements("size", "example.com/size", "metadata.name", "", "a=b"),
				MatchFields:      requirements("metadata.name", "metadata.name", "metadata.name", "size", ""),
			})
		}
	}
	return s
}

func checkClusterCIDR(t *testing.T, b []byte) {
	t.Helper()
	c := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{GenerateName: "c-"}, Spec: drawClusterCIDR(draw.NewSource(b))}
	rejected, errs := refusal(t, c), compile(&c.Spec)
	// CEL does not parse IPv4 addresses in IPv6 notation.
	if rejected != nil && len(errs) == 0 && !strings.Contains(c.Spec.IPv6, "::ffff:") {
		t.Errorf("%+v is refused, and could be served: %v", c.Spec, rejected)
	}
	for _, err := range errs {
		if rejected == nil && !inTextOfSelector.MatchString(err.Field) {
			t.Errorf("%+v is taken, and cannot be served: %v", c.Spec, err)
		}
	}
}

// inTextOfSelector matches the fields in which the schema finds fewer errors: see
// TestSchemaDoesNotLimitSelectorTexts.
var inTextOfSelector = regexp.MustCompile(`^spec\.nodeSelector\.nodeSelectorTerms\[\d+\]\.matchExpressions\[\d+\]`)

// A short run of what `make fuzz` does for any time, the same in each run.
func TestSchemaAgrees(t *testing.T) {
	for name, check := range map[string]func(*testing.T, []byte){
		"pools": checkPool, "allocations": checkAllocation, "providers": checkProvider, "clustercidrs": checkClusterCIDR,
	} {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2)) // one source for each check, as the order of a map differs in each run
			for range 300 {
				b := make([]byte, r.IntN(60))
				for i := range b {
					b[i] = byte(r.UintN(256))
				}
				check(t, b)
			}
		})
	}
}

func FuzzPools(f *testing.F)        { f.Fuzz(checkPool) }
func FuzzAllocations(f *testing.F)  { f.Fuzz(checkAllocation) }
func FuzzProviders(f *testing.F)    { f.Fuzz(checkProvider) }
func FuzzClusterCIDRs(f *testing.F) { f.Fuzz(checkClusterCIDR) }
