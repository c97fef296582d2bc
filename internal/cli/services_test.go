package cli

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// TestServicesTrustNoKubeconfig checks that the kubeconfig in the Secret of a Cluster, which each user who may write
// Secrets in the namespace can change, neither runs a program on the administrator's machine nor sends a file of that
// machine to a server.
func TestServicesTrustNoKubeconfig(t *testing.T) { // W37
	dir := t.TempDir()
	private, mark := filepath.Join(dir, "private"), filepath.Join(dir, "ran")
	if err := os.WriteFile(private, []byte("private-key"), 0o600); err != nil {
		t.Fatal(err)
	}
	sent := ""
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent += r.Header.Get("Authorization")
		w.WriteHeader(http.StatusForbidden)
	}))
	t.Cleanup(server.Close)
	for name, user := range map[string]string{
		"token file": `{tokenFile: "` + private + `"}`,
		"program": `{exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/sh, interactiveMode: Never, args: ["-c", "echo ran > ` + mark +
			`; echo '{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{\"token\":\"x\"}}'"]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			kubeconfig := `{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: x, user: x}}], ` +
				`clusters: [{name: x, cluster: {insecure-skip-tls-verify: true, server: "` + server.URL + `"}}], users: [{name: x, user: ` + user + `}]}`
			s, err := newScheme()
			if err != nil {
				t.Fatal(err)
			}
			c := fake.NewClientBuilder().WithScheme(s).WithObjects(&corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod-kubeconfig"}, Data: map[string][]byte{"value": []byte(kubeconfig)},
			}).Build()
			if _, err := listTenantServices(t.Context(), c, "team/prod", netip.MustParseAddr("10.0.0.1")); err == nil {
				t.Error("the kubeconfig is used")
			}
			if _, err := os.Stat(mark); err == nil {
				t.Error("a program of the Secret ran here")
			}
			if sent != "" {
				t.Errorf("the server of the Secret was sent %q", sent)
			}
		})
	}
}
