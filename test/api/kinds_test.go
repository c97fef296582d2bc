package api_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/discovery"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// What people type and see: the names that kubectl takes, and the columns that it shows. Those after the bar need -o
// wide.
func TestKindsAsKubectlKnowsThem(t *testing.T) { // B1, B2, K1, K46
	const poolColumns = "Name CIDR Parent Available Allocated Total Ready Age | Addresses Reason Message"
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
		"providerconfigs": {kind: "ProviderConfig", short: "bpc", columns: "Name Provider Scope Mode Available Tenants Ready Validated Age |"},
		"clustercidrs": {kind: "ClusterCIDR", short: "cc", cluster: true,
			columns: "Name PerNodeHostBits IPv4 IPv6 Allocated Free Ready Age | IPv4Pool IPv6Pool Reason Message"},
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
			is := served[resource]
			g.Expect(is.Kind).To(Equal(want.kind))
			g.Expect(is.ShortNames).To(HaveExactElements(want.short))
			g.Expect(is.Namespaced).To(Equal(!want.cluster))
			g.Expect(is.Categories).To(HaveExactElements("cluster-api"))
			g.Expect(served).To(HaveKey(resource + "/status"))
			g.Expect(columnsOf(t, resource)).To(Equal(want.columns))
		})
	}
}

// columnsOf is what kubectl get has at the head, those of -o wide after a bar.
func columnsOf(t *testing.T, resource string) string {
	t.Helper()
	g := NewWithT(t)
	c := rest.CopyConfig(restConfig)
	c.APIPath, c.GroupVersion = "/apis", &v1alpha1.GroupVersion
	c.NegotiatedSerializer = serializer.WithoutConversionCodecFactory{CodecFactory: clientgoscheme.Codecs}
	server, err := rest.RESTClientFor(c)
	g.Expect(err).NotTo(HaveOccurred())
	table := &metav1.Table{}
	request := server.Get().Resource(resource).SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	g.Expect(request.Do(t.Context()).Into(table)).To(Succeed())
	var always, wide []string
	for _, c := range table.ColumnDefinitions {
		if c.Priority == 0 {
			always = append(always, c.Name)
		} else {
			wide = append(wide, c.Name)
		}
	}
	return strings.TrimSpace(strings.Join(always, " ") + " | " + strings.Join(wide, " "))
}
