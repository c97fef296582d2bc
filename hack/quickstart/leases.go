package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// startMetalLB starts MetalLB's controller in the cluster of the manager.
func startMetalLB(ctx context.Context, cp *framework.ControlPlane, steps *stepPrinter) (*framework.MetalLB, error) {
	steps.beginStep("MetalLB")
	if err := cp.InstallMetalLB(ctx); err != nil {
		return nil, err
	}
	m, err := cp.StartMetalLB(ctx)
	if err != nil {
		return nil, err
	}
	steps.endStepf("its controller, process %d; no speaker: nothing is announced", m.Pid())
	return m, nil
}

func newLeasesScenario(cp *framework.ControlPlane) scenario {
	return scenario{run: showLeases, args: []string{"--service-leases"}, description: "--service-leases", kubeconfig: cp.LeasesManagerKubeconfig, hints: []string{
		"kubectl get ipleases,services -A", "kubectl get ipleases shop -n team-a -o yaml", "kubectl get ipaddresspools -n metallb-system -o yaml",
		"kubectl delete service -n team-a web", "kubectl delete ipleases -n team-b shop --wait=false",
	}}
}

// showLeases shows two tenants that lease an address each, the Services that share one, and a refusal.
func showLeases(ctx context.Context, cp *framework.ControlPlane, steps *stepPrinter) error {
	c, err := cp.NewClient()
	if err != nil {
		return err
	}
	steps.beginStep("a pool")
	pool := &v1alpha1.GlobalNetworkPool{ObjectMeta: metav1.ObjectMeta{Name: "public"}}
	pool.Spec.CIDR = "203.0.113.0/28"
	quota := int32(1)
	pool.Spec.Leases = &v1alpha1.Leases{QuotaPerNamespace: &quota}
	if err := createObject(ctx, c, pool); err != nil {
		return err
	}
	steps.endStepf("GlobalNetworkPool public, %s: one address for each tenant", pool.Spec.CIDR)

	steps.beginStep("two tenants")
	rows := [][]string{{"LEASE", addressColumn, "AFTER"}}
	for _, ns := range []string{teamA, "team-b"} {
		if err := createObject(ctx, c, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}); err != nil {
			return err
		}
		start := time.Now()
		l, err := createLeaseAndWait(ctx, c, ns, "shop")
		if err != nil {
			return err
		}
		rows = append(rows, []string{ns + "/shop", l.Status.Address, formatDuration(time.Since(start))})
	}
	steps.endStepf("each leases an address, by the same name")
	if err := printTable(steps.out, rows); err != nil {
		return err
	}

	fmt.Fprintln(steps.out)
	steps.beginStep("Services")
	rows = [][]string{{"SERVICE", "PORT", addressColumn, "AFTER", ""}}
	for _, s := range []struct {
		ns, name string
		port     corev1.ServicePort
	}{
		{teamA, "web", corev1.ServicePort{Protocol: corev1.ProtocolTCP, Port: 443}},
		{teamA, "dns", corev1.ServicePort{Protocol: corev1.ProtocolUDP, Port: 53}},
		{"team-b", "web", corev1.ServicePort{Protocol: corev1.ProtocolTCP, Port: 443}},
		{teamA, "late", corev1.ServicePort{Protocol: corev1.ProtocolTCP, Port: 443}},
	} {
		start := time.Now()
		address, message, err := createServiceForLease(ctx, c, s.ns, s.name, s.port)
		if err != nil {
			return err
		}
		rows = append(rows, []string{s.ns + "/" + s.name, fmt.Sprintf("%s/%d", s.port.Protocol, s.port.Port), address, formatDuration(time.Since(start)), message})
	}
	steps.endStepf("each names the lease shop of its namespace; the last one asks for a port that is taken")
	if err := printTable(steps.out, rows); err != nil {
		return err
	}
	return showResource(ctx, cp, steps, "ipleases")
}

// createLeaseAndWait creates a lease, and waits for its address.
func createLeaseAndWait(ctx context.Context, c client.Client, ns, name string) (*v1alpha1.IPLease, error) {
	l := &v1alpha1.IPLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec:       v1alpha1.IPLeaseSpec{PoolRef: v1alpha1.PoolReference{Kind: v1alpha1.GlobalNetworkPoolKind, Name: "public"}},
	}
	if err := createObject(ctx, c, l); err != nil {
		return nil, err
	}
	err := pollUntil(ctx, func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, client.ObjectKeyFromObject(l), l)
		return l.Status.Address != "", err
	})
	if err != nil {
		return nil, fmt.Errorf("no address for IPLease %s/%s: %w", ns, name, err)
	}
	return l, nil
}

// createServiceForLease creates a Service that names the lease shop, and waits until it has the address, or a reason
// why not.
func createServiceForLease(ctx context.Context, c client.WithWatch, ns, name string, port corev1.ServicePort) (address, message string, err error) {
	watcher, err := c.Watch(ctx, &corev1.ServiceList{}, client.InNamespace(ns))
	if err != nil {
		return "", "", fmt.Errorf("watching the Services: %w", err)
	}
	defer watcher.Stop()
	if err := createObject(ctx, c, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Annotations: map[string]string{v1alpha1.LeaseAnnotation: "shop"}},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{port}},
	}); err != nil {
		return "", "", err
	}
	for {
		select {
		case event, open := <-watcher.ResultChan():
			if !open {
				return "", "", errors.New("the watch of the Services ended")
			}
			s, ok := event.Object.(*corev1.Service)
			if !ok || s.Name != name {
				continue
			}
			if in := s.Status.LoadBalancer.Ingress; len(in) > 0 {
				return in[0].IP, "", nil
			}
			if c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.LeaseSatisfiedCondition); c != nil && c.Status == metav1.ConditionFalse {
				return "", c.Reason + ": " + c.Message, nil
			}
		case <-ctx.Done():
			return "", "", fmt.Errorf("no address for Service %s/%s: %w", ns, name, ctx.Err())
		}
	}
}
