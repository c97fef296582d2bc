package framework

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// ServiceAccountKubeconfig writes a kubeconfig with a token of a ServiceAccount, as a Pod has it, and returns its
// path. The file is valid until the next call for a ServiceAccount of this name.
func (c *ControlPlane) ServiceAccountKubeconfig(ctx context.Context, namespace, name string) (string, error) {
	admin, err := c.NewClient()
	if err != nil {
		return "", err
	}
	token := &authenticationv1.TokenRequest{}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := admin.SubResource("token").Create(ctx, account, token); err != nil {
		return "", fmt.Errorf("asking for a token of ServiceAccount %s/%s: %w", namespace, name, err)
	}
	const only = "only"
	text, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{only: {Server: c.Config.Host, CertificateAuthorityData: c.Config.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{only: {Token: token.Status.Token}},
		Contexts:  map[string]*clientcmdapi.Context{only: {Cluster: only, AuthInfo: only, Namespace: namespace}}, CurrentContext: only,
	})
	if err != nil {
		return "", err
	}
	path := filepath.Join(c.Dir, name+".kubeconfig")
	return path, os.WriteFile(path, text, 0o600)
}
