package api_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/discovery"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// The names that kubectl accepts, and the columns that it prints. The columns after the bar need -o wide.
func TestKindsAsKubectlKnowsThem(t *testing.T) { // B1, B2, K1, K46
	const poolColumns = "Name CIDR First Range Parent Total Free Used Ready Reason Age | All Ranges Message"
	kinds := map[string]struct {
		kind, short string
		cluster     bool
		columns     string
	}{
		"networkpools":       {kind: "NetworkPool", short: "np", columns: poolColumns},
		"globalnetworkpools": {kind: "GlobalNetworkPool", short: "gnp", cluster: true, columns: poolColumns},
		"ipallocations": {kind: "IPAllocation", short: "ipa",
			columns: "Name Pool Cluster Type Phase Start End Used Draining Demand Age | Child Message"},
		"ipleases":        {kind: "IPLease", short: "ipl", columns: "Name Address Pool Shown Announced Ready Reason Age | Message"},
		"providerconfigs": {kind: "ProviderConfig", short: "bpc", columns: "Name Provider Scope Mode Free Tenants Ready Validated Age |"},
		// The short name cc is taken by ClusterClass.
		"clustercidrs": {kind: "ClusterCIDR", cluster: true,
			columns: "Name PerNodeHostBits IPv4 IPv6 Free Used Ready Age | IPv4Pool IPv6Pool Reason Message"},
	}
	g := NewWithT(t)
	found, err := discovery.NewDiscoveryClientForConfigOrDie(restConfig).ServerResourcesForGroupVersion("butler.butlerlabs.dev/v1alpha1")
	g.Expect(err).NotTo(HaveOccurred())
	served := map[string]metav1.APIResource{}
	for _, r := range found.APIResources {
		served[r.Name] = r
	}
	g.Expect(served).To(HaveLen(2*len(kinds)), "each kind has a status, and nothing else is served")
	for resource, want := range kinds {
		t.Run(resource, func(t *testing.T) {
			g := NewWithT(t)
			got := served[resource]
			g.Expect(got.Kind).To(Equal(want.kind))
			g.Expect(strings.Join(got.ShortNames, " ")).To(Equal(want.short))
			g.Expect(got.Namespaced).To(Equal(!want.cluster))
			g.Expect(got.Categories).To(HaveExactElements("cluster-api"))
			g.Expect(served).To(HaveKey(resource + "/status"))
			g.Expect(columnsOf(t, resource)).To(Equal(want.columns))
		})
	}
}

// columnsOf returns the headers of kubectl get, those of -o wide after a bar.
func columnsOf(t *testing.T, resource string) string {
	t.Helper()
	var always, wide []string
	for _, c := range tableOf(t, resource, "").ColumnDefinitions {
		if c.Priority == 0 {
			always = append(always, c.Name)
		} else {
			wide = append(wide, c.Name)
		}
	}
	return strings.TrimSpace(strings.Join(always, " ") + " | " + strings.Join(wide, " "))
}

// The columns of a pool show its addresses, from any field, without JSON: the first of several ranges, and all of
// them with -o wide.
func TestAddressesOfPools(t *testing.T) {
	g, ns := NewWithT(t), "columns"
	g.Expect(k8s.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})).To(Succeed())
	for name, pool := range map[string]*v1alpha1.NetworkPool{
		"cidr":   framework.MakePool("cidr").Namespace(ns).CIDR("10.0.0.0/24").Obj(),
		"ranges": framework.MakePool("ranges").Namespace(ns).Addresses("10.0.1.1-10.0.1.9", "10.0.1.20").Obj(),
		"both":   framework.MakePool("both").Namespace(ns).CIDR("10.0.2.0/24").Addresses("10.0.3.1").Obj(),
	} {
		g.Expect(k8s.Create(t.Context(), pool)).To(Succeed(), name)
	}
	table := tableOf(t, "networkpools", ns)
	got := map[any][]any{}
	for _, row := range table.Rows {
		got[row.Cells[0]] = row.Cells[1:3]
	}
	g.Expect(table.ColumnDefinitions[1].Name + " " + table.ColumnDefinitions[2].Name).To(Equal("CIDR First Range"))
	g.Expect(got).To(Equal(map[any][]any{"cidr": {"10.0.0.0/24", nil}, "ranges": {nil, "10.0.1.1-10.0.1.9"}, "both": {"10.0.2.0/24", "10.0.3.1"}}))
}

// tableOf returns the table that the API server sends to kubectl get.
func tableOf(t *testing.T, resource, namespace string) *metav1.Table {
	t.Helper()
	g := NewWithT(t)
	c := rest.CopyConfig(restConfig)
	c.APIPath, c.GroupVersion = "/apis", &v1alpha1.GroupVersion
	c.NegotiatedSerializer = serializer.WithoutConversionCodecFactory{CodecFactory: clientgoscheme.Codecs}
	server, err := rest.RESTClientFor(c)
	g.Expect(err).NotTo(HaveOccurred())
	table := &metav1.Table{}
	request := server.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	g.Expect(request.Do(t.Context()).Into(table)).To(Succeed())
	return table
}
