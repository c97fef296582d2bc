package main

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

const (
	// perTenant is the number of Services of each tenant.
	perTenant = 20
	// restPeriod is how long the benchmark counts writes at rest: longer than the minute after which every pool is
	// reconciled anyway.
	restPeriod = 70 * time.Second
)

// measureTenants adds the cost of n workload clusters that have all addresses they need. One API server acts as all
// of them (see clusterView), and MetalLB is a fake: the benchmark assigns the addresses to the Services.
func measureTenants(ctx context.Context, o options, t *table) error {
	return withControlPlane(ctx, func(management *clients) error {
		return withControlPlane(ctx, func(workload *clients) error {
			if err := workload.controlPlane.InstallMetalLB(ctx); err != nil {
				return err
			}
			return management.withManager(ctx, o.manager, func(m *framework.Manager) error {
				return measureTenantsAtRest(ctx, management, workload, m, o.tenants, t)
			})
		})
	})
}

func measureTenantsAtRest(ctx context.Context, management, workload *clients, m *framework.Manager, n int, t *table) error {
	if err := management.createElasticPool(ctx, 2); err != nil {
		return err
	}
	before, err := m.ReadMetric(ctx, "process_resident_memory_bytes")
	if err != nil {
		return err
	}
	start := time.Now()
	for i := range n {
		v, err := workload.createTenantView(ctx, i)
		if err != nil {
			return err
		}
		defer func() { _ = v.server.Close() }() //nolint:gocritic // all of them, until the measurement ends
		if _, err := framework.CreateClusterWithKubeconfig(ctx, management, v.kubeconfig, metav1.ObjectMeta{
			Namespace: namespace, Name: fmt.Sprintf("tenant-%03d", i), Labels: map[string]string{v1alpha1.ProviderConfigLabel: "elastic"},
		}); err != nil {
			return err
		}
	}
	for i := range n {
		if err := workload.assignAddresses(ctx, i); err != nil {
			return err
		}
	}
	t.add(fmt.Sprintf("%d Clusters with %d Services each have their addresses", n, perTenant), fmt.Sprintf("%.1f s", time.Since(start).Seconds()), "after they were created")
	// When there are no writes for a while, nothing is pending any more.
	writes, err := waitUntilStable(ctx, 5*time.Second, func() (int, error) { return countWrites(ctx, management, workload) })
	if err != nil {
		return err
	}
	if err := sleepContext(ctx, restPeriod); err != nil {
		return err
	}
	after, err := countWrites(ctx, management, workload)
	if err != nil {
		return err
	}
	t.add(fmt.Sprintf("writes of %d Clusters at rest", n), fmt.Sprint(after-writes), fmt.Sprintf("in %s", restPeriod))
	memory, err := m.ReadMetric(ctx, "process_resident_memory_bytes")
	if err != nil {
		return err
	}
	t.add("manager memory, each Cluster at rest", fmt.Sprintf("%.0f KB", (memory-before)/float64(n)/1e3), fmt.Sprintf("%.0f MB before, %.0f MB with %d", before/1e6, memory/1e6, n))
	return nil
}

// createTenantView creates the namespaces and Services of a tenant, and returns a view of them.
func (c *clients) createTenantView(ctx context.Context, i int) (*clusterView, error) {
	services, metalLB := fmt.Sprintf("tenant-%03d", i), fmt.Sprintf("metallb-%03d", i)
	for _, ns := range []string{services, metalLB} {
		if err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}); err != nil {
			return nil, err
		}
	}
	if err := runEach(ctx, perTenant, func(ctx context.Context, j int) error {
		return c.Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: services, Name: fmt.Sprintf("service-%02d", j)},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}, AllocateLoadBalancerNodePorts: ptr.To(false),
			},
		})
	}); err != nil {
		return nil, err
	}
	return newClusterView(ctx, c.controlPlane.Config, services, metalLB)
}

// assignAddresses gives the Services of a tenant the addresses of its IPAddressPool, as soon as that has enough.
func (c *clients) assignAddresses(ctx context.Context, i int) error {
	pool := &metallbv1beta1.IPAddressPool{}
	key := client.ObjectKey{Namespace: fmt.Sprintf("metallb-%03d", i), Name: "default-pool"}
	var addresses []string
	for len(addresses) < perTenant {
		if err := client.IgnoreNotFound(c.Get(ctx, key, pool)); err != nil {
			return err
		}
		addresses = nil
		for _, text := range pool.Spec.Addresses {
			r, err := poolutil.ParseRange(text)
			if err != nil {
				return err
			}
			addresses = append(addresses, poolutil.Enumerate(r)...)
		}
		if err := sleepContext(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("tenant %d has %d addresses: %w", i, len(addresses), err)
		}
	}
	return runEach(ctx, perTenant, func(ctx context.Context, j int) error {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("tenant-%03d", i), Name: fmt.Sprintf("service-%02d", j)}}
		return c.Status().Patch(ctx, s, statusPatch(map[string]any{"loadBalancer": map[string]any{"ingress": []any{map[string]any{"ip": addresses[j]}}}}))
	})
}

func sleepContext(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// waitUntilStable waits until a count does not change for d, and returns it.
func waitUntilStable(ctx context.Context, d time.Duration, count func() (int, error)) (int, error) {
	last := -1
	for range 600 {
		now, err := count()
		if err != nil || now == last {
			return now, err
		}
		last = now
		if err := sleepContext(ctx, d); err != nil {
			return 0, err
		}
	}
	return 0, errNotAtRest
}

var writeMetricPattern = regexp.MustCompile(`^apiserver_request_total\{.*resource="(clusters|ipallocations|networkpools|providerconfigs|ipaddresspools|l2advertisements|services|events)".*verb="(APPLY|DELETE|PATCH|POST|PUT)".*\} (\S+)$`)

// countWrites returns the number of writes of the relevant kinds, in all clusters, as the API servers count them.
func countWrites(ctx context.Context, all ...*clients) (int, error) {
	sum := 0
	for _, c := range all {
		text, err := c.readServerMetrics(ctx)
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(text) {
			if found := writeMetricPattern.FindStringSubmatch(strings.TrimSpace(line)); found != nil {
				n, err := strconv.ParseFloat(found[3], 64)
				if err != nil {
					return 0, err
				}
				sum += int(n)
			}
		}
	}
	return sum, nil
}
