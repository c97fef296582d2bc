package api_test

import (
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
)

// clusterCIDROf returns a ClusterCIDR with a spec in YAML, as kubectl apply would send it.
func clusterCIDROf(g *WithT, spec string) *unstructured.Unstructured {
	content := map[string]any{}
	g.Expect(yaml.Unmarshal([]byte(spec), &content)).To(Succeed())
	u := &unstructured.Unstructured{Object: map[string]any{"spec": content}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.ClusterCIDRKind))
	u.SetGenerateName("cc-")
	return u
}

// specOf returns the spec of an object that the API server has accepted.
func specOf(g *WithT, u *unstructured.Unstructured) *v1alpha1.ClusterCIDRSpec {
	c := &v1alpha1.ClusterCIDR{}
	g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, c)).To(Succeed())
	return &c.Spec
}

// compile returns the errors that the code that serves Nodes finds in a spec.
func compile(s *v1alpha1.ClusterCIDRSpec) field.ErrorList {
	return nodeipam.RangeObjectFromClusterCIDR(&v1alpha1.ClusterCIDR{Spec: *s}).ValidationErrors
}

// Fields of a spec.
const (
	bits8 = `perNodeHostBits: 8`
	v4    = `ipv4: 10.1.0.0/16`
	v6    = `ipv6: "fd00:1:1::/64"`
	all   = `clusterSelector: {}`
	pool4 = `ipv4Pool: {name: pods}`
	pool6 = `ipv6Pool: {name: pods6, kind: NetworkPool, maxBlocks: 3}`
)

// flow returns a YAML object with the given fields.
func flow(fields ...string) string { return `{` + strings.Join(fields, `, `) + `}` }

// terms returns a nodeSelector with the given terms.
func terms(of ...string) string {
	return `nodeSelector: {nodeSelectorTerms: [` + strings.Join(of, `, `) + `]}`
}

// expressions returns a term on labels, and onName a term on the name of a Node.
func expressions(of ...string) string { return `{matchExpressions: [` + strings.Join(of, `, `) + `]}` }
func onName(of ...string) string      { return `{matchFields: [` + strings.Join(of, `, `) + `]}` }

func expectRefused(t *testing.T, spec, want string) {
	t.Helper()
	g := NewWithT(t)
	err := k8s.Create(t.Context(), clusterCIDROf(g, spec), client.DryRunAll, client.FieldValidation("Strict"))
	for part := range strings.SplitSeq(want, " ... ") {
		g.Expect(err).To(MatchError(ContainSubstring(part)))
	}
	g.Expect(apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)).To(BeTrue(), "%v", err)
}

// What node-ipam-controller refuses, and more. Wanted is the field and the message; the API server puts the value
// between them.
func TestBadClusterCIDRsAreRefusedWhenApplied(t *testing.T) { // K1, K3
	for name, c := range map[string]struct{ spec, want string }{
		"no range":        {flow(bits8), "spec ... set ipv4, ipv6, or both"},
		"no host bits":    {flow(v4), "spec.perNodeHostBits ... Required"},
		"nothing":         {flow(), "spec.perNodeHostBits ... Required"},
		"another field":   {flow(bits8, v4, `clusterCIDR: x`), `unknown field "spec.clusterCIDR"`},
		"empty":           {flow(bits8, v4, `ipv6: ""`), "spec.ipv6 ... at least 1 chars"},
		"words, IPv4":     {flow(bits8, `ipv4: test`), "spec.ipv4 ... must be a CIDR"},
		"words, IPv6":     {flow(bits8, `ipv6: testv6`), "spec.ipv6 ... must be a CIDR"},
		"IPv4 and words":  {flow(bits8, v4, `ipv6: testv6`), "spec.ipv6 ... must be a CIDR"},
		"words and IPv6":  {flow(bits8, `ipv4: testv4`, `ipv6: "fd00::/120"`), "spec.ipv4 ... must be a CIDR"},
		"an address":      {flow(bits8, `ipv4: 10.1.0.0`), "spec.ipv4 ... must be a CIDR"},
		"mapped":          {flow(bits8, `ipv6: "::ffff:10.0.0.0/104"`), "spec.ipv6 ... must be a CIDR"},
		"host bits, IPv4": {flow(bits8, `ipv4: 10.1.2.0/16`), "spec.ipv4 ... has host bits set"},
		"host bits, IPv6": {flow(bits8, `ipv6: "fd00:1:1::/16"`), "spec.ipv6 ... has host bits set"},
		"IPv4 as IPv6":    {flow(bits8, `ipv6: 10.2.0.0/16`), "spec.ipv6 ... must be of IPv6"},
		"IPv6 as IPv4":    {flow(bits8, `ipv4: "fd00::/120"`, v6), "spec.ipv4 ... must be of IPv4"},

		"below 4, IPv4":       {flow(`perNodeHostBits: 2`, v4), "spec.perNodeHostBits ... equal to 4"},
		"below 4, IPv6":       {flow(`perNodeHostBits: 3`, `ipv6: "fd00::/120"`), "spec.perNodeHostBits ... equal to 4"},
		"below 4, IPv6's own": {flow(bits8, `perNodeHostBitsIPv6: 3`, v6), "spec.perNodeHostBitsIPv6 ... equal to 4"},
		"above 124":           {flow(`perNodeHostBits: 125`, `ipv6: "::/0"`), "spec.perNodeHostBits ... equal to 124"},
		"above 124, IPv6's own": {
			flow(bits8, `perNodeHostBitsIPv6: 125`, `ipv6: "::/0"`), "spec.perNodeHostBitsIPv6 ... equal to 124"},
		"above 28, IPv4": {flow(`perNodeHostBits: 29`, `ipv4: 0.0.0.0/0`), "spec.perNodeHostBits ... at most 28"},
		"far above 28":   {flow(`perNodeHostBits: 100`, v4), "spec.perNodeHostBits ... at most 28"},
		"above 28, both": {flow(`perNodeHostBits: 29`, `ipv4: 0.0.0.0/0`, v6), "perNodeHostBitsIPv6 can be more"},

		"no room, IPv4":        {flow(`perNodeHostBits: 17`, v4), "spec.ipv4 ... is smaller than"},
		"no room, IPv6":        {flow(`perNodeHostBits: 12`, `ipv6: "fd00::/120"`), "spec.ipv6 ... is smaller than"},
		"no room, IPv6's own":  {flow(bits8, `perNodeHostBitsIPv6: 65`, v4, v6), "spec.ipv6 ... is smaller than"},
		"no room, both, IPv4":  {flow(`perNodeHostBits: 24`, v4, v6), "spec.ipv4 ... is smaller than"},
		"a pool and a range":   {flow(bits8, v4, pool4, all), "spec.ipv4Pool ... excludes ipv4"},
		"and of IPv6":          {flow(bits8, v6, pool6, all), "spec.ipv6Pool ... excludes ipv6"},
		"a pool for its own":   {flow(bits8, pool4), "set clusterSelector, or name the range"},
		"a nameless pool":      {flow(bits8, all, `ipv4Pool: {nodesPerBlock: 4}`), "spec.ipv4Pool.name ... Required"},
		"no power of two":      {flow(bits8, all, `ipv4Pool: {name: pods, nodesPerBlock: 12}`), "spec.ipv4Pool.nodesPerBlock ... supported values"},
		"no kind of pool":      {flow(bits8, all, `ipv4Pool: {name: pods, kind: InClusterIPPool}`), "spec.ipv4Pool.kind ... supported values"},
		"no block":             {flow(bits8, all, `ipv4Pool: {name: pods, maxBlocks: 0}`), "spec.ipv4Pool.maxBlocks ... equal to 1"},
		"above 28, pool":       {flow(`perNodeHostBits: 29`, all, pool4), "spec.perNodeHostBits ... at most 28"},
		"a block of all, IPv4": {flow(`perNodeHostBits: 28`, all, pool4), "spec.ipv4Pool.nodesPerBlock ... larger than all of the family"},
		"a block of all, IPv6": {flow(`perNodeHostBits: 124`, all, pool6), "spec.ipv6Pool.nodesPerBlock ... larger than all of the family"},
		"a block of all, own":  {flow(bits8, `perNodeHostBitsIPv6: 124`, all, pool6), "spec.ipv6Pool.nodesPerBlock ... larger than all of the family"},
		"no room, both, IPv6":  {flow(`perNodeHostBits: 16`, v4, `ipv6: "fd00::/120"`), "spec.ipv6 ... is smaller than"},
	} {
		t.Run(name, func(t *testing.T) { expectRefused(t, c.spec, c.want) })
	}
}

func TestBadSelectorsAreRefusedWhenApplied(t *testing.T) { // K1
	const exists, notA = `{key: size, operator: Exists}`, `{key: metadata.name, operator: NotIn, values: [a]}`
	last := expressions(append(slices.Repeat([]string{exists}, 19), `{key: size, operator: In}`)...)
	for name, c := range map[string]struct{ selector, want string }{
		"no list": {`nodeSelector: {}`, "spec.nodeSelector.nodeSelectorTerms ... Required"},
		"no key":  {terms(expressions(`{operator: Exists}`)), "nodeSelectorTerms[0].matchExpressions[0].key ... Required"},
		"no operator": {
			terms(expressions(`{key: size}`)), "nodeSelectorTerms[0].matchExpressions[0].operator ... Required"},
		"empty key": {terms(expressions(`{key: "", operator: Exists}`)), "nodeSelectorTerms ... has a key"},
		"lower case": {
			terms(expressions(`{key: size, operator: in, values: [big]}`)), "nodeSelectorTerms ... an operator, and values"},
		"In nothing":      {terms(expressions(`{key: size, operator: In}`)), "at least one with In"},
		"NotIn nothing":   {terms(expressions(`{key: size, operator: NotIn, values: []}`)), "at least one with In"},
		"Exists with one": {terms(expressions(`{key: size, operator: Exists, values: [big]}`)), "none with Exists"},
		"Gt two":          {terms(expressions(`{key: cpus, operator: Gt, values: ["4", "5"]}`)), "one number with Gt"},
		"the last one":    {terms(append(slices.Repeat([]string{expressions(exists)}, 99), last)...), "at least one with In"},
		"another field": {
			terms(onName(`{key: spec.x, operator: In, values: [x]}`)), "nodeSelectorTerms ... has the key metadata.name"},
		"a name that exists": {terms(onName(`{key: metadata.name, operator: Exists}`)), "the operator In or NotIn"},
		"two names": {
			terms(onName(`{key: metadata.name, operator: In, values: [a, b]}`)), "one value, the name of a Node"},
		"101 terms":      {terms(slices.Repeat([]string{expressions(exists)}, 101)...), "at most 100 terms"},
		"21 expressions": {terms(expressions(slices.Repeat([]string{exists}, 21)...)), "at most 20 matchExpressions"},
		"21 fields":      {terms(onName(slices.Repeat([]string{notA}, 21)...)), "20 matchFields"},
	} {
		t.Run(name, func(t *testing.T) { expectRefused(t, flow(bits8, v4, c.selector), c.want) })
	}
}

// What node-ipam-controller accepts, and more. Every spec that the API server accepts can be served.
func TestGoodClusterCIDRsApply(t *testing.T) { // K1, K3
	size := terms(expressions(`{key: size, operator: In, values: [big]}`))
	exists, notA := `{key: a, operator: Exists}`, `{key: metadata.name, operator: NotIn, values: [a]}`
	for name, spec := range map[string]string{
		"IPv4":                 flow(bits8, v4, size),
		"IPv4, one Node":       flow(`perNodeHostBits: 16`, v4, size),
		"IPv4, the least":      flow(`perNodeHostBits: 4`, v4, size),
		"IPv4, the most":       flow(`perNodeHostBits: 28`, `ipv4: 0.0.0.0/0`),
		"IPv4, the smallest":   flow(`perNodeHostBits: 4`, `ipv4: 10.0.0.240/28`),
		"IPv6":                 flow(bits8, v6, size),
		"IPv6, one Node":       flow(`perNodeHostBits: 64`, v6, size),
		"IPv6, the least":      flow(`perNodeHostBits: 4`, v6, size),
		"IPv6, many bits":      flow(`perNodeHostBits: 100`, `ipv6: "fd00::/16"`, size),
		"IPv6, the most":       flow(`perNodeHostBits: 124`, `ipv6: "::/0"`),
		"IPv6, in another way": flow(`perNodeHostBits: 64`, `ipv6: "FD00:0001:0000::/48"`),
		"IPv6, by its own":     flow(`perNodeHostBits: 124`, `perNodeHostBitsIPv6: 4`, `ipv6: "fd00::/124"`),
		"both":                 flow(bits8, v4, v6, size),
		"both, all Nodes":      flow(bits8, v4, v6),
		"both, own bits":       flow(bits8, `perNodeHostBitsIPv6: 64`, v4, `ipv6: "fd00:1::/48"`),
		"pools":                flow(bits8, `perNodeHostBitsIPv6: 64`, all, pool4, pool6),
		"a pool and a range":   flow(bits8, all, v4, pool6),
		"the largest block":    flow(`perNodeHostBits: 27`, all, pool4),
		"a block of one Node":  flow(`perNodeHostBits: 28`, all, `ipv4Pool: {name: pods, nodesPerBlock: 1}`),
		"no term":              flow(bits8, v4, terms()),
		"a term of nothing":    flow(bits8, v4, terms(`{}`)),
		"each operator": flow(bits8, v4, terms(
			expressions(`{key: a, operator: In, values: [x, z]}`, `{key: b, operator: NotIn, values: [""]}`, exists),
			expressions(`{key: example.com/d, operator: DoesNotExist, values: []}`),
			expressions(`{key: e, operator: Gt, values: ["4"]}`, `{key: f, operator: Lt, values: ["8"]}`),
			`{matchFields: [{key: metadata.name, operator: In, values: [w1]}], matchExpressions: [`+exists+`]}`,
			onName(notA))),
		"as much as can be": flow(bits8, v4, terms(slices.Repeat([]string{
			expressions(slices.Repeat([]string{exists}, 20)...), onName(slices.Repeat([]string{notA}, 20)...),
		}, 50)...)),
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			c := clusterCIDROf(g, spec)
			g.Expect(k8s.Create(t.Context(), c, client.DryRunAll, client.FieldValidation("Strict"))).To(Succeed())
			g.Expect(compile(specOf(g, c))).To(BeEmpty())
		})
	}
}

// The schema of a NodeSelector limits the length of no text, so CEL cannot check the texts at a cost that the API
// server allows. Their errors are found later, and reported in a condition.
func TestSchemaDoesNotLimitSelectorTexts(t *testing.T) {
	for name, expression := range map[string]string{
		"no label":            `{key: NoUppercaseOrSpecialCharsLike=Equals, operator: In, values: [bar]}`,
		"no value of a label": `{key: size, operator: In, values: [very big]}`,
		"a long value":        `{key: size, operator: In, values: [` + strings.Repeat("x", 64) + `]}`,
		"no number":           `{key: cpus, operator: Gt, values: [four]}`,
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			c := clusterCIDROf(g, flow(bits8, v4, terms(expressions(expression))))
			g.Expect(k8s.Create(t.Context(), c, client.DryRunAll)).To(Succeed())
			errs := compile(specOf(g, c))
			g.Expect(errs).To(HaveLen(1))
			g.Expect(errs[0].Field).To(Equal("spec.nodeSelector.nodeSelectorTerms[0].matchExpressions[0]"))
		})
	}
}

// Nodes keep the CIDRs that they have, so the ranges that these come from cannot be changed. A rule on an optional
// field would not detect that the field is added or removed.
func TestClusterCIDRsAreImmutable(t *testing.T) { // K2
	own := `perNodeHostBitsIPv6: 64`
	size := terms(expressions(`{key: size, operator: In, values: [big]}`))
	small := terms(expressions(`{key: size, operator: In, values: [small]}`))
	for name, c := range map[string]struct {
		before, after string
		same          bool
	}{
		"nothing":         {before: flow(bits8, v4, v6, size), after: flow(size, v6, v4, bits8), same: true},
		"host bits":       {before: flow(bits8, v4, v6), after: flow(`perNodeHostBits: 12`, v4, v6)},
		"ipv4":            {before: flow(bits8, v4, v6), after: flow(bits8, `ipv4: 10.2.0.0/16`, v6)},
		"ipv6":            {before: flow(bits8, v4, v6), after: flow(bits8, v4, `ipv6: "fd00:2::/112"`)},
		"form of ipv6":    {before: flow(bits8, v4, v6), after: flow(bits8, v4, `ipv6: "FD00:1:1::/64"`)},
		"selector":        {before: flow(bits8, v4, v6, size), after: flow(bits8, v4, v6, small)},
		"add ipv4":        {before: flow(bits8, v6), after: flow(bits8, v4, v6)},
		"remove ipv4":     {before: flow(bits8, v4, v6), after: flow(bits8, v6)},
		"add ipv6":        {before: flow(bits8, v4), after: flow(bits8, v4, v6)},
		"remove ipv6":     {before: flow(bits8, v4, v6), after: flow(bits8, v4)},
		"add own bits":    {before: flow(bits8, v4, v6), after: flow(bits8, own, v4, v6)},
		"remove own bits": {before: flow(bits8, own, v4, v6), after: flow(bits8, v4, v6)},
		"add selector":    {before: flow(bits8, v4), after: flow(bits8, v4, size)},
		"remove selector": {before: flow(bits8, v4, size), after: flow(bits8, v4)},
		"add term":        {before: flow(bits8, v4, terms(`{}`)), after: flow(bits8, v4, terms(`{}`, `{}`))},
		"remove term":     {before: flow(bits8, v4, terms(`{}`)), after: flow(bits8, v4, terms())},
		"add expression":  {before: flow(bits8, v4, terms(`{}`)), after: flow(bits8, v4, size)},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			o := clusterCIDROf(g, c.before)
			g.Expect(k8s.Create(t.Context(), o)).To(Succeed())
			o.Object["spec"] = clusterCIDROf(g, c.after).Object["spec"]
			o.SetLabels(map[string]string{"changed": "too"})
			if err := k8s.Update(t.Context(), o); c.same {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(MatchError(And(ContainSubstring("spec: "), ContainSubstring("is immutable"))))
			}
		})
	}
}

// Selectors as large as a request allows are compared too, at a cost that the API server allows.
func TestLargeClusterCIDRsAreCompared(t *testing.T) { // K2
	g := NewWithT(t)
	with := func(last string) *unstructured.Unstructured {
		values := append(slices.Repeat([]string{strings.Repeat("x", 60)}, 18_000), last)
		expression := `{key: a, operator: In, values: [` + strings.Join(values, `, `) + `]}`
		return clusterCIDROf(g, flow(bits8, v4, terms(expressions(expression))))
	}
	o := with("a")
	g.Expect(k8s.Create(t.Context(), o)).To(Succeed())
	o.SetFinalizers([]string{v1alpha1.ClusterCIDRFinalizer})
	g.Expect(k8s.Update(t.Context(), o)).To(Succeed())
	o.Object["spec"] = with("b").Object["spec"]
	g.Expect(k8s.Update(t.Context(), o)).To(MatchError(ContainSubstring("is immutable")))
}

// Users of node-ipam-controller apply their existing manifests, with another apiVersion.
func TestClusterCIDRsOfNodeIPAMControllerApply(t *testing.T) { // K1
	g := NewWithT(t)
	text := string(read(g, "testdata/node-ipam-clustercidrs.yaml"))
	text = strings.ReplaceAll(text, "apiVersion: networking.x-k8s.io/v1\n", "apiVersion: butler.butlerlabs.dev/v1alpha1\n")
	objects := documents(g, []byte(text))
	g.Expect(objects).To(HaveLen(5))
	for _, u := range objects {
		g.Expect(k8s.Create(t.Context(), u, client.DryRunAll, client.FieldValidation("Strict"))).To(Succeed())
		g.Expect(compile(specOf(g, u))).To(BeEmpty())
	}
}

func TestSampleClusterCIDRsApply(t *testing.T) {
	g := NewWithT(t)
	objects := documents(g, read(g, "../../config/samples/clustercidrs.yaml"))
	g.Expect(objects).To(HaveLen(4))
	for _, u := range objects {
		g.Expect(k8s.Create(t.Context(), u, client.DryRunAll, client.FieldValidation("Strict"))).To(Succeed())
		g.Expect(compile(specOf(g, u))).To(BeEmpty())
	}
}

// The status of a ClusterCIDR that is full, or not served yet, shows 0 instead of omitting the field.
func TestNumbersOfClusterCIDRsNeverVanish(t *testing.T) {
	g := NewWithT(t)
	o := clusterCIDROf(g, `{perNodeHostBits: 8, `+v4+`}`)
	g.Expect(k8s.Create(t.Context(), o)).To(Succeed())
	zero := BeEquivalentTo(0)
	g.Expect(o.Object["status"]).To(And(HaveLen(4), HaveKeyWithValue("observedGeneration", zero),
		HaveKeyWithValue("capacity", zero), HaveKeyWithValue("allocated", zero), HaveKeyWithValue("free", zero)))
	c := &v1alpha1.ClusterCIDR{}
	g.Expect(k8s.Get(t.Context(), client.ObjectKeyFromObject(o), c)).To(Succeed())
	c.Status = v1alpha1.ClusterCIDRStatus{ObservedGeneration: 1, Capacity: 256, Allocated: 256}
	g.Expect(k8s.Status().Update(t.Context(), c)).To(Succeed())
	g.Expect(k8s.Get(t.Context(), client.ObjectKeyFromObject(o), o)).To(Succeed())
	g.Expect(o.Object["status"]).To(And(HaveKeyWithValue("capacity", BeEquivalentTo(256)), HaveKeyWithValue("free", zero)))
}
