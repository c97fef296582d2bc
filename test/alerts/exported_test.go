package alerts

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// ofTheScraper are the labels that Prometheus adds to the samples that it scrapes.
var ofTheScraper = []string{"job", "instance", "pod"}

// rare are metrics that appear when an error occurs, or after minutes: the test takes their labels from their
// registration.
var rare = []string{"butler_ipam_lost_terms_total", "butler_ipam_write_errors_total", "butler_ipam_tenant_shrinks_total", "butler_ipam_stranger_addresses_total"}

// Every metric in the alerts and in the dashboard is one that the manager or the API server exports, with every label
// that the queries use. A manager serves a pool, a refusal, a release, a workload cluster, a Node and a lease, and
// leads for a term. K45.
func TestQueriedMetricsAreExported(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits until a manager has done all that is counted: make test-all")
	}
	all := queries(t)
	parsed := parse(t, all)
	management, workload := start(t, framework.Options{Webhooks: true}), start(t, framework.Options{})
	if err := management.InstallMetalLB(t.Context()); err != nil {
		t.Fatal(err)
	}
	m := startLeaderManager(t, management, "--node-cidrs=on", "--service-leases", "--load-balancers")
	exercise(t, management, workload)

	exported := registered(t)
	missing := func() []string {
		scrape(t, http.DefaultClient, m.MetricsURL(), exported)
		var out []string
		for i, e := range parsed {
			for _, s := range e.Selectors {
				if _, ok := exported[s.Name]; !ok && !strings.HasPrefix(s.Name, "apiserver_") && !slices.Contains(out, s.Name) {
					out = append(out, s.Name+" of "+all[i].where)
				}
			}
		}
		return out
	}
	// Some of the manager's work takes time: an audit, and the reconcile of the workload cluster.
	for deadline := time.Now().Add(2 * time.Minute); len(missing()) > 0 && time.Now().Before(deadline); {
		time.Sleep(200 * time.Millisecond)
	}
	callMissingWebhook(t, management, m)
	transport, err := rest.HTTPClientFor(management.Config)
	if err != nil {
		t.Fatal(err)
	}
	scrape(t, transport, strings.TrimSuffix(management.Config.Host, "/")+"/metrics", exported)

	for i, e := range parsed {
		q := all[i]
		if e.Error != "" {
			t.Errorf("%s: %s\n%s", q.where, e.Error, q.expr)
		}
		known := slices.Clone(e.By)
		for _, s := range e.Selectors {
			exportedLabels, ok := exported[s.Name]
			if !ok {
				t.Errorf("%s: no program exports %s", q.where, s.Name)
				continue
			}
			if len(e.By) == 0 {
				known = append(known, exportedLabels...)
			}
			for _, label := range s.Labels {
				if !slices.Contains(exportedLabels, label) && !slices.Contains(ofTheScraper, label) {
					t.Errorf("%s: %s has no label %s, only %v", q.where, s.Name, label, exportedLabels)
				}
			}
		}
		for _, label := range q.speaksOf {
			if !slices.Contains(known, label) {
				t.Errorf("%s: its text speaks of the label %s, of which nothing is left", q.where, label)
			}
		}
	}
}

var desc = regexp.MustCompile(`fqName: "([a-z_]+)".* variableLabels: \{([^}]*)\}`)

// registered returns the rare metrics with their labels.
func registered(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, c := range []prometheus.Collector{metrics.LostTerms, metrics.WriteErrors, metrics.TenantShrinks, metrics.ForeignAddresses} {
		descs := make(chan *prometheus.Desc, 1)
		c.Describe(descs)
		m := desc.FindStringSubmatch((<-descs).String())
		if len(m) == 0 || !slices.Contains(rare, m[1]) {
			t.Fatalf("a metric is not described as expected: %v", m)
		}
		out[m[1]] = strings.Split(m[2], ",")
	}
	return out
}

func start(t *testing.T, opts framework.Options) *framework.ControlPlane {
	t.Helper()
	ctrl.SetLogger(logr.Discard()) // the libraries of the test; the manager has a log of its own
	cp, err := framework.StartControlPlane(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cp.Stop(); err != nil {
			t.Error(err)
		}
	})
	return cp
}

// startLeaderManager starts a manager that becomes the leader, and audits once a second.
func startLeaderManager(t *testing.T, cp *framework.ControlPlane, args ...string) *framework.Manager {
	t.Helper()
	opts := framework.ManagerOptions{
		Kubeconfig: cp.Kubeconfig, LeaderElect: true, LogFile: filepath.Join(t.TempDir(), "manager.log"), Args: append([]string{"--audit-interval=1s"}, args...),
	}
	if cp.WebhookCertDir != "" {
		opts.WebhookPort, opts.WebhookCertDir = cp.WebhookPort, cp.WebhookCertDir
	}
	m, err := framework.StartManager(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(m.LogTail(40))
		}
		if err := m.Kill(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// exercise creates objects so that everything happens that has metrics of its own.
func exercise(t *testing.T, management, workload *framework.ControlPlane) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, ns := t.Context(), corev1.NamespaceDefault
	k8s, err := management.NewClient()
	must(err)
	must(k8s.Create(ctx, framework.MakePool("two").Namespace(ns).Addresses("10.9.0.1-10.9.0.2").Obj()))
	for i := range 3 {
		must(k8s.Create(ctx, framework.MakeClaim(ns, fmt.Sprintf("claim-%d", i)).Pool("two").Obj()))
	}
	released := framework.MakeClaim(ns, "claim-0").Obj()
	eventually(t, "claim-0 has its address", func(ctx context.Context) bool {
		return k8s.Get(ctx, client.ObjectKeyFromObject(released), released) == nil && released.Status.AddressRef.Name != ""
	})
	must(k8s.Delete(ctx, released))

	must(k8s.Create(ctx, &v1alpha1.ClusterCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "nodes"}, Spec: v1alpha1.ClusterCIDRSpec{PerNodeHostBits: 8, IPv4: "10.8.0.0/24"},
	}))
	must(k8s.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}))

	leases := framework.MakePool("leases").Namespace(ns).CIDR("10.9.2.0/29").Obj()
	leases.Spec.Leases = &v1alpha1.Leases{}
	must(k8s.Create(ctx, leases))
	must(k8s.Create(ctx, framework.MakeLease(ns, "shop").Pool("leases").Obj()))
	for _, named := range []string{"shop", "missing"} {
		must(k8s.Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "of-" + named, Annotations: map[string]string{v1alpha1.LeaseAnnotation: named}},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}},
		}))
	}

	must(workload.InstallMetalLB(ctx))
	must(k8s.Create(ctx, framework.MakePool("services").Namespace(ns).Addresses("10.9.1.1-10.9.1.20").Obj()))
	must(k8s.Create(ctx, &v1alpha1.ProviderConfig{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "elastic"},
		Spec: v1alpha1.ProviderConfigSpec{Network: &v1alpha1.ProviderNetwork{
			Mode:         v1alpha1.IPAMMode,
			PoolRefs:     []v1alpha1.ProviderPoolReference{{PoolReference: v1alpha1.PoolReference{Name: "services"}}},
			LoadBalancer: &v1alpha1.LoadBalancerPool{AllocationMode: v1alpha1.ElasticAllocation, InitialPoolSize: ptr.To[int32](1)},
		}},
	}))
	_, err = framework.CreateCluster(ctx, k8s, workload, metav1.ObjectMeta{
		Namespace: ns, Name: "tenant", Labels: map[string]string{v1alpha1.ProviderConfigLabel: "elastic"},
	})
	must(err)
	tenant, err := workload.NewClient()
	must(err)
	for i := range 3 { // more than the initial block of the Cluster
		must(tenant.Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprintf("service-%d", i)},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}},
		}))
	}
}

// callMissingWebhook stops the manager, so that the API server calls a webhook that is not served.
func callMissingWebhook(t *testing.T, cp *framework.ControlPlane, m *framework.Manager) {
	t.Helper()
	if err := m.Stop(); err != nil {
		t.Fatal(err)
	}
	k8s, err := cp.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	if err := k8s.Create(t.Context(), framework.MakePool("late").Namespace(corev1.NamespaceDefault).CIDR("10.9.9.0/24").Obj()); err == nil {
		t.Error("a pool was created without the webhook")
	}
}

func eventually(t *testing.T, description string, condition func(context.Context) bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !condition(t.Context()); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it does not become true that %s", description)
		}
	}
}

// scrape adds every exported series, by name, with the labels that some of its samples have.
func scrape(t *testing.T, c *http.Client, url string, exported map[string][]string) {
	t.Helper()
	for name, family := range read(t, c, url) {
		labels := map[string]bool{}
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = true
			}
		}
		exported[name] = slices.Sorted(maps.Keys(labels))
		if family.GetMetric()[0].GetHistogram() != nil {
			exported[name+"_bucket"] = slices.Concat(exported[name], []string{"le"})
			exported[name+"_sum"], exported[name+"_count"] = exported[name], exported[name]
		}
	}
}

// read returns the exported metrics, by name.
func read(t *testing.T, c *http.Client, url string) map[string]*dto.MetricFamily {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		t.Fatalf("%s: %s %s", url, resp.Status, text)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return families
}
