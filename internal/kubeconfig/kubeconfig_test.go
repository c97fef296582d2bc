package kubeconfig

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func TestReaderRefusesFilesAndPrograms(t *testing.T) {
	const token = "/var/run/secrets/kubernetes.io/serviceaccount/token"
	for name, c := range map[string]struct {
		reason string
		change func(*api.Cluster, *api.AuthInfo)
		want   string
	}{
		"token": {"as Cluster API writes them", func(_ *api.Cluster, a *api.AuthInfo) { a.Token = "t" }, ""},
		"certificate": {"the same", func(_ *api.Cluster, a *api.AuthInfo) {
			a.ClientCertificateData, a.ClientKeyData = []byte("c"), []byte("k")
		}, ""},
		"CA": {"the same, as is written into the place of a file", func(c *api.Cluster, a *api.AuthInfo) { // W29
			c.CertificateAuthorityData, a.Token = []byte("c"), "t"
		}, ""},
		"token file": {"the manager's own token would be sent", func(_ *api.Cluster, a *api.AuthInfo) { a.Token, a.TokenFile = "t", token }, "tokenFile"},
		"cert file":  {"it would be read", func(_ *api.Cluster, a *api.AuthInfo) { a.ClientCertificate = token }, "client-certificate"},
		"key file":   {"it would be used", func(_ *api.Cluster, a *api.AuthInfo) { a.ClientKey = token }, "client-key"},
		"CA file":    {"it would be read", func(c *api.Cluster, _ *api.AuthInfo) { c.CertificateAuthority = token }, "certificate-authority"},
		"program": {"it would be run", func(_ *api.Cluster, a *api.AuthInfo) {
			a.Exec = &api.ExecConfig{Command: "/manager", APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: api.NeverExecInteractiveMode}
		}, "exec"},
		"plugin": {"it may run one", func(_ *api.Cluster, a *api.AuthInfo) { a.AuthProvider = &api.AuthProviderConfig{Name: "gcp"} }, "auth-provider"},
	} {
		t.Run(name, func(t *testing.T) {
			config := api.NewConfig()
			config.Clusters["c"], config.AuthInfos["u"] = &api.Cluster{Server: "https://127.0.0.1:1"}, &api.AuthInfo{}
			config.Contexts["x"], config.CurrentContext = &api.Context{Cluster: "c", AuthInfo: "u"}, "x"
			c.change(config.Clusters["c"], config.AuthInfos["u"])
			text, err := clientcmd.Write(*config)
			if err != nil {
				t.Fatal(err)
			}
			s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "prod-kubeconfig"}, Data: map[string][]byte{"value": text}}
			err = Reader{fake.NewFakeClient(s)}.Get(t.Context(), client.ObjectKeyFromObject(s), &corev1.Secret{})
			if (err != nil) != (c.want != "") || (err != nil && !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q: %s", err, c.want, c.reason)
			}
		})
	}
}

// TestRefusedKubeconfigErrorsNameStepsThatHelp checks that a kubeconfig is accepted once the file or the program is
// replaced as the error describes (W29).
func TestRefusedKubeconfigErrorsNameStepsThatHelp(t *testing.T) {
	const file = "/etc/passwd"
	asToken := func(_ *api.Cluster, a *api.AuthInfo) { *a = api.AuthInfo{Token: "t"} }
	asCertificate := func(_ *api.Cluster, a *api.AuthInfo) {
		*a = api.AuthInfo{ClientCertificateData: []byte("c"), ClientKeyData: []byte("k")}
	}
	read := func(changes ...func(*api.Cluster, *api.AuthInfo)) error {
		config := api.NewConfig()
		config.Clusters["c"], config.AuthInfos["u"] = &api.Cluster{Server: "https://127.0.0.1:1"}, &api.AuthInfo{}
		config.Contexts["x"], config.CurrentContext = &api.Context{Cluster: "c", AuthInfo: "u"}, "x"
		for _, change := range changes {
			change(config.Clusters["c"], config.AuthInfos["u"])
		}
		text, err := clientcmd.Write(*config)
		if err != nil {
			t.Fatal(err)
		}
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "prod-kubeconfig"}, Data: map[string][]byte{"value": text}}
		return Reader{fake.NewFakeClient(s)}.Get(t.Context(), client.ObjectKeyFromObject(s), &corev1.Secret{})
	}
	for name, c := range map[string]struct {
		change func(*api.Cluster, *api.AuthInfo)
		want   string
		steps  []func(*api.Cluster, *api.AuthInfo)
	}{
		"a file of a CA": {
			func(c *api.Cluster, a *api.AuthInfo) { c.CertificateAuthority, a.Token = file, "t" }, "write certificate-authority-data",
			[]func(*api.Cluster, *api.AuthInfo){func(c *api.Cluster, _ *api.AuthInfo) {
				c.CertificateAuthority, c.CertificateAuthorityData = "", []byte("c")
			}},
		},
		"a file of a token": {
			func(_ *api.Cluster, a *api.AuthInfo) { a.TokenFile = file }, "client-certificate-data and client-key-data",
			[]func(*api.Cluster, *api.AuthInfo){asToken, asCertificate},
		},
		"a program": {
			func(_ *api.Cluster, a *api.AuthInfo) {
				a.Exec = &api.ExecConfig{Command: "/x", APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: api.NeverExecInteractiveMode}
			}, "write token, or client-certificate-data and client-key-data",
			[]func(*api.Cluster, *api.AuthInfo){asToken, asCertificate},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := read(c.change); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatal(err)
			}
			for i, step := range c.steps {
				if err := read(c.change, step); err != nil {
					t.Errorf("after step %d: %v", i, err)
				}
			}
		})
	}
}
