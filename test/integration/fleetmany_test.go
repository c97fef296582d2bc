package integration

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// proxiedClusters is one real control plane that a proxy presents as many: a Cluster sees the Nodes that have its
// label, and instead of kube-system a namespace of its own, whose name has the same length, so that it can be
// replaced in protobuf too. The proxy is a fake, because a machine with two cores cannot run forty control planes.
type proxiedClusters struct {
	*httptest.Server
	admin client.Client
	// requestCount counts the requests except health probes of the API server.
	requestCount atomic.Int64
}

// ofCluster is the label that assigns a Node to a Cluster.
const ofCluster = "of-cluster"

func spaceOf(cluster int) string { return fmt.Sprintf("c-%09d", cluster) }

func startProxiedClusters(ctx context.Context, n int) *proxiedClusters {
	GinkgoHelper()
	server, err := framework.StartControlPlane(framework.Options{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(server.Stop()).To(Succeed()) })
	admin, err := server.NewClient()
	Expect(err).NotTo(HaveOccurred())
	for i := range n {
		Expect(admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: spaceOf(i)}})).To(Succeed())
	}
	transport, err := rest.TransportFor(server.Config)
	Expect(err).NotTo(HaveOccurred())
	target, err := url.Parse(server.Config.Host)
	Expect(err).NotTo(HaveOccurred())
	m := &proxiedClusters{admin: admin}
	m.Server = httptest.NewServer(&httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			m.rewriteRequest(r.Out)
		},
		ModifyResponse: func(r *http.Response) error {
			if space, ok := r.Request.Context().Value(spaceKey{}).(string); ok && r.Request.URL.Query().Get("watch") == "" {
				return replace(&r.Body, r.Header, &r.ContentLength, space, metav1.NamespaceSystem)
			}
			return nil
		},
	})
	DeferCleanup(m.Close)
	return m
}

type spaceKey struct{}

// rewriteRequest turns a request for /clusters/<n> into one for the control plane.
func (m *proxiedClusters) rewriteRequest(r *http.Request) {
	rest, _ := strings.CutPrefix(r.URL.Path, "/clusters/")
	number, path, _ := strings.Cut(rest, "/")
	n, err := strconv.Atoi(number)
	if err != nil {
		n = -1 // no Cluster
	}
	space := spaceOf(n)
	r.URL.Path = "/" + strings.ReplaceAll(path, metav1.NamespaceSystem, space)
	if r.URL.Path != "/" {
		m.requestCount.Add(1)
	}
	if r.URL.Path == "/api/v1/nodes" {
		q := r.URL.Query()
		q.Set("labelSelector", ofCluster+"="+space)
		r.URL.RawQuery = q.Encode()
	}
	if err := replace(&r.Body, r.Header, &r.ContentLength, metav1.NamespaceSystem, space); err != nil {
		r.Body = http.NoBody
	}
	*r = *r.WithContext(context.WithValue(r.Context(), spaceKey{}, space))
}

// replace replaces a word in a body by another one of the same length.
func replace(body *io.ReadCloser, header http.Header, length *int64, old, by string) error {
	if *body == nil || *body == http.NoBody || header.Get("Content-Encoding") != "" {
		return nil
	}
	whole, err := io.ReadAll(*body)
	if err != nil {
		return err
	}
	whole = bytes.ReplaceAll(whole, []byte(old), []byte(by))
	*body, *length = io.NopCloser(bytes.NewReader(whole)), int64(len(whole))
	return nil
}

// kubeconfig returns the kubeconfig of a Cluster.
func (m *proxiedClusters) kubeconfig(n int) []byte {
	GinkgoHelper()
	c := clientcmdapi.NewConfig()
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: fmt.Sprintf("%s/clusters/%d", m.URL, n)}
	c.Contexts["c"] = &clientcmdapi.Context{Cluster: "c"}
	c.CurrentContext = "c"
	text, err := clientcmd.Write(*c)
	Expect(err).NotTo(HaveOccurred())
	return text
}

var _ = Describe("Pod CIDRs of the Nodes of forty workload clusters", startsEarly, func() {
	It("are unique over the fleet, and the manager is at rest once all Nodes have theirs", func(ctx SpecContext) {
		if testing.Short() {
			Skip("it waits two minutes for forty workload clusters to be at rest: make test-all")
		}
		const clusters, nodesOfEach, seen = 40, 5, 12 * time.Second // a connection is probed every ten seconds
		m := startProxiedClusters(ctx, clusters)
		// A server of its own: the manager reconciles objects of other specs periodically too, at different times.
		server, err := framework.StartControlPlane(framework.Options{})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { Expect(server.Stop()).To(Succeed()) })
		management, err := server.NewClient()
		Expect(err).NotTo(HaveOccurred())
		kubeconfig, err := server.FleetManagerKubeconfig(ctx)
		Expect(err).NotTo(HaveOccurred())
		pool := framework.MakeGlobalPool("pods").CIDR("100.72.0.0/16").AllocateReservedAddresses().Obj()
		Expect(management.Create(ctx, pool)).To(Succeed())
		Expect(management.Create(ctx, &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: "pods"}, Spec: v1alpha1.ClusterCIDRSpec{
			PerNodeHostBits: 6, ClusterSelector: &metav1.LabelSelector{}, IPv4Pool: &v1alpha1.PodPool{Name: pool.Name, NodesPerBlock: 4},
		}})).To(Succeed())
		manager := startManagerAs(ctx, kubeconfig, "--node-cidrs=fleet")
		for i := range clusters {
			for n := range nodesOfEach {
				Expect(m.admin.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
					Name: fmt.Sprintf("%s-%d", spaceOf(i), n), Labels: map[string]string{ofCluster: spaceOf(i)},
				}})).To(Succeed())
			}
			_, err := framework.CreateClusterWithKubeconfig(ctx, management, m.kubeconfig(i), metav1.ObjectMeta{
				Namespace: metav1.NamespaceDefault, Name: spaceOf(i), Labels: map[string]string{v1alpha1.NodeCIDRsLabel: ""},
			})
			Expect(err).NotTo(HaveOccurred())
		}
		Eventually(func(g Gomega) {
			var all corev1.NodeList
			g.Expect(m.admin.List(ctx, &all)).To(Succeed())
			nodeByCIDR := map[string]string{}
			for i := range all.Items {
				if cidr := all.Items[i].Spec.PodCIDR; cidr != "" {
					Expect(nodeByCIDR).NotTo(HaveKey(cidr), "of %s", all.Items[i].Name)
					nodeByCIDR[cidr] = all.Items[i].Name
				}
			}
			g.Expect(nodeByCIDR).To(HaveLen(clusters * nodesOfEach))
		}).WithTimeout(framework.LongTimeout).Should(Succeed())

		// Status counts are written a minute after they have changed.
		var last map[string]int
		Eventually(func(g Gomega) {
			now := requestsAndReconciles(ctx, manager, server.Config.Host)
			g.Expect(now).NotTo(BeEmpty())
			now["asked of the Clusters"] = int(m.requestCount.Load())
			was := last
			last = now
			g.Expect(now).To(Equal(was))
		}).WithTimeout(framework.LongTimeout).WithPolling(seen).Should(Succeed())
		// The manager has no second without a request even at rest: forty connections are probed every ten seconds,
		// at different times.
		Expect(manager.Kill()).To(Succeed())
	})
})

// requestsAndReconciles returns what a manager has done in its own cluster, which is identified by the URL of its API
// server: requests, and reconciles except the probes of the API servers of Clusters.
func requestsAndReconciles(ctx context.Context, m *framework.Manager, server string) map[string]int {
	GinkgoHelper()
	host, err := url.Parse(server)
	Expect(err).NotTo(HaveOccurred())
	out := map[string]int{}
	for _, counter := range []string{"rest_client_requests_total", "controller_runtime_reconcile_total"} {
		counts, err := m.ReadCounter(ctx, counter)
		Expect(err).NotTo(HaveOccurred())
		for labels, n := range counts {
			if strings.Contains(labels, host.Host) || (counter != "rest_client_requests_total" && !strings.Contains(labels, `"clustercache"`)) {
				out[counter+labels] = n
			}
		}
	}
	return out
}
