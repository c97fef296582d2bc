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
	// perTenant are the Services of each tenant.
	perTenant = 20
	// rest is how long nothing happens: longer than the minute after which every pool is looked at anyway.
	resting = 70 * time.Second
)

// measureTenants adds what n workload clusters cost that have all they ask for. One API server stands for all of
// them (see view), and MetalLB is a fake: what it would give to each Service is given by the bench.
func measureTenants(ctx context.Context, o options, t *table) error {
	return bed(ctx, func(management *clients) error {
		return bed(ctx, func(workload *clients) error {
			if err := workload.cp.InstallMetalLB(ctx); err != nil {
				return err
			}
			return management.managed(ctx, o.manager, func(m *framework.Manager) error {
				return tenantsAtRest(ctx, management, workload, m, o.tenants, t)
			})
		})
	})
}

func tenantsAtRest(ctx context.Context, management, workload *clients, m *framework.Manager, n int, t *table) error {
	if err := management.elasticPool(ctx, 2); err != nil {
		return err
	}
	before, err := m.Metric(ctx, "process_resident_memory_bytes")
	if err != nil {
		return err
	}
	start := time.Now()
	for i := range n {
		v, err := workload.tenantView(ctx, i)
		if err != nil {
			return err
		}
		defer func() { _ = v.server.Close() }() //nolint:gocritic // all of them, until the measurement ends
		if _, err := framework.CreateClusterFor(ctx, management, v.kubeconfig, metav1.ObjectMeta{
			Namespace: namespace, Name: fmt.Sprintf("tenant-%03d", i), Labels: map[string]string{v1alpha1.ProviderConfigLabel: "elastic"},
		}); err != nil {
			return err
		}
	}
	for i := range n {
		if err := workload.assign(ctx, i); err != nil {
			return err
		}
	}
	t.add(fmt.Sprintf("%d Clusters with %d Services each have their addresses", n, perTenant), fmt.Sprintf("%.1f s", time.Since(start).Seconds()), "after they were created")
	// What was on its way is over when nothing was written for a while.
	writes, err := quiet(ctx, 5*time.Second, func() (int, error) { return countWrites(ctx, management, workload) })
	if err != nil {
		return err
	}
	if err := pause(ctx, resting); err != nil {
		return err
	}
	after, err := countWrites(ctx, management, workload)
	if err != nil {
		return err
	}
	t.add(fmt.Sprintf("writes of %d Clusters at rest", n), fmt.Sprint(after-writes), fmt.Sprintf("in %s", resting))
	memory, err := m.Metric(ctx, "process_resident_memory_bytes")
	if err != nil {
		return err
	}
	t.add("manager memory, each Cluster at rest", fmt.Sprintf("%.0f KB", (memory-before)/float64(n)/1e3), fmt.Sprintf("%.0f MB before, %.0f MB with %d", before/1e6, memory/1e6, n))
	return nil
}

// tenantView makes the namespaces and Services of a tenant, and a view of them.
func (c *clients) tenantView(ctx context.Context, i int) (*view, error) {
	services, metalLB := fmt.Sprintf("tenant-%03d", i), fmt.Sprintf("metallb-%03d", i)
	for _, ns := range []string{services, metalLB} {
		if err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}); err != nil {
			return nil, err
		}
	}
	if err := each(ctx, perTenant, func(ctx context.Context, j int) error {
		return c.Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: services, Name: fmt.Sprintf("service-%02d", j)},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}, AllocateLoadBalancerNodePorts: ptr.To(false),
			},
		})
	}); err != nil {
		return nil, err
	}
	return newView(ctx, c.cp.Config, services, metalLB)
}

// assign gives the Services of a tenant the addresses of its pool, as soon as that has enough.
func (c *clients) assign(ctx context.Context, i int) error {
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
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("tenant %d has %d addresses: %w", i, len(addresses), err)
		}
	}
	return each(ctx, perTenant, func(ctx context.Context, j int) error {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("tenant-%03d", i), Name: fmt.Sprintf("service-%02d", j)}}
		return c.Status().Patch(ctx, s, status(map[string]any{"loadBalancer": map[string]any{"ingress": []any{map[string]any{"ip": addresses[j]}}}}))
	})
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// quiet waits until a count stays as it is for a while, and returns it.
func quiet(ctx context.Context, d time.Duration, count func() (int, error)) (int, error) {
	last := -1
	for range 600 {
		now, err := count()
		if err != nil || now == last {
			return now, err
		}
		last = now
		if err := pause(ctx, d); err != nil {
			return 0, err
		}
	}
	return 0, errNoRest
}

var written = regexp.MustCompile(`^apiserver_request_total\{.*resource="(clusters|ipallocations|networkpools|providerconfigs|ipaddresspools|l2advertisements|services|events)".*verb="(APPLY|DELETE|PATCH|POST|PUT)".*\} (\S+)$`)

// countWrites is how often the kinds concerned were written, in both clusters, as the API servers count it.
func countWrites(ctx context.Context, all ...*clients) (int, error) {
	sum := 0
	for _, c := range all {
		text, err := c.serverMetrics(ctx)
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(text) {
			if found := written.FindStringSubmatch(strings.TrimSpace(line)); found != nil {
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
