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

// shrinkGrace is how long an idle block stays in the demonstration, which cannot take ten minutes.
const shrinkGrace = 5 * time.Second

// workloadCluster is a second cluster, with the controller of MetalLB.
type workloadCluster struct {
	*framework.ControlPlane
	metalLB *framework.MetalLB
}

func startWorkloadCluster(ctx context.Context, steps *stepPrinter) (*workloadCluster, error) {
	steps.beginStep("workload")
	cp, err := framework.StartControlPlane(framework.Options{})
	if err != nil {
		return nil, err
	}
	w := &workloadCluster{ControlPlane: cp}
	if err := cp.InstallMetalLB(ctx); err != nil {
		return nil, errors.Join(err, w.stopAll())
	}
	if w.metalLB, err = cp.StartMetalLB(ctx); err != nil {
		return nil, errors.Join(err, w.stopAll())
	}
	steps.endStepf("another kube-apiserver, with the controller of MetalLB; rights of config/tenant")
	return w, nil
}

func (w *workloadCluster) stopAll() error {
	if w.metalLB != nil {
		_ = w.metalLB.Kill() // it may have ended
	}
	return w.Stop()
}

// showElasticPool shows a Cluster that grows when Services are created and shrinks when they are deleted.
func (w *workloadCluster) showElasticPool(ctx context.Context, cp *framework.ControlPlane, steps *stepPrinter) error {
	management, err := cp.NewClient()
	if err != nil {
		return err
	}
	tenant, err := w.NewClient()
	if err != nil {
		return err
	}

	steps.beginStep("elastic pool")
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
		if err := createObject(ctx, management, obj); err != nil {
			return err
		}
	}
	credentials, err := w.TenantKubeconfig(ctx)
	if err != nil {
		return err
	}
	if _, err := framework.CreateClusterWithKubeconfig(ctx, management, credentials, metav1.ObjectMeta{
		Namespace: "default", Name: "shop", Labels: map[string]string{v1alpha1.ProviderConfigLabel: "elastic"},
	}); err != nil {
		return err
	}
	if err := waitForMetalLBPool(ctx, tenant); err != nil {
		return err
	}
	steps.endStepf("config/samples/elastic.yaml; Cluster shop begins with 2 addresses, and may have 8")

	services := []string{"web", "api", "mail", "dns"}
	rows := [][]string{{"SERVICE", addressColumn, "PENDING FOR", ""}}
	for i, name := range services {
		address, took, err := createServiceAndWait(ctx, tenant, name)
		if err != nil {
			return err
		}
		how := "MetalLB had it"
		if i >= 2 {
			how = "the pool grew"
		}
		rows = append(rows, []string{name, address, formatDuration(took), how})
	}
	if err := printTable(steps.out, rows); err != nil {
		return err
	}
	if err := waitForBlocksInUse(ctx, management, "shop"); err != nil {
		return err
	}
	if err := showResource(ctx, cp, steps, "ipallocations"); err != nil {
		return err
	}
	steps.beginStep("shrink")
	for _, name := range services {
		if err := tenant.Delete(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}); err != nil {
			return err
		}
	}
	gone := time.Now()
	if err := waitForBlockCount(ctx, management, "shop", 1); err != nil {
		return err
	}
	steps.endStepf("the Services are gone; with --shrink-grace=%s their blocks were released after %s", shrinkGrace, formatDuration(time.Since(gone)))
	return showResource(ctx, cp, steps, "ipallocations")
}

func showResource(ctx context.Context, cp *framework.ControlPlane, steps *stepPrinter, resource string) error {
	rows, err := listAsTable(ctx, cp, resource)
	if err != nil {
		return err
	}
	return printTable(steps.out, rows)
}

// waitForMetalLBPool waits until MetalLB has a pool with free addresses.
func waitForMetalLBPool(ctx context.Context, tenant client.Client) error {
	pool := &metallbv1beta1.IPAddressPool{}
	err := pollUntil(ctx, func(ctx context.Context) (bool, error) {
		err := tenant.Get(ctx, client.ObjectKey{Namespace: framework.MetalLBNamespace, Name: "default-pool"}, pool)
		return err == nil && pool.Status.AvailableIPv4 > 0, client.IgnoreNotFound(err)
	})
	if err != nil {
		return fmt.Errorf("MetalLB was given no pool: %w", err)
	}
	return nil
}

// createServiceAndWait creates a Service and returns its address, and how long that took.
func createServiceAndWait(ctx context.Context, tenant client.WithWatch, name string) (address string, took time.Duration, err error) {
	watcher, err := tenant.Watch(ctx, &corev1.ServiceList{}, client.InNamespace("default"))
	if err != nil {
		return "", 0, fmt.Errorf("watching the Services: %w", err)
	}
	defer watcher.Stop()
	start := time.Now()
	if err := createObject(ctx, tenant, &corev1.Service{
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

// waitForBlocksInUse waits until the conditions of a Cluster's blocks, in which every Service has its address, report
// that they are in use.
func waitForBlocksInUse(ctx context.Context, c client.Client, cluster string) error {
	if err := waitForBlocks(ctx, c, cluster, areBlocksInUse); err != nil {
		return fmt.Errorf("waiting for the blocks of Cluster %s to be in use: %w", cluster, err)
	}
	return nil
}

// areBlocksInUse reports whether every block has its addresses, and the condition InUse of every added block is true.
func areBlocksInUse(all []v1alpha1.IPAllocation) bool {
	for i := range all {
		inUse := meta.IsStatusConditionTrue(all[i].Status.Conditions, v1alpha1.InUseCondition)
		if all[i].Labels[v1alpha1.AllocationRoleLabel] == v1alpha1.GrowthRole && !inUse {
			return false
		}
	}
	return areAllocationsDecided(all) && isDemandSatisfied(all)
}

// isDemandSatisfied reports whether the condition DemandSatisfied of a Cluster is true, which its initial block has.
func isDemandSatisfied(all []v1alpha1.IPAllocation) bool {
	return slices.ContainsFunc(all, func(a v1alpha1.IPAllocation) bool {
		return meta.IsStatusConditionTrue(a.Status.Conditions, v1alpha1.DemandSatisfiedCondition)
	})
}

// waitForBlockCount waits until a Cluster has n blocks, all of them allocated.
func waitForBlockCount(ctx context.Context, c client.Client, cluster string, n int) error {
	count := 0
	err := waitForBlocks(ctx, c, cluster, func(all []v1alpha1.IPAllocation) bool {
		count = len(all)
		return count == n && areAllocationsDecided(all) && isDemandSatisfied(all)
	})
	if err != nil {
		return fmt.Errorf("waiting for %d blocks of Cluster %s, which has %d: %w", n, cluster, count, err)
	}
	return nil
}

// waitForBlocks waits until should returns true for the blocks of a Cluster.
func waitForBlocks(ctx context.Context, c client.Client, cluster string, should func([]v1alpha1.IPAllocation) bool) error {
	return pollUntil(ctx, func(ctx context.Context) (bool, error) {
		list := &v1alpha1.IPAllocationList{}
		err := c.List(ctx, list, client.MatchingLabels{v1alpha1.TenantLabel: cluster})
		return err == nil && should(list.Items), err
	})
}
