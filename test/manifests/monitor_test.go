package manifests

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// monitor is a ServiceMonitor v1 of the operator of Prometheus, with the fields that every reader of it supports:
// OpenShift's Prometheus for users, and Alloy, accept no token from a file in the Pod.
type monitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Selector  metav1.LabelSelector `json:"selector"`
		Endpoints []struct {
			Port          string `json:"port"`
			Scheme        string `json:"scheme"`
			Path          string `json:"path,omitempty"`
			HonorLabels   bool   `json:"honorLabels"`
			Authorization struct {
				Credentials corev1.SecretKeySelector `json:"credentials"`
			} `json:"authorization"`
			TLSConfig struct {
				InsecureSkipVerify bool `json:"insecureSkipVerify"`
			} `json:"tlsConfig"`
		} `json:"endpoints"`
	} `json:"spec"`
}

// decode converts an object to its type, and fails if the object has a field that the type does not have.
func decode[O any](t *testing.T, from *unstructured.Unstructured) *O {
	t.Helper()
	out := new(O)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(from.Object, out, true); err != nil {
		t.Fatalf("%s %s: %v", from.GetKind(), from.GetName(), err)
	}
	return out
}

// find returns the objects of a kind.
func find(objects []*unstructured.Unstructured, kind string) []*unstructured.Unstructured {
	return slices.DeleteFunc(slices.Clone(objects), func(o *unstructured.Unstructured) bool { return o.GetKind() != kind })
}

// The ServiceMonitor selects the port at which the manager of a release serves its metrics, and its token authorizes
// the read.
func TestMetricsAreServedWhereTheMonitorReadsThem(t *testing.T) {
	monitoring, installed := kustomize(t, "prometheus"), kustomize(t, "default")
	m := decode[monitor](t, find(monitoring, "ServiceMonitor")[0])
	if m.APIVersion != "monitoring.coreos.com/v1" || len(m.Spec.Endpoints) != 1 {
		t.Fatalf("it is of %s, with %d endpoints", m.APIVersion, len(m.Spec.Endpoints))
	}
	endpoint := m.Spec.Endpoints[0]
	if !endpoint.HonorLabels {
		t.Error("Prometheus puts the namespace of the manager in the place of that of a pool")
	}
	if flag := "--diagnostics-address=:" + portOf(t, m, installed); !slices.Contains(managerOf(t, installed).Spec.Template.Spec.Containers[0].Args, flag) {
		t.Errorf("the manager has no flag %s", flag)
	}

	k8s := admin(t)
	for _, o := range slices.Concat(find(installed, "Namespace"), find(installed, "ClusterRole"), find(monitoring, "ServiceAccount"), find(monitoring, "ClusterRoleBinding")) {
		if err := k8s.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("monitor"), client.ForceOwnership); err != nil {
			t.Fatal(err)
		}
	}
	serving := serve(t)
	serving.Scheme, serving.Path = endpoint.Scheme, endpoint.Path
	if serving.Path == "" {
		serving.Path = "/metrics" // the default of the operator
	}
	for token, want := range map[string]int{"": http.StatusUnauthorized, tokenOf(t, k8s, m, monitoring): http.StatusOK} {
		if code := get(t, serving, token, endpoint.TLSConfig.InsecureSkipVerify); code != want {
			t.Errorf("with a token of %d letters, %s answers %d, not %d", len(token), serving, code, want)
		}
	}
}

func managerOf(t *testing.T, installed []*unstructured.Unstructured) *appsv1.Deployment {
	t.Helper()
	return decode[appsv1.Deployment](t, find(installed, "Deployment")[0])
}

// portOf returns the port of the manager's Pods that a ServiceMonitor selects, through exactly one Service.
func portOf(t *testing.T, m *monitor, installed []*unstructured.Unstructured) string {
	t.Helper()
	selector, err := metav1.LabelSelectorAsSelector(&m.Spec.Selector)
	if err != nil {
		t.Fatal(err)
	}
	pods := managerOf(t, installed).Spec.Template
	var target []string
	for _, o := range find(installed, "Service") {
		s := decode[corev1.Service](t, o)
		if s.Namespace != m.Namespace || !selector.Matches(labels.Set(s.Labels)) {
			continue
		}
		if !labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(pods.Labels)) {
			t.Errorf("Service %s does not select the Pods of the manager", s.Name)
		}
		for _, p := range s.Spec.Ports {
			if p.Name == m.Spec.Endpoints[0].Port {
				target = append(target, p.TargetPort.String())
			}
		}
	}
	if len(target) != 1 {
		t.Fatalf("it reads the ports %v", target)
	}
	for _, p := range pods.Spec.Containers[0].Ports {
		if p.Name == target[0] {
			return strconv.Itoa(int(p.ContainerPort))
		}
	}
	t.Fatalf("the manager has no port %s", target[0])
	return ""
}

// tokenOf returns a token of the account whose token is in the Secret that a ServiceMonitor names.
func tokenOf(t *testing.T, k8s client.Client, m *monitor, monitoring []*unstructured.Unstructured) string {
	t.Helper()
	credentials := m.Spec.Endpoints[0].Authorization.Credentials
	if credentials.Key != corev1.ServiceAccountTokenKey {
		t.Errorf("a token is not in %s of a Secret", credentials.Key)
	}
	for _, o := range find(monitoring, "Secret") {
		s := decode[corev1.Secret](t, o)
		if s.Namespace != m.Namespace || s.Name != credentials.Name || s.Type != corev1.SecretTypeServiceAccountToken {
			continue
		}
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Annotations[corev1.ServiceAccountNameKey]}}
		request := &authenticationv1.TokenRequest{}
		if err := k8s.SubResource("token").Create(t.Context(), account, request); err != nil {
			t.Fatal(err)
		}
		return request.Status.Token
	}
	t.Fatalf("there is no Secret %s with a token", credentials.Name)
	return ""
}

// serve runs a manager that serves its metrics as in a cluster, and returns their URL.
func serve(t *testing.T) *url.URL {
	t.Helper()
	m, err := framework.StartManager(t.Context(), framework.ManagerOptions{Kubeconfig: cp.Kubeconfig, Args: []string{"--insecure-diagnostics=false"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Kill(); err != nil {
			t.Error(err)
		}
	})
	at, err := url.Parse(m.MetricsURL())
	if err != nil {
		t.Fatal(err)
	}
	// The manager is ready before it has created its certificate.
	listens := func() error {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", at.Host)
		if err == nil {
			err = conn.Close()
		}
		return err
	}
	for deadline := time.Now().Add(framework.LongTimeout); listens() != nil; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("nothing listens at %s", at.Host)
		}
	}
	return at
}

func get(t *testing.T, at *url.URL, token string, anyCertificate bool) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), framework.LongTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: anyCertificate}}}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}
