package release

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

// Two managers run on two hosts, and are not drained at once; a single manager does not block the drain of its host.
func TestManagerSurvivesHostDrain(t *testing.T) {
	var deployment appsv1.Deployment
	var budget policyv1.PodDisruptionBudget
	for path, obj := range map[string]any{"manager.yaml": &deployment, "disruption_budget.yaml": &budget} {
		if err := yaml.UnmarshalStrict([]byte(read(t, "config/manager/"+path)), obj); err != nil {
			t.Fatal(path, err)
		}
	}
	pod := deployment.Spec.Template
	selects := func(name string, s *metav1.LabelSelector) {
		t.Helper()
		selector, err := metav1.LabelSelectorAsSelector(s)
		if err != nil {
			t.Fatal(err)
		}
		if selector.Empty() || !selector.Matches(labels.Set(pod.Labels)) {
			t.Errorf("%s is about %s, the Pods have %v", name, selector, pod.Labels)
		}
	}
	if antiAffinity := pod.Spec.Affinity.PodAntiAffinity; len(antiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 {
		t.Error("where there is one host, the second manager does not run")
	} else {
		selects("the affinity", antiAffinity.PreferredDuringSchedulingIgnoredDuringExecution[0].PodAffinityTerm.LabelSelector)
	}
	selects("the budget", budget.Spec.Selector)
	if budget.Namespace != deployment.Namespace || budget.Spec.MaxUnavailable.IntValue() < int(*deployment.Spec.Replicas) {
		t.Errorf("of %d managers %s may be away: a host with one is not drained", *deployment.Spec.Replicas, budget.Spec.MaxUnavailable)
	}
	if name := pod.Annotations["kubectl.kubernetes.io/default-container"]; name != pod.Spec.Containers[0].Name {
		t.Errorf("kubectl logs shows container %q", name)
	}
}
