package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// shrinkGrace is how long an idle block stays in the demonstration: nobody watches ten minutes.
const shrinkGrace = 5 * time.Second

// workload is another cluster, with the controller of MetalLB.
type workload struct {
	*framework.ControlPlane
	metalLB *framework.MetalLB
}

func startWorkload(ctx context.Context, steps *steps) (*workload, error) {
	steps.begin("workload")
	cp, err := framework.Start(framework.Options{})
	if err != nil {
		return nil, err
	}
	w := &workload{ControlPlane: cp}
	if err := cp.InstallMetalLB(ctx); err != nil {
		return nil, errors.Join(err, w.stop())
	}
	if w.metalLB, err = cp.StartMetalLB(ctx); err != nil {
		return nil, errors.Join(err, w.stop())
	}
	steps.endf("another kube-apiserver, with the controller of MetalLB; rights of config/tenant")
	return w, nil
}

func (w *workload) stop() error {
	if w.metalLB != nil {
		_ = w.metalLB.Kill() // it may have ended
	}
	return w.Stop()
}

// elastic shows a Cluster that grows when Services come and shrinks when they go.
func (w *workload) elastic(ctx context.Context, cp *framework.ControlPlane, steps *steps) error {
	management, err := cp.Client()
	if err != nil {
		return err
	}
	tenant, err := w.Client()
	if err != nil {
		return err
	}

	steps.begin("elastic pool")
	samples, err := readSamples("elastic.yaml", func(kind string) client.Object {
		if kind == v1alpha1.NetworkPoolKind {
			return &v1alpha1.NetworkPool{}
		}
		return &v1alpha1.ProviderConfig{}
	})
	if err != nil {
		return err
	}
	for _, obj := range samples {
		if err := create(ctx, management, obj); err != nil {
			return err
		}
	}
	credentials, err := w.TenantKubeconfig(ctx)
	if err != nil {
		return err
	}
	if _, err := framework.CreateClusterFor(ctx, management, credentials, metav1.ObjectMeta{
		Namespace: "default", Name: "shop", Labels: map[string]string{v1alpha1.ProviderConfigLabel: "elastic"},
	}); err != nil {
		return err
	}
	if err := shown(ctx, tenant); err != nil {
		return err
	}
	steps.endf("config/samples/elastic.yaml; Cluster shop begins with 2 addresses, and may have 8")

	services := []string{"web", "api", "mail", "dns"}
	rows := [][]string{{"SERVICE", addressColumn, "PENDING FOR", ""}}
	for i, name := range services {
		address, took, err := serve(ctx, tenant, name)
		if err != nil {
			return err
		}
		how := "MetalLB had it"
		if i >= 2 {
			how = "the pool grew"
		}
		rows = append(rows, []string{name, address, short(took), how})
	}
	if err := table(steps.out, rows); err != nil {
		return err
	}
	if err := inUse(ctx, management, "shop"); err != nil {
		return err
	}
	if err := show(ctx, cp, steps, "ipallocations"); err != nil {
		return err
	}
	steps.begin("shrink")
	for _, name := range services {
		if err := tenant.Delete(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}); err != nil {
			return err
		}
	}
	gone := time.Now()
	if err := count(ctx, management, "shop", 1); err != nil {
		return err
	}
	steps.endf("the Services are gone; with --shrink-grace=%s their blocks were given back after %s", shrinkGrace, short(time.Since(gone)))
	return show(ctx, cp, steps, "ipallocations")
}

func show(ctx context.Context, cp *framework.ControlPlane, steps *steps, resource string) error {
	rows, err := printed(ctx, cp, resource)
	if err != nil {
		return err
	}
	return table(steps.out, rows)
}

// shown waits until MetalLB has been given something.
func shown(ctx context.Context, tenant client.Client) error {
	pool := &metallbv1beta1.IPAddressPool{}
	err := until(ctx, func(ctx context.Context) (bool, error) {
		err := tenant.Get(ctx, client.ObjectKey{Namespace: framework.MetalLBNamespace, Name: "default-pool"}, pool)
		return err == nil && pool.Status.AvailableIPv4 > 0, client.IgnoreNotFound(err)
	})
	if err != nil {
		return fmt.Errorf("MetalLB was given no pool: %w", err)
	}
	return nil
}

// serve makes a Service and returns its address, and how long it took.
func serve(ctx context.Context, tenant client.WithWatch, name string) (address string, took time.Duration, err error) {
	watcher, err := tenant.Watch(ctx, &corev1.ServiceList{}, client.InNamespace("default"))
	if err != nil {
		return "", 0, fmt.Errorf("watching the Services: %w", err)
	}
	defer watcher.Stop()
	start := time.Now()
	if err := create(ctx, tenant, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 443}}},
	}); err != nil {
		return "", 0, err
	}
	for {
		select {
		case event, open := <-watcher.ResultChan():
			if !open {
				return "", 0, errors.New("the watch of the Services ended")
			}
			if s, ok := event.Object.(*corev1.Service); ok && s.Name == name && len(s.Status.LoadBalancer.Ingress) > 0 {
				return s.Status.LoadBalancer.Ingress[0].IP, time.Since(start), nil
			}
		case <-ctx.Done():
			return "", 0, fmt.Errorf("no address for Service %s: %w", name, ctx.Err())
		}
	}
}

// inUse waits until it is said of the blocks of a Cluster, in which every Service has its address, that they are in
// use.
func inUse(ctx context.Context, c client.Client, cluster string) error {
	if err := blocksOf(ctx, c, cluster, used); err != nil {
		return fmt.Errorf("waiting for the blocks of Cluster %s to be in use: %w", cluster, err)
	}
	return nil
}

// used reports whether every block has its addresses, and every one that was added is said to be in use.
func used(all []v1alpha1.IPAllocation) bool {
	for i := range all {
		inUse := meta.IsStatusConditionTrue(all[i].Status.Conditions, v1alpha1.InUseCondition)
		if all[i].Labels[v1alpha1.AllocationRoleLabel] == v1alpha1.GrowthRole && !inUse {
			return false
		}
	}
	return told(all) && satisfied(all)
}

// satisfied reports whether a Cluster is said to have what its Services ask for: by the block that it began with.
func satisfied(all []v1alpha1.IPAllocation) bool {
	return slices.ContainsFunc(all, func(a v1alpha1.IPAllocation) bool {
		return meta.IsStatusConditionTrue(a.Status.Conditions, v1alpha1.DemandSatisfiedCondition)
	})
}

// count waits until a Cluster has so many blocks, all of them allocated.
func count(ctx context.Context, c client.Client, cluster string, n int) error {
	has := 0
	err := blocksOf(ctx, c, cluster, func(all []v1alpha1.IPAllocation) bool {
		has = len(all)
		return has == n && told(all) && satisfied(all)
	})
	if err != nil {
		return fmt.Errorf("waiting for %d blocks of Cluster %s, which has %d: %w", n, cluster, has, err)
	}
	return nil
}

// blocksOf waits until the blocks of a Cluster are as they should be.
func blocksOf(ctx context.Context, c client.Client, cluster string, should func([]v1alpha1.IPAllocation) bool) error {
	return until(ctx, func(ctx context.Context) (bool, error) {
		list := &v1alpha1.IPAllocationList{}
		err := c.List(ctx, list, client.MatchingLabels{v1alpha1.TenantLabel: cluster})
		return err == nil && should(list.Items), err
	})
}
