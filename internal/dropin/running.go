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

// Provider is an IPAM provider, as the label names it that is on all that clusterctl installs of it.
type Provider string

// The providers that pools are taken from, and this one.
const (
	InCluster    Provider = "ipam-in-cluster"
	Metal3       Provider = "ipam-metal3"
	thisProvider Provider = "ipam-butler"
)

// Running finds what of a provider runs, or would run again by itself. Stop says what to do about it.
func Running(ctx context.Context, from client.Reader, provider Provider) ([]string, error) {
	all, err := running(ctx, from, provider)
	return namesOf(all, anyProgram), err
}

// Stop is what to do about something that runs.
func Stop(who string) string {
	if name, is := strings.CutPrefix(who, deploymentPrefix); is {
		return "kubectl scale deployment " + name + " --replicas=0"
	}
	return "wait until it has ended"
}

// Served reports whether a manager serves pools of the in-cluster provider, as their mirrors among all pools tell. What
// runs of that provider then must not: it sees nothing that the manager is about to give. Pools that were handed over are
// paused, and out of its reach.
func Served(all []v1alpha1.Pool) bool {
	return slices.ContainsFunc(all, func(p v1alpha1.Pool) bool {
		_, mirror := sourceOf(p)
		return mirror && !incluster.Given(p) && saysServed(p)
	})
}

// saysServed reports whether a mirror was served by the last manager that looked at it. One without the flag says so.
func saysServed(mirror v1alpha1.Pool) bool {
	ready := meta.FindStatusCondition(mirror.GetConditions(), v1alpha1.ReadyCondition)
	return ready != nil && ready.Reason != v1alpha1.NotServedReason
}

// program is a Deployment or a Pod of a provider.
type program struct {
	name       string
	containers []corev1.Container
}

func anyProgram(program) bool { return true }

// namesOf are the names of those programs that count.
func namesOf(all []program, counts func(program) bool) (out []string) {
	for _, p := range all {
		if counts(p) {
			out = append(out, p.name)
		}
	}
	return out
}

const deploymentPrefix = "deployment "

// running finds the Deployments and Pods of a provider that run, or would run again by themselves.
func running(ctx context.Context, from client.Reader, provider Provider) (out []program, err error) {
	deployments, pods := &appsv1.DeploymentList{}, &corev1.PodList{}
	for _, list := range []client.ObjectList{deployments, pods} {
		if err := from.List(ctx, list, client.MatchingLabels{clusterv1.ProviderNameLabel: string(provider)}); err != nil {
			return nil, fmt.Errorf("looking for what runs of %s: %w", provider, err)
		}
	}
	for i := range deployments.Items {
		d := &deployments.Items[i]
		if d.Spec.Replicas == nil || *d.Spec.Replicas > 0 || d.Status.Replicas > 0 {
			out = append(out, program{fmt.Sprintf(deploymentPrefix+"-n %s %s", d.Namespace, d.Name), d.Spec.Template.Spec.Containers})
		}
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			out = append(out, program{fmt.Sprintf("pod -n %s %s", p.Namespace, p.Name), p.Spec.Containers})
		}
	}
	return out, nil
}
