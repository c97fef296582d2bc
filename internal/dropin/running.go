package dropin

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
)

// Provider is the name of an IPAM provider in the label that clusterctl sets on all objects that it installs for it.
type Provider string

// The providers from which pools can be imported, and this one.
const (
	ProviderInCluster Provider = "ipam-in-cluster"
	ProviderMetal3    Provider = "ipam-metal3"
	providerButler    Provider = "ipam-butler"
)

// ListRunning returns the Deployments and Pods of a provider that run, or would start again by themselves. StopAdvice
// returns the advice for each.
func ListRunning(ctx context.Context, from client.Reader, provider Provider) ([]string, error) {
	all, err := listWorkloads(ctx, from, provider)
	return workloadNames(all, isAnyWorkload), err
}

// StopAdvice returns the advice how to stop a workload that ListRunning returned.
func StopAdvice(workloadName string) string {
	if name, ok := strings.CutPrefix(workloadName, deploymentPrefix); ok {
		return "kubectl scale deployment " + name + " --replicas=0"
	}
	return "wait until it has ended"
}

// HasServedMirror reports whether a mirror among all pools shows that a manager serves pools of the in-cluster
// provider. That provider must not run then: it does not see the grants that the manager has in flight. Pools that were
// handed over do not count: they are paused, so that provider does not serve them.
func HasServedMirror(all []v1alpha1.Pool) bool {
	return slices.ContainsFunc(all, func(p v1alpha1.Pool) bool {
		_, mirror := sourceForMirror(p)
		return mirror && !incluster.HasHandedOverAnnotation(p) && isMirrorServed(p)
	})
}

// isMirrorServed reports whether the last manager that reconciled a mirror served it. A manager without the flag sets
// NotServed.
func isMirrorServed(mirror v1alpha1.Pool) bool {
	ready := meta.FindStatusCondition(mirror.GetConditions(), v1alpha1.ReadyCondition)
	return ready != nil && ready.Reason != v1alpha1.NotServedReason
}

// workload is a Deployment or a Pod of a provider.
type workload struct {
	name       string
	containers []corev1.Container
}

func isAnyWorkload(workload) bool { return true }

// workloadNames returns the names of the workloads for which counts returns true.
func workloadNames(all []workload, counts func(workload) bool) (out []string) {
	for _, p := range all {
		if counts(p) {
			out = append(out, p.name)
		}
	}
	return out
}

const deploymentPrefix = "deployment "

// listWorkloads lists the Deployments and Pods of a provider that run, or would start again by themselves.
func listWorkloads(ctx context.Context, from client.Reader, provider Provider) (out []workload, err error) {
	deployments, pods := &appsv1.DeploymentList{}, &corev1.PodList{}
	for _, list := range []client.ObjectList{deployments, pods} {
		if err := from.List(ctx, list, client.MatchingLabels{clusterv1.ProviderNameLabel: string(provider)}); err != nil {
			return nil, fmt.Errorf("looking for what runs of %s: %w", provider, err)
		}
	}
	for i := range deployments.Items {
		d := &deployments.Items[i]
		if d.Spec.Replicas == nil || *d.Spec.Replicas > 0 || d.Status.Replicas > 0 {
			out = append(out, workload{fmt.Sprintf(deploymentPrefix+"-n %s %s", d.Namespace, d.Name), d.Spec.Template.Spec.Containers})
		}
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			out = append(out, workload{fmt.Sprintf("pod -n %s %s", p.Namespace, p.Name), p.Spec.Containers})
		}
	}
	return out, nil
}
