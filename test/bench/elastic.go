package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// measureElastic adds the time until a Service of a workload cluster with the real MetalLB has its address if the
// Cluster must grow for it. It alternates with Services for which MetalLB has a free address.
func measureElastic(ctx context.Context, o options, t *table) error {
	return withControlPlane(ctx, func(management *clients) error {
		return withControlPlane(ctx, func(workload *clients) error {
			if err := workload.controlPlane.InstallMetalLB(ctx); err != nil {
				return err
			}
			metalLB, err := workload.controlPlane.StartMetalLB(ctx)
			if err != nil {
				return err
			}
			defer func() { _ = metalLB.Kill() }()
			return management.withManager(ctx, o.manager, func(*framework.Manager) error { return growAndWait(ctx, management, workload, o.elastic, t) })
		})
	})
}

func growAndWait(ctx context.Context, management, workload *clients, runs int, t *table) error {
	if err := management.createElasticPool(ctx, 1); err != nil {
		return err
	}
	if _, err := framework.CreateCluster(ctx, management, workload.controlPlane, metav1.ObjectMeta{
		Namespace: namespace, Name: "tenant", Labels: map[string]string{v1alpha1.ProviderConfigLabel: "elastic"},
	}); err != nil {
		return err
	}
	// The first address exists already; after that, growth by two makes every other Service find a free one.
	if _, err := workload.timeService(ctx, 0); err != nil {
		return err
	}
	var grown, had []time.Duration
	for i := range runs {
		for j, into := range []*[]time.Duration{&grown, &had} {
			took, err := workload.timeService(ctx, 1+2*i+j)
			if err != nil {
				return err
			}
			*into = append(*into, took)
		}
	}
	list := &v1alpha1.IPAllocationList{}
	if err := management.List(ctx, list); err != nil {
		return err
	}
	if len(list.Items) != 1+runs {
		return fmt.Errorf("there are %d blocks, not one and one for each of %d growths", len(list.Items), runs)
	}
	text := func(d time.Duration) string { return fmt.Sprintf("%.0f ms", milliseconds(d)) }
	t.add("Service to address, MetalLB has one, p50", text(median(had)), fmt.Sprintf("of %d; slowest %s", runs, text(slices.Max(had))))
	t.add("Service to address, through growth, p50", text(median(grown)), fmt.Sprintf("of %d; slowest %s", runs, text(slices.Max(grown))))
	return nil
}

// createElasticPool creates a pool, and a ProviderConfig whose Clusters start with `initial` addresses and grow by
// two.
func (c *clients) createElasticPool(ctx context.Context, initial int32) error {
	config := &v1alpha1.ProviderConfig{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "elastic"},
		Spec: v1alpha1.ProviderConfigSpec{Network: &v1alpha1.ProviderNetwork{
			Mode:     v1alpha1.IPAMMode,
			PoolRefs: []v1alpha1.ProviderPoolReference{{PoolReference: v1alpha1.PoolReference{Name: poolName}}},
			LoadBalancer: &v1alpha1.LoadBalancerPool{
				AllocationMode: v1alpha1.ElasticAllocation, InitialPoolSize: &initial, GrowthIncrement: ptr.To[int32](2),
			},
		}},
	}
	if err := c.Create(ctx, framework.MakePool(poolName).Namespace(namespace).CIDR("10.0.0.0/16").Obj()); err != nil {
		return err
	}
	return c.Create(ctx, config)
}

// timeService creates a Service of type LoadBalancer and returns the time until a watch shows its address.
func (c *clients) timeService(ctx context.Context, i int) (time.Duration, error) {
	return c.timeAnnotatedService(ctx, fmt.Sprintf("service-%03d", i), 80, nil)
}

func (c *clients) timeAnnotatedService(ctx context.Context, name string, port int32, annotated map[string]string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	w, err := c.Watch(ctx, &corev1.ServiceList{}, client.InNamespace(namespace), client.MatchingFields{"metadata.name": name})
	if err != nil {
		return 0, err
	}
	defer w.Stop()
	start := time.Now()
	if err := c.Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: annotated},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: port}}},
	}); err != nil {
		return 0, err
	}
	for {
		select {
		case e, open := <-w.ResultChan():
			if !open {
				return 0, errors.New("the watch of the Services ended")
			}
			if s, ok := e.Object.(*corev1.Service); ok && len(s.Status.LoadBalancer.Ingress) > 0 {
				return time.Since(start), nil
			}
		case <-ctx.Done():
			return 0, fmt.Errorf("no address for Service %s: %w", name, ctx.Err())
		}
	}
}
