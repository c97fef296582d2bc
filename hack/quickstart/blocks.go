package main

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// showBlocks applies the Cluster and the allocations of the samples, waits until each has its block or a reason why
// not, and prints them. It returns how many have one.
func showBlocks(ctx context.Context, c client.Client, steps *stepPrinter) (granted int, err error) {
	steps.beginStep("blocks")
	clusters, err := readSamples("clusters.yaml", func(kind string) client.Object {
		if kind == "Cluster" {
			return &clusterv1.Cluster{}
		}
		return &v1alpha1.ProviderConfig{}
	})
	if err != nil {
		return 0, err
	}
	allocations, err := readSamples("allocations.yaml", func(string) client.Object { return &v1alpha1.IPAllocation{} })
	if err != nil {
		return 0, err
	}
	for _, obj := range append(clusters, allocations...) {
		if err := createObject(ctx, c, obj); err != nil {
			return 0, err
		}
	}
	list := &v1alpha1.IPAllocationList{}
	err = pollUntil(ctx, func(ctx context.Context) (bool, error) {
		// One more than the samples: the Cluster gets an allocation of its own.
		err := c.List(ctx, list)
		return err == nil && len(list.Items) == len(allocations)+1 && areAllocationsDecided(list.Items), err
	})
	if err != nil {
		return 0, fmt.Errorf("not every allocation was read: %w", err)
	}
	fmt.Fprintln(steps.out)
	steps.endStepf("%d from config/samples/allocations.yaml, and that of the Cluster", len(allocations))
	rows := [][]string{{"ALLOCATION", "TYPE", "PHASE", "BLOCK", "COUNT", "MESSAGE"}}
	for i := range list.Items {
		a := &list.Items[i]
		block := a.Status.CIDR
		if a.Status.Phase == v1alpha1.AllocationAllocated {
			granted++
		} else {
			block = "-"
		}
		ready := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ReadyCondition)
		rows = append(rows, []string{a.Name, string(a.Spec.Type), string(a.Status.Phase), block, fmt.Sprint(a.Status.AllocatedCount), ready.Message})
	}
	return granted, printTable(steps.out, rows)
}

// areAllocationsDecided reports whether every allocation has its block, or has failed.
func areAllocationsDecided(all []v1alpha1.IPAllocation) bool {
	for i := range all {
		ready := meta.FindStatusCondition(all[i].Status.Conditions, v1alpha1.ReadyCondition)
		if ready == nil || (ready.Status != metav1.ConditionTrue && all[i].Status.Phase != v1alpha1.AllocationFailed) {
			return false
		}
	}
	return true
}
