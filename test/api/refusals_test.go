package api_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// poolOf returns a pool of a kind with a spec in YAML, as kubectl apply would send it.
func poolOf(g *WithT, kind, spec string) *unstructured.Unstructured {
	content := map[string]any{}
	g.Expect(yaml.Unmarshal([]byte(spec), &content)).To(Succeed())
	u := &unstructured.Unstructured{Object: map[string]any{"spec": content}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	u.SetGenerateName("p-")
	if kind == v1alpha1.NetworkPoolKind {
		u.SetNamespace(metav1.NamespaceDefault)
	}
	return u
}

var kinds = []string{v1alpha1.NetworkPoolKind, v1alpha1.GlobalNetworkPoolKind}

// No webhook is registered here: the schema alone refuses these specs. Wanted is the field and the message; the API
// server puts the value between them.
func TestBadSpecsAreRefusedWhenApplied(t *testing.T) {
	for name, c := range map[string]struct{ spec, want string }{
		"no addresses":            {`{}`, "a pool needs addresses: set cidr, addresses, or both"},
		"no such address":         {`{cidr: 999.1.1.1/99}`, "spec.cidr ... must be a CIDR"},
		"no prefix length":        {`{cidr: 10.0.0.0}`, "spec.cidr ... must be a CIDR"},
		"host bits":               {`{cidr: 10.0.0.5/24}`, "has host bits set"},
		"empty cidr":              {`{cidr: ""}`, "a pool needs addresses: set cidr, addresses, or both"},
		"nothing but empty texts": {`{cidr: "", gateway: "", network: ""}`, "a pool needs addresses: set cidr, addresses, or both"},
		"words":                   {`{addresses: [rack seven]}`, "spec.addresses[0] ... must be a CIDR"},
		"end before start":        {`{addresses: [10.0.0.20-10.0.0.10]}`, "the end of the range is before its start"},
		"end before start, far":   {`{addresses: [10.0.1.0-9.255.255.255]}`, "the end of the range is before its start"},
		"families in a range":     {`{addresses: ["10.0.0.1-fd00::1"]}`, "both ends of a range must be of one family"},
		"a range of words":        {`{addresses: [10.0.0.1-last]}`, "spec.addresses[0] ... must be a CIDR"},
		"families of cidr and addresses": {
			`{cidr: 10.0.0.0/24, addresses: ["fd00::/64"]}`, "one family, IPv4 or IPv6"},
		"families of addresses":  {`{addresses: [10.0.0.1, "fd00::1"]}`, "one family, IPv4 or IPv6"},
		"family of gateway":      {`{cidr: "fd00::/64", gateway: 10.0.0.1}`, "one family, IPv4 or IPv6"},
		"family of reserved":     {`{addresses: ["fd00::/64"], reserved: [{cidr: 10.0.0.1}]}`, "one family, IPv4 or IPv6"},
		"family of subnet":       {`{cidr: 10.0.0.0/24, subnets: [{cidr: "fd00::/64"}]}`, "one family, IPv4 or IPv6"},
		"family of tenant range": {`{addresses: [10.0.0.0/24], tenantAllocation: {start: "fd00::1", end: "fd00::2"}}`, "one family, IPv4 or IPv6"},
		"family of preAllocation": {
			`{addresses: [10.0.0.0/24], preAllocations: {vip: "fd00::1"}}`, "one family, IPv4 or IPv6"},
		"reserved nothing":       {`{cidr: 10.0.0.0/24, reserved: [{description: x}]}`, "needs one of addresses and cidr"},
		"reserved twice":         {`{cidr: 10.0.0.0/24, reserved: [{addresses: 10.0.0.1, cidr: 10.0.0.2}]}`, "needs one of addresses and cidr"},
		"reserved nonsense":      {`{cidr: 10.0.0.0/24, reserved: [{addresses: x}]}`, "must be a CIDR"},
		"family of addresses":    {`{addresses: ["fd00::/64"], reserved: [{addresses: 10.0.0.1}]}`, "one family, IPv4 or IPv6"},
		"addresses outside":      {`{cidr: 10.0.0.0/24, reserved: [{addresses: 10.0.0.250-10.0.1.5}]}`, "reserves addresses outside cidr"},
		"reserved cidr outside":  {`{cidr: 10.0.0.0/24, reserved: [{cidr: 10.0.1.0/28}]}`, "spec.reserved ... reserves addresses outside cidr"},
		"reserved range outside": {`{cidr: 10.0.0.0/24, reserved: [{cidr: 10.0.0.250-10.0.1.5}]}`, "reserves addresses outside cidr"},
		"reserved one outside":   {`{cidr: "fd00::/64", reserved: [{cidr: "fd01::1"}]}`, "reserves addresses outside cidr"},
		"reserved larger":        {`{cidr: 10.0.0.0/24, reserved: [{cidr: 10.0.0.0/16}]}`, "reserves addresses outside cidr"},
		"gateway outside cidr":   {`{cidr: 10.0.0.0/24, gateway: 10.0.1.1}`, "spec.gateway ... 10.0.1.1 is outside cidr 10.0.0.0/24; correct it, or"},
		"gateway outside cidr, IPv6": {
			`{cidr: "fd00::/64", gateway: "fd01::1"}`, "spec.gateway ... describe several networks with subnets, or use a link-local gateway (fe80::/10)"},
		"gateway outside prefix, IPv6": {
			`{cidr: "fd00::/64", prefix: 64, gateway: "fd01::1"}`, "describe several networks with subnets, or use a link-local gateway (fe80::/10)"},
		"gateway outside subnet, IPv6": {
			`{cidr: "fd00::/64", subnets: [{cidr: "fd00::/65", gateway: "fd01::1"}]}`, "a gateway is an address of its own subnet, or link-local (fe80::/10)"},
		"gateway beside link-local":    {`{cidr: "fd00::/64", gateway: "fec0::1"}`, "is outside cidr"},
		"gateway link-local multicast": {`{cidr: "fd00::/64", gateway: "ff02::2"}`, "is outside cidr"},
		"gateway link-local of IPv4":   {`{cidr: 10.0.0.0/24, gateway: 169.254.1.1}`, "is outside cidr"},
		"gateway link-local of IPv4, prefix": {
			`{cidr: 10.0.0.0/24, prefix: 24, gateway: 169.254.1.1}`, "is not in the network, as long as prefix says"},
		"gateway link-local of IPv4, subnet": {
			`{cidr: 10.0.0.0/24, subnets: [{cidr: 10.0.0.0/25, gateway: 169.254.1.1}]}`, "is outside the subnet"},
		"gateway link-local of the other family": {`{cidr: 10.0.0.0/24, gateway: "fe80::1"}`, "one family, IPv4 or IPv6"},
		"gateway link-local of the other family, subnet": {
			`{cidr: 10.0.0.0/24, subnets: [{cidr: 10.0.0.0/25, gateway: "fe80::1"}]}`, "is of another address family than its subnet"},
		"gateway with a zone":               {`{cidr: "fd00::/64", gateway: "fe80::1%eth0"}`, "must be one IPv4 or IPv6 address"},
		"gateway link-local without prefix": {`{addresses: ["fd00::5-fd00::9"], gateway: "fe80::1"}`, "needs prefix"},
		"gateway outside prefix": {`{cidr: 10.0.0.0/24, prefix: 23, gateway: 10.0.2.1}`,
			"10.0.2.1 is not in the network, as long as prefix says, of all of the addresses of the pool, such as 10.0.0.0/24"},
		"gateway outside the prefix of addresses": {
			`{cidr: "", addresses: [10.0.0.5-10.0.0.9], prefix: 24, gateway: 10.0.1.1}`,
			"10.0.1.1 is not in the network, as long as prefix says, of all of the addresses of the pool, such as 10.0.0.5-10.0.0.9"},
		"gateway outside a long prefix": {
			`{addresses: ["fd00::5"], prefix: 104, gateway: "fd00::100:1"}`, "is not in the network, as long as prefix says"},
		"gateway without prefix":     {`{addresses: [10.0.0.5-10.0.0.9], gateway: 10.0.0.1}`, "needs prefix"},
		"gateway, and an empty cidr": {`{cidr: "", addresses: [10.0.0.5-10.0.0.9], gateway: 10.0.0.1}`, "needs prefix"},
		"gateway outside subnet":     {`{cidr: 10.0.0.0/24, subnets: [{cidr: 10.0.0.0/25, gateway: 10.0.0.129}]}`, "10.0.0.129 is outside the subnet 10.0.0.0/25"},
		"two entries of a subnet":    {`{cidr: 10.0.0.0/24, subnets: [{cidr: 10.0.0.0/25}, {cidr: 10.0.0.0/25}]}`, "lists one subnet twice"},
		"gateway is no address":      {`{cidr: 10.0.0.0/24, gateway: 10.0.0.1/24}`, "must be one IPv4 or IPv6 address"},
		"prefix of IPv4 too long":    {`{cidr: 10.0.0.0/24, prefix: 33}`, "spec.prefix ... must be at most 32"},
		"prefix of IPv6 too long":    {`{cidr: "fd00::/64", prefix: 129}`, "spec.prefix"},
		"tenant end before start":    {`{cidr: 10.0.0.0/16, tenantAllocation: {start: 10.0.2.0, end: 10.0.1.255}}`, "end is before start"},
		"tenant range outside":       {`{cidr: 10.0.0.0/24, tenantAllocation: {start: 10.0.0.9, end: 10.0.1.9}}`, "start and end must lie inside cidr"},
		"preAllocation outside":      {`{cidr: 10.0.0.0/24, preAllocations: {a: 10.0.1.9}}`, "keeps an address outside cidr"},
		"preAllocation of gateway":   {`{cidr: 10.0.0.0/24, gateway: 10.0.0.1, preAllocations: {a: 10.0.0.1}}`, "keeps the gateway"},
		"preAllocation, long form":   {`{cidr: "fd00::/64", preAllocations: {a: "fd00:0::a"}}`, "must be in canonical form"},
		"unit longer than IPv4":      {`{cidr: 10.0.0.0/24, allocationPrefixLength: 40}`, "spec.allocationPrefixLength ... must be at most 32"},
		"grace beyond a month":       {`{cidr: 10.0.0.0/24, addressReuseGracePeriodSeconds: 2592001}`, "addressReuseGracePeriodSeconds"},
		"no failure domain":          {`{cidr: 10.0.0.0/24, subnets: [{cidr: 10.0.0.0/24, failureDomains: []}]}`, "spec.subnets[0].failureDomains"},
		"unnamed failure domain":     {`{cidr: 10.0.0.0/24, subnets: [{cidr: 10.0.0.0/24, failureDomains: [""]}]}`, "spec.subnets[0].failureDomains[0]"},
		"failure domain twice":       {`{cidr: 10.0.0.0/24, subnets: [{cidr: 10.0.0.0/24, failureDomains: [a, a]}]}`, "spec.subnets[0].failureDomains[1]: Duplicate value"},
		"unknown order":              {`{cidr: 10.0.0.0/24, allocationOrder: Random}`, `Unsupported value: "Random": supported values: "BestFit", "LeastRecentlyUsed"`},
		"network that is no name":    {`{cidr: 10.0.0.0/24, network: Rack 7}`, "must be a name of lower case letters"},
		"misspelled field":           {`{cidr: 10.0.0.0/24, gatway: 10.0.0.1}`, `unknown field "spec.gatway"`},
	} {
		t.Run(name, func(t *testing.T) {
			for _, kind := range kinds {
				g := NewWithT(t)
				err := k8s.Create(t.Context(), poolOf(g, kind, c.spec), client.DryRunAll, client.FieldValidation("Strict"))
				for _, want := range strings.Split(c.want, " ... ") {
					g.Expect(err).To(MatchError(ContainSubstring(want)), kind)
				}
				g.Expect(apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)).To(BeTrue(), "%s: %v", kind, err)
			}
		})
	}
}

func TestGoodSpecsApply(t *testing.T) {
	for name, spec := range map[string]string{
		"smallest":               `{cidr: 10.0.0.0/32}`,
		"three forms":            `{addresses: [10.0.0.0/28, 10.0.0.20-10.0.0.30, 10.0.0.40], reserved: [{cidr: 10.0.0.20-10.0.0.21}], prefix: 24, gateway: 10.0.0.1}`,
		"IPv6":                   `{cidr: "fd00:40::/64", gateway: "fd00:40::1", reserved: [{cidr: "fd00:40::2-fd00:40::ff"}], preAllocations: {vip: "fd00:40::a"}}`,
		"link-local gateway":     `{cidr: "fd00:50::/64", gateway: "fe80::1"}`,
		"its prefix":             `{addresses: ["fd00:50::10-fd00:50::20", "fd00:51::/64"], prefix: 64, gateway: "febf::1"}`,
		"its subnets":            `{cidr: "fd00::/48", subnets: [{cidr: "fd00:0:0:1::/64", gateway: "fe80::1"}, {cidr: "fd00:0:0:2::/64", gateway: "fe80::1"}]}`,
		"part of a network":      `{cidr: 10.0.0.128/25, prefix: 24, gateway: 10.0.0.1}`,
		"reserved by addresses":  `{cidr: 10.0.0.0/24, reserved: [{addresses: 10.0.0.0/28}, {addresses: 10.0.0.20-10.0.0.29}, {addresses: 10.0.0.40}, {cidr: 10.0.0.48/28}]}`,
		"reserved to the edges":  `{cidr: 10.0.0.0/24, reserved: [{cidr: 10.0.0.0-10.0.0.255}, {cidr: 10.0.0.0/24}, {cidr: 10.0.0.255}]}`,
		"routed host addresses":  `{cidr: 10.0.0.0/24, prefix: 32, gateway: 169.254.1.1}`,
		"subnets":                `{addresses: [10.0.0.0/24, 10.1.0.0/24], subnets: [{cidr: 10.0.0.0/24, gateway: 10.0.0.1}, {cidr: 10.1.0.0/24, gateway: 10.1.0.1}]}`,
		"long IPv6 prefix":       `{addresses: ["fd00::5"], prefix: 104, gateway: "fd00::1"}`,
		"prefixes":               `{cidr: "fd00::/48", allocationPrefixLength: 64}`,
		"cidr beside addresses":  `{cidr: 10.0.0.0/24, addresses: [10.0.9.0/24], reserved: [{cidr: 10.0.9.0/28}]}`,
		"whole of IPv4 and more": `{cidr: 0.0.0.0/0}`,
		"whole of IPv6":          `{cidr: "::/0"}`,
		// Templates of Helm write fields without a value like this.
		"empty texts":             `{cidr: 10.0.0.0/24, gateway: "", network: ""}`,
		"empty texts of IPv6":     `{cidr: "", addresses: ["fd00::1"], gateway: "", network: "", subnets: [{cidr: "fd00::/64", gateway: ""}]}`,
		"an empty cidr, a prefix": `{cidr: "", addresses: [10.0.0.1], prefix: 24, gateway: 10.0.0.2}`,
	} {
		t.Run(name, func(t *testing.T) {
			for _, kind := range kinds {
				g := NewWithT(t)
				err := k8s.Create(t.Context(), poolOf(g, kind, spec), client.DryRunAll, client.FieldValidation("Strict"))
				g.Expect(err).NotTo(HaveOccurred(), kind)
			}
		})
	}
}

// The length of a claim's prefix is the length that the pool had at the time of the grant.
func TestAllocationPrefixLengthIsImmutable(t *testing.T) {
	for name, c := range map[string]struct{ before, after string }{
		"changed": {`{cidr: "fd00::/48", allocationPrefixLength: 64}`, `{cidr: "fd00::/48", allocationPrefixLength: 60}`},
		"added":   {`{cidr: "fd00::/48"}`, `{cidr: "fd00::/48", allocationPrefixLength: 64}`},
		"removed": {`{cidr: "fd00::/48", allocationPrefixLength: 64}`, `{cidr: "fd00::/48"}`},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			pool := poolOf(g, v1alpha1.NetworkPoolKind, c.before)
			g.Expect(k8s.Create(t.Context(), pool)).To(Succeed())
			pool.Object["spec"] = poolOf(g, v1alpha1.NetworkPoolKind, c.after).Object["spec"]
			g.Expect(k8s.Update(t.Context(), pool)).To(MatchError(ContainSubstring("is immutable")))
		})
	}
}
