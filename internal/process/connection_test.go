package process

import (
	"path/filepath"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// TestClientDoesNotLimitItsRate checks that the client does not limit its rate (W25): otherwise a burst of claims
// would wait, whatever the API server can process.
func TestClientDoesNotLimitItsRate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: "https://127.0.0.1:1"}},
		Contexts:       map[string]*clientcmdapi.Context{"c": {Cluster: "c"}},
		CurrentContext: "c",
	}, path)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(clientcmd.RecommendedConfigPathEnvVar, path)
	cfg, err := NewRESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	clients, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if limit := clients.CoreV1().RESTClient().GetRateLimiter(); limit != nil && limit.QPS() > 0 {
		t.Errorf("the client limits itself to %v requests a second", limit.QPS())
	}
}
