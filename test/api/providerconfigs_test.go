package api_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// configOf returns a ProviderConfig with a spec in YAML, as kubectl apply would send it.
func configOf(g *WithT, spec string) *unstructured.Unstructured {
	content := map[string]any{}
	g.Expect(yaml.Unmarshal([]byte(spec), &content)).To(Succeed())
	u := &unstructured.Unstructured{Object: map[string]any{"spec": content}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ProviderConfig"))
	u.SetGenerateName("c-")
	u.SetNamespace(metav1.NamespaceDefault)
	return u
}

func TestBadProviderConfigsAreRefusedWhenApplied(t *testing.T) { // B14
	for name, c := range map[string]struct{ spec, want string }{
		"another provider":       {`{provider: harvestr}`, "spec.provider ... supported values"},
		"nameless credentials":   {`{credentialsRef: {namespace: a}}`, "spec.credentialsRef.name ... Required"},
		"another mode":           {`{network: {mode: dhcp}}`, "spec.network.mode ... supported values"},
		"a nameless pool":        {`{network: {poolRefs: [{name: ""}]}}`, "spec.network.poolRefs[0].name ... at least 1 chars"},
		"a pool without a name":  {`{network: {poolRefs: [{priority: 1}]}}`, "spec.network.poolRefs[0].name ... Required"},
		"another kind of pool":   {`{network: {poolRefs: [{name: p, kind: InClusterIPPool}]}}`, "supported values ... GlobalNetworkPool"},
		"a pool of elsewhere":    {`{network: {poolRefs: [{name: p, namespace: other}]}}`, `unknown field "spec.network.poolRefs[0].namespace"`},
		"a pool twice":           {`{network: {poolRefs: [{name: p}, {name: q}, {name: p, priority: 9}]}}`, "spec.network.poolRefs ... names one pool twice"},
		"twice, one kind said":   {`{network: {poolRefs: [{name: p}, {name: p, kind: NetworkPool}]}}`, "names one pool twice"},
		"too many pools":         {`{network: {poolRefs: [` + strings.Repeat("{name: p},", 65) + `]}}`, "must have at most 64 items"},
		"gateway is no address":  {`{network: {gateway: 10.0.0.1/24}}`, "spec.network.gateway ... must be one IPv4 or IPv6 address"},
		"DNS server is a name":   {`{network: {dnsServers: [dns.example.org]}}`, "spec.network.dnsServers[0] ... must be one IPv4 or IPv6 address"},
		"empty time server":      {`{network: {timeServers: [""]}}`, "spec.network.timeServers[0]"},
		"no addresses":           {`{network: {loadBalancer: {defaultPoolSize: 0}}}`, "defaultPoolSize ... greater than or equal to 1"},
		"fewer than none":        {`{network: {loadBalancer: {initialPoolSize: -1}}}`, "initialPoolSize ... greater than or equal to 0"},
		"no growth":              {`{network: {loadBalancer: {growthIncrement: 0}}}`, "growthIncrement ... greater than or equal to 1"},
		"another allocationMode": {`{network: {loadBalancer: {allocationMode: dynamic}}}`, "allocationMode ... supported values"},
		"quota of no nodes":      {`{network: {quotaPerTenant: {maxNodeIPs: 0}}}`, "maxNodeIPs ... greater than or equal to 1"},
		"quota of no Services":   {`{network: {quotaPerTenant: {maxLoadBalancerIPs: 0}}}`, "maxLoadBalancerIPs ... greater than or equal to 1"},
		"another scope":          {`{scope: {type: cluster}}`, "spec.scope.type ... supported values"},
		"a nameless team":        {`{scope: {type: team, teamRef: {}}}`, "spec.scope.teamRef.name ... Required"},
		"misspelled field":       {`{network: {poolRef: [{name: p}]}}`, `unknown field "spec.network.poolRef"`},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			err := k8s.Create(t.Context(), configOf(g, c.spec), client.DryRunAll, client.FieldValidation("Strict"))
			g.Expect(err).To(HaveOccurred())
			for part := range strings.SplitSeq(c.want, " ... ") {
				g.Expect(err).To(MatchError(ContainSubstring(part)))
			}
		})
	}
}

func TestGoodProviderConfigsApply(t *testing.T) {
	for name, spec := range map[string]string{
		"the least":            `{}`,
		"no pools yet":         `{network: {mode: ipam}}`, // B31: a condition reports it
		"two kinds, one name":  `{network: {mode: ipam, poolRefs: [{name: p}, {name: p, kind: GlobalNetworkPool, priority: -1}]}}`,
		"subnet is a name":     `{network: {subnet: VM Network - VLAN 40, timeServers: [ntp.example.org, 10.0.0.2]}}`,
		"elastic from nothing": `{network: {loadBalancer: {allocationMode: elastic, initialPoolSize: 0}}}`, // F18
		"IPv6":                 `{network: {gateway: "fd00::1", dnsServers: ["fd00::53"]}}`,
		"an empty gateway":     `{network: {gateway: ""}}`,
		"everything else": `{provider: vsphere, credentialsRef: {name: s, namespace: secrets, key: k}, namespaceSelector: {matchLabels: {a: b}},
			scope: {type: team, teamRef: {name: a}}, limits: {maxClustersPerTeam: 3, maxNodesPerTeam: 0}}`,
		"what Butler says of the infrastructure": `{provider: harvester, harvester: {networkName: default/vlan40, namespace: default}}`,
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(k8s.Create(t.Context(), configOf(g, spec), client.DryRunAll, client.FieldValidation("Strict"))).To(Succeed())
		})
	}
}

func TestProviderConfigDefaults(t *testing.T) { // B14
	g := NewWithT(t)
	u := configOf(g, `{scope: {}, harvester: {networkName: default/vlan40}, network: {poolRefs: [{name: p}], loadBalancer: {}, quotaPerTenant: {}}}`)
	g.Expect(k8s.Create(t.Context(), u)).To(Succeed())
	c := &v1alpha1.ProviderConfig{}
	g.Expect(k8s.Get(t.Context(), client.ObjectKeyFromObject(u), c)).To(Succeed())
	g.Expect(c.Spec.Scope.Type).To(Equal(v1alpha1.PlatformScope))
	g.Expect(c.Spec.Harvester.Raw).To(MatchJSON(`{"networkName": "default/vlan40"}`))
	g.Expect(c.Spec.Network).To(HaveValue(Equal(v1alpha1.ProviderNetwork{
		Mode:     v1alpha1.CloudMode,
		PoolRefs: []v1alpha1.ProviderPoolReference{{PoolReference: v1alpha1.PoolReference{Kind: v1alpha1.NetworkPoolKind, Name: "p"}}},
		LoadBalancer: &v1alpha1.LoadBalancerPool{
			DefaultPoolSize: ptr.To[int32](v1alpha1.DefaultPoolSize), AllocationMode: v1alpha1.StaticAllocation,
			InitialPoolSize: ptr.To[int32](v1alpha1.DefaultInitialPoolSize), GrowthIncrement: ptr.To[int32](v1alpha1.DefaultGrowthIncrement),
			Type: v1alpha1.MetalLBLoadBalancer, Projection: v1alpha1.DefaultPoolProjection,
		},
		QuotaPerTenant: &v1alpha1.TenantQuota{}, // unlimited
	})))
}

// The capacity of a configuration without room shows 0 instead of omitting the field.
func TestCapacityNeverVanishes(t *testing.T) { // B78
	g := NewWithT(t)
	u := configOf(g, `{}`)
	g.Expect(k8s.Create(t.Context(), u)).To(Succeed())
	c := &v1alpha1.ProviderConfig{}
	g.Expect(k8s.Get(t.Context(), client.ObjectKeyFromObject(u), c)).To(Succeed())
	c.Status.ObservedGeneration = c.Generation
	g.Expect(k8s.Status().Update(t.Context(), c)).To(Succeed())
	g.Expect(k8s.Get(t.Context(), client.ObjectKeyFromObject(u), u)).To(Succeed())
	g.Expect(u.Object["status"]).To(And(
		HaveKeyWithValue("ready", false), HaveKeyWithValue("validated", false),
		HaveKeyWithValue("capacity", And(HaveKeyWithValue("availableIPs", BeEquivalentTo(0)), HaveKeyWithValue("estimatedTenants", BeEquivalentTo(0))))))
}

// Users of Butler apply their existing manifests (B14). Two of the examples have the same name, and the namespace
// belongs to another test, so nothing is stored.
func TestButlersProviderConfigsApplyUnchanged(t *testing.T) {
	g := NewWithT(t)
	configs := documents(g, read(g, "testdata/butler-providerconfigs.yaml"))
	g.Expect(configs).To(HaveLen(4))
	for _, u := range configs {
		u.SetNamespace(metav1.NamespaceDefault)
		g.Expect(k8s.Create(t.Context(), u, client.DryRunAll, client.FieldValidation("Strict"))).To(Succeed())
	}
}
